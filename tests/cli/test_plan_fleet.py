"""``wharf plan --fleet``: what a described fleet may say, and what is shown of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.fleets import card
from wharfinger.cli.main import main

TWO_CARDS = """
nodes:
  - name: lab-1
    ram: 16GiB
    gpus: [{model: RTX4090}]
  - name: lab-2
    ram: 16GiB
    gpus: [{model: RTX3090}]
links: all
"""
GGUF = ("llama_cpp", "llama_server")
CPU_NODES = """
nodes:
  - {name: lab-1, ram: 64GiB, backends: [llama_cpp-cpu]}
  - {name: lab-2, ram: 64GiB, backends: [llama_cpp-cpu]}
  - {name: lab-10, ram: 64GiB, backends: [llama_cpp-cpu]}
"""


@dataclass
class Ended:
    """A command that ended: its exit code and what it printed."""

    code: int
    out: str
    error: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Plan = Callable[..., Ended]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """``wharf plan MODEL --fleet``, in this process; ``layer_mib`` is the size of the model's 32 layers."""
    monkeypatch.setenv("WHARF_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("COLUMNS", "80")

    def run(
        fleet: str | Path, *options: str, layer_mib: int = 100, backends: tuple[str, ...] = GGUF
    ) -> Ended:
        model = tmp_path / "card.json"
        described = card(
            layer_mib=layer_mib,
            backends=backends,
            gguf_file="a.gguf" if backends in (GGUF, SERVER_FIRST) else "",
        )
        model.write_text(described.model_dump_json(by_alias=True))
        path = fleet
        if isinstance(fleet, str):
            path = tmp_path / "fleet.yaml"
            path.write_text(fleet)
        monkeypatch.setattr(sys, "argv", ["wharf", "plan", str(model), "--fleet", str(path), *options])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Ended(left.value.code, printed.out, printed.err)

    return run


def planned_nodes(ended: Ended) -> list[list[str]]:
    plans = [row["plan"] for row in ended.document["previews"] if row["plan"]]
    return [[rank["node_id"] for rank in each["ranks"]] for each in plans]


def test_plans_over_several_machines_are_marked(plan: Plan) -> None:
    """40 GiB of layers fit no machine alone: the set is planned, and it is said that no launch would make it."""
    shown = plan(TWO_CARDS, layer_mib=1280)
    assert shown.code == 0, shown.error
    first, second, third, fourth, note, *_ = shown.out.splitlines()[1:]
    assert first.split()[:3] == ["1*", "lab-1", "llama_server-cuda"]
    assert "GPU 0" in first
    assert second.split()[:1] == ["RAM"]
    assert third.split()[:3] == ["lab-2", "GPU", "0"]
    assert fourth.split()[:1] == ["RAM"]
    assert note.strip().startswith("* planned; not launched by this release yet")
    assert all(len(line) <= 80 for line in shown.out.splitlines()), shown.out
    (row,) = [
        row for row in plan(TWO_CARDS, "-o", "json", layer_mib=1280).document["previews"] if row["plan"]
    ]
    assert row["launchable"] is False
    explained = plan(TWO_CARDS, "--explain", "lab-2", layer_mib=1280)
    assert "could run it (planned; not launched by this release yet):" in explained.out


def test_plans_on_one_machine_are_not_marked(plan: Plan) -> None:
    shown = plan(CPU_NODES)
    assert "*" not in shown.out
    assert "not launched" not in shown.out
    rows = plan(CPU_NODES, "-o", "json").document["previews"]
    assert [row["launchable"] for row in rows if row["plan"]] == [True, True, True]


@pytest.mark.parametrize(
    ("backends", "backend", "launchable"),
    [(GGUF, "llama_server-metal", False), (GGUF, "llama_cpp-metal", True), (("mlx",), "mlx-metal", False)],
)
def test_an_engine_that_this_release_does_not_run_is_marked(
    plan: Plan, backends: tuple[str, ...], backend: str, launchable: bool
) -> None:
    fleet = f"nodes: [{{name: a, ram: 64GiB, gpus: [{{model: M4Max}}], backends: [{backend}]}}]"
    rows = plan(fleet, "-o", "json", backends=backends).document["previews"]
    assert [row["plan"]["ranks"][0]["backend"] for row in rows] == [backend]
    assert [row["launchable"] for row in rows] == [launchable]


SERVER_FIRST = ("llama_server-cuda", "llama_cpp-cuda", "llama_server-cpu", "llama_cpp-cpu")
"""The order that a catalogued GGUF file has."""
THREE_GPUS = """
nodes:
  - {name: lab-1, ram: 64GiB, gpus: [{model: RTX4090}]}
  - {name: lab-2, ram: 64GiB, gpus: [{model: RTX3090}]}
  - {name: lab-3, ram: 64GiB, gpus: [{model: RTX3090}]}
links: all
"""


def test_a_described_machine_is_planned_with_an_engine_that_is_started(plan: Plan) -> None:
    """The card wishes for llama-server first; a described machine has it, this release does not start it."""
    described = plan(THREE_GPUS, "--what-if", "+1xRTX4090-24GB", "-o", "json", backends=SERVER_FIRST).document
    singles = [row for row in described["previews"] if row["plan"] and len(row["plan"]["ranks"]) == 1]
    assert {row["plan"]["ranks"][0]["backend"] for row in singles} == {"llama_cpp-cuda"}
    assert [row["launchable"] for row in singles] == [True, True, True, True]


def test_splits_take_one_line_where_a_machine_alone_does(plan: Plan) -> None:
    shown = plan(THREE_GPUS, backends=SERVER_FIRST)
    assert shown.code == 0, shown.error
    numbers = [line.split()[0] for line in shown.out.splitlines() if " lab-" in line and "GPU 0" in line]
    assert numbers == ["1", "alt", "alt"]
    assert (
        "  also fits split over 2 or 3 machines, which this release does not launch: --min-nodes 2 shows them\n"
        in shown.out
    )
    assert "*" not in shown.out
    document = plan(THREE_GPUS, "-o", "json", backends=SERVER_FIRST).document
    widths = [len(row["plan"]["ranks"]) for row in document["previews"] if row["plan"]]
    assert widths == [1, 2, 3, 1, 1], "as the planner ranks them"
    assert "1*" in plan(THREE_GPUS, "--min-nodes", "2", backends=SERVER_FIRST).out


def test_explain_says_first_what_runs_now(plan: Plan) -> None:
    explained = plan(THREE_GPUS, "--explain", "lab-3", backends=SERVER_FIRST).out
    assert explained.index("  can run it:\n") < explained.index("  could run it (planned;")


def test_a_cap_that_refuses_is_named(plan: Plan) -> None:
    fleet = "nodes: [{name: a, ram: 64GiB, memory_cap: 1GiB, backends: [llama_cpp-cpu]}]"
    assert "usable 1.00 GiB (capped at 1.00 GiB)" in " ".join(plan(fleet).out.split())
    explained = plan(fleet, "--explain", "a").out
    assert "usable 1.00 GiB (capped at 1.00 GiB)\n" in explained


def test_parts_of_a_refusal_stand_in_one_column(plan: Plan) -> None:
    fleet = "nodes: [{name: a, ram: 8GiB, backends: [llama_cpp-cpu]}]"
    lines = plan(fleet, "--explain", "a", layer_mib=1280).out.splitlines()
    parts = [line for line in lines if line.endswith(" MiB")]
    assert len(parts) > 2
    assert len({len(line) for line in parts}) == 1


def test_a_backend_the_card_does_not_accept_is_the_reason_of_every_node(plan: Plan) -> None:
    """A node that has vLLM was said to have "no engine for this: wanted vllm; has vllm-cuda"."""
    refused = plan(TWO_CARDS, "--backend", "vllm")
    assert refused.code == 5
    assert "backend is vllm; the card accepts llama_cpp, llama_server  (backend_not_accepted)" in refused.out
    assert "has no engine" not in refused.out
    nodes = plan(TWO_CARDS, "--backend", "vllm", "-o", "json").document["nodes"]
    assert [(node["code"], node["message"]) for node in nodes] == [
        ("backend_not_accepted", "lab-1: the card does not accept the backend asked for"),
        ("backend_not_accepted", "lab-2: the card does not accept the backend asked for"),
    ]


def test_one_node_and_tensor_sharding_is_an_error_that_says_so(plan: Plan) -> None:
    refused = plan("nodes: [{name: a, ram: 64GiB}]", "--sharding", "tensor")
    assert refused.code == 5
    assert "one node has no Tensor sharding; leave out --sharding, or use more nodes" in refused.error


@pytest.mark.parametrize(
    ("option", "value"), [("--sharding", "both"), ("--context", "255"), ("--context", "1048577")]
)
def test_values_that_no_plan_can_have(plan: Plan, option: str, value: str) -> None:
    assert plan(CPU_NODES, option, value).code == 2


def test_layers_of_a_set_are_those_each_node_computes(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over RPC the driver's shard names every layer and a donor's none; what they hold is in their charges."""
    monkeypatch.setenv("COLUMNS", "160")
    shown = plan(TWO_CARDS, layer_mib=1280)
    assert "0--1" not in shown.out
    driver, donor = (line.split() for line in shown.out.splitlines() if "GPU 0" in line)
    assert driver[:4] == ["1*", "lab-1", "llama_server-cuda", "Pipeline"]
    donor_first, donor_last = donor[1].split("-")
    driver_first, driver_last = driver[4].split("-")
    assert (donor_first, driver_last) == ("0", "31")
    assert int(driver_first) == int(donor_last) + 1
    explained = plan(TWO_CARDS, "--explain", "lab-1", layer_mib=1280)
    assert f"lab-1  llama_server-cuda  layers {driver[4]}  GPU 0" in explained.out
    assert f"lab-2  llama_server-cuda  layers {donor[1]}  GPU 0" in explained.out


def test_many_gpus_take_one_line(plan: Plan) -> None:
    fleet = "nodes: [{name: dgx, ram: 2TB, gpus: [{model: RTX4090, count: 4}]}]"
    shown = plan(fleet, layer_mib=2400)
    assert "4 GPUs, fullest" in shown.out
    assert "GPU 0" not in shown.out
    assert "GPU 3: weights" in plan(fleet, "--explain", "dgx", layer_mib=2400).out


def test_nodes_are_excluded_and_required_by_name(plan: Plan) -> None:
    assert planned_nodes(plan(CPU_NODES, "--exclude", "lab-2", "-o", "json")) == [["lab-1"], ["lab-10"]]
    assert planned_nodes(plan(CPU_NODES, "--node", "lab-10", "-o", "json")) == [["lab-10"]]
    imagined = plan(CPU_NODES, "--what-if", "+1xcpu-64GB", "--node", "what-if-1", "-o", "json")
    assert planned_nodes(imagined) == [["what-if-1"]]


@pytest.mark.parametrize("option", ["--exclude", "--node"])
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("lab_2", "no such node in this fleet; the closest is lab-2"),
        ("lab-", "no such node in this fleet"),  # never the one whose name begins so
        ("zzz", "no such node in this fleet; there are lab-1, lab-10, lab-2"),
    ],
)
def test_a_node_that_is_not_there_is_an_error(plan: Plan, option: str, wanted: str, words: str) -> None:
    refused = plan(CPU_NODES, option, wanted, "-o", "json")
    assert refused.code == 2
    assert refused.document["error"]["message"].startswith(f"{option} '{wanted}': {words}")


def test_explain_exits_5_when_the_model_can_run_nowhere(plan: Plan) -> None:
    explained = plan(CPU_NODES, "--explain", "lab-1", layer_mib=4000)
    assert explained.code == 5
    assert "cannot run it alone: memory_short" in explained.out
    assert "0/3 nodes can run this" in explained.error
    document = plan(CPU_NODES, "--explain", "lab-1", "-o", "json", layer_mib=4000).document
    assert document["error"]["code"] == "memory_short"
    assert document["refusal"]["code"] == "memory_short"
    assert plan(CPU_NODES, "--exclude", "lab-1", "--explain", "lab-1").code == 0, "others can run it"
    assert plan(CPU_NODES, "--explain", "lab").code == 4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "Is a directory"),
        (b"\xff\xfe\x00", "it is not UTF-8 text"),
        (b"nodes: [", "is not YAML"),
        (b"nodes: []\nlinks: all\nnodes: []\n", "the key 'nodes' is there twice, the second time in line 3"),
        (b"nodes: [{name: a, ram: 8GiB, ram: 9GiB}]", "the key 'ram' is there twice"),
    ],
)
def test_a_fleet_file_that_cannot_be_used_is_one_clear_error(
    plan: Plan, tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "described"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    refused = plan(path)
    assert refused.code == 2
    assert refused.out == ""
    assert refused.error.startswith(f"error: {path}")
    assert words in refused.error


def test_merged_keys_are_no_repetition(plan: Plan) -> None:
    fleet = """
nodes:
  - &one {name: a, ram: 64GiB, backends: [llama_cpp-cpu]}
  - {<<: *one, name: b}
"""
    assert planned_nodes(plan(fleet, "-o", "json")) == [["a"], ["b"]]


HALF_MEASURED = """
nodes:
  - {name: lab-1, ram: 64GiB, backends: [llama_cpp-cpu]}
  - {name: lab-2, ram: 32GiB, backends: [llama_cpp-vulkan, llama_cpp-cpu]}
"""


def test_a_note_is_shown_whichever_row_it_is_of(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lab-2 reports of its accelerator is nothing; it ranks second."""
    monkeypatch.setenv("COLUMNS", "160")
    shown = plan(HALF_MEASURED)
    assert "  note: accelerator not measured (lab-2)\n" in shown.out
    both = plan("nodes: [{name: a, ram: 64GiB, backends: [llama_cpp-vulkan, llama_cpp-cpu]}]")
    assert "  note: accelerator not measured\n" in both.out, "of every row"
    explained = plan(HALF_MEASURED, "--explain", "lab-2").out
    assert "    note       accelerator not measured\n" in explained
    assert "accelerator not measured" not in plan(HALF_MEASURED, "--explain", "lab-1").out


def test_one_backend_is_asked_for(plan: Plan) -> None:
    rows = plan("nodes: [{name: a, ram: 64GiB, gpus: [{model: RTX4090}]}]", "--backend", "llama_cpp-cpu",
                "-o", "json").document["previews"]  # fmt: skip
    assert [row["plan"]["ranks"][0]["backend"] for row in rows] == ["llama_cpp-cpu"]


def test_a_backend_that_is_none_is_an_error_that_names_those_there_are(plan: Plan) -> None:
    refused = plan(CPU_NODES, "--backend", "llama_cp-cpu")
    assert (refused.code, refused.out) == (2, "")
    assert (
        "--backend is 'llama_cp-cpu'; accepted: an engine (llama_cpp, llama_server, vllm, " in refused.error
    )
    assert "maybe llama_cpp-cpu" in refused.error


def test_help_is_said_in_options(plan: Plan) -> None:
    refused = plan("nodes: [{name: a, ram: 64GiB}]", "--min-nodes", "2")
    assert "ask for --min-nodes 1" in refused.out
    assert "min_nodes" not in refused.out + refused.error
    engines = plan(CPU_NODES, "--min-nodes", "2", backends=("llama_cpp-cuda", "llama_cpp-cpu", "sglang-cuda"))
    assert "its engines (llama_cpp, sglang) run on one machine only" in " ".join(engines.out.split())


@pytest.mark.parametrize("ram", ["9" * 5000, "2024-99-99", f'"{"9" * 400}TB"'])
def test_a_value_that_yaml_or_we_cannot_hold_is_an_error(plan: Plan, ram: str) -> None:
    refused = plan(f"nodes: [{{name: a, ram: {ram}}}]")
    assert (refused.code, refused.out) == (2, "")
    assert refused.error.startswith("error: ")


def test_the_default_window_is_the_settings(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHARF_DEFAULT_CONTEXT_TOKENS", "4096")
    rows = plan(CPU_NODES, "-o", "json").document["previews"]
    assert {row["plan"]["context_tokens"] for row in rows if row["plan"]} == {4096}
