"""What-if nodes and described fleets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.fleets import GIB, ask, card, fleet, mac
from wharfinger.placement.hardware import known_accelerator
from wharfinger.placement.hypothetical import FleetError, add_what_if, fleet_from_mapping, parse_what_if
from wharfinger.placement.planner import plan
from wharfinger.placement.types import MemoryKind, Role

EXAMPLE = Path(__file__).parents[2] / "docs/examples/fleet.yaml"


@pytest.mark.parametrize(
    ("spec", "nodes", "devices", "device_gib", "kind", "ram_gib"),
    [
        ("+1xH100-80GB", 1, 1, 80, MemoryKind.DISCRETE, 160),
        ("+8xH100", 1, 8, 80, MemoryKind.DISCRETE, 1280),
        ("2xRTX4090-24GB", 1, 2, 24, MemoryKind.DISCRETE, 96),
        ("+1xrtx4090-48GiB", 1, 1, 48, MemoryKind.DISCRETE, 96),
        ("+1xM3Ultra-512GB", 1, 1, 512, MemoryKind.APPLE, 512),
        ("+2xM4Max", 2, 1, 128, MemoryKind.APPLE, 128),
        ("+1xGB10", 1, 1, 128, MemoryKind.GB10, 128),
        ("+1xH100-PCIe-80GB", 1, 1, 80, MemoryKind.DISCRETE, 160),
    ],
)
def test_what_if(
    spec: str, nodes: int, devices: int, device_gib: int, kind: MemoryKind, ram_gib: int
) -> None:
    """GPUs share a machine; machines that are one device are counted."""
    parsed = parse_what_if(spec)
    assert len(parsed) == nodes
    assert [node.node_id for node in parsed] == [f"what-if-{i + 1}" for i in range(nodes)]
    assert len(parsed[0].devices) == devices
    assert parsed[0].devices[0].total_bytes == device_gib * GIB
    assert parsed[0].devices[0].memory_kind is kind
    assert parsed[0].ram_total_bytes == ram_gib * GIB


def test_what_if_of_ram_only() -> None:
    """A CPU machine."""
    (node,) = parse_what_if("+1xcpu-64GB")
    assert node.devices == ()
    assert node.ram_total_bytes == 64 * GIB
    assert node.backends == frozenset({"llama_cpp-cpu", "llama_server-cpu"})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("H100", "expected +COUNTxNAME"),
        ("+xH100", "expected +COUNTxNAME"),
        ("+0xH100", "accepted are 1 to 64"),
        ("+65xH100", "the count is 65"),
        ("+1xcpu", "needs its RAM"),
        ("+1xVoodoo2-12GB", "'Voodoo2' is not a known accelerator"),
    ],
)
def test_what_if_errors(spec: str, words: str) -> None:
    """They name the spec and what is accepted."""
    with pytest.raises(FleetError) as raised:
        parse_what_if(spec)
    assert words in str(raised.value)
    assert spec in str(raised.value)


def test_a_what_if_node_makes_a_model_plannable_alone_or_linked() -> None:
    """The answer to: what would one H100 more do?"""
    model = card(layer_mib=1000, backends=("vllm-cuda", "mlx"))
    before = fleet(mac("a", 24))
    assert plan(before, model, ask()).best is None
    best = plan(add_what_if(before, ["+1xH100-80GB"]), model, ask()).best
    assert best is not None
    assert best.node_ids == ("what-if-1",)
    pair = plan(add_what_if(before, ["+1xM4Max-36GB"]), model, ask()).best
    assert pair is not None
    assert set(pair.node_ids) == {"a", "what-if-1"}
    two = add_what_if(before, ["+1xcpu-8GB", "+1xcpu-16GB"])
    assert [node.node_id for node in two.nodes] == ["a", "what-if-1", "what-if-2"]
    with pytest.raises(FleetError, match="already has a node what-if-1"):
        add_what_if(two, ["+1xcpu-8GB"])


def test_few_machines_may_be_imagined_at_once() -> None:
    """Each is linked with every other: sixteen times 64 were a million links, and no answer to anybody meanwhile."""
    assert len(add_what_if(fleet(mac("a", 24)), ["+32xcpu-8GB"] * 2).nodes) == 65
    with pytest.raises(FleetError) as raised:
        add_what_if(fleet(mac("a", 24)), ["+32xcpu-8GB"] * 3)
    assert str(raised.value) == "what-if: more than 64 machines together; accepted are 64 at most"


def test_machines_of_a_fleet_that_does_not_span_are_not_linked() -> None:
    alone = replace(fleet(mac("a", 24)), links_supported=False)
    imagined = add_what_if(alone, ["+2xcpu-64GB"])
    assert (len(imagined.nodes), imagined.links) == (3, ())


@pytest.mark.parametrize(
    ("device_name", "product"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GB10", "GB10"),
        ("Apple M4 Max", "M4Max"),
        ("Apple M4", "M4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Some New GPU", None),
    ],
)
def test_device_names_are_recognised(device_name: str, product: str | None) -> None:
    """By the names drivers report."""
    known = known_accelerator(device_name)
    assert (known.name if known else None) == product


def test_the_example_of_the_documentation() -> None:
    """It reads, and it plans."""
    snapshot = fleet_from_mapping(yaml.safe_load(EXAMPLE.read_text()))
    assert [node.name for node in snapshot.nodes] == ["gpu-1", "mac-1", "mac-2", "cpu-1"]
    gpu = snapshot.nodes[0]
    assert [device.used_bytes for device in gpu.devices] == [2 * GIB, 0]
    assert snapshot.nodes[3].role is Role.FULL
    assert any(link.bandwidth_bytes_per_s == 5e9 for link in snapshot.links)
    assert plan(snapshot, card(backends=("mlx",)), ask()).best is not None


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ([], "fleet is []; expected a mapping with nodes, links"),
        ({}, "fleet.nodes is empty"),
        ({"nodes": [], "link": []}, "fleet.link is not a field; accepted are nodes, links"),
        ({"nodes": {"a": 1}}, "fleet.nodes is {'a': 1}; accepted: a list"),
        ({"nodes": [{"ram": "8GiB"}]}, "nodes[0].name is None; accepted: a text"),
        ({"nodes": [{"name": "a"}]}, "nodes[0].ram is None; accepted: a size such as 64GiB"),
        ({"nodes": [{"name": "a", "ram": 64}]}, "nodes[0].ram is 64; accepted: a size"),
        ({"nodes": [{"name": "a", "ram": "64 parsecs"}]}, "nodes[0].ram is '64 parsecs'"),
        ({"nodes": [{"name": "a", "ram": "8GiB", "ram_available": "9GiB"}]}, "at most ram (8GiB)"),
        ({"nodes": [{"name": "a", "ram": "8GiB", "role": "boss"}]}, "accepted: full, management, ffn_only"),
        ({"nodes": [{"name": "a", "ram": "8GiB"}, {"name": "a", "ram": "8GiB"}]}, "'a' occurs twice"),
        (
            {"nodes": [{"name": "a", "ram": "8GiB", "gpus": [{"model": "X9"}]}]},
            "nodes[0].gpus[0].model: 'X9'",
        ),
        (
            {"nodes": [{"name": "a", "ram": "8GiB", "gpus": [{"model": "L4", "count": 0}]}]},
            "nodes[0].gpus[0].count is 0; accepted: a whole number from 1 to 64",
        ),
        (
            {"nodes": [{"name": "a", "ram": "8GiB", "gpus": [{"model": "L4", "used": "30GiB"}]}]},
            "at most the device's memory (22.5 GiB)",
        ),
        (
            {"nodes": [{"name": "a", "ram": "8GiB"}], "links": [{"between": ["a", "b"]}]},
            "different nodes of a",
        ),
        (
            {
                "nodes": [{"name": n, "ram": "8GiB"} for n in "ab"],
                "links": [{"between": ["a", "b"], "rdma": "yes"}],
            },
            "links[0].rdma is 'yes'; accepted: true or false",
        ),
        (
            {
                "nodes": [{"name": n, "ram": "8GiB"} for n in "ab"],
                "links": [{"between": ["a", "b"], "bandwidth": "fast"}],
            },
            "a speed such as 10Gbps or 400GB/s",
        ),
    ],
)
def test_errors_name_the_field_the_value_and_what_is_accepted(described: Any, words: str) -> None:
    """One error per mistake."""
    with pytest.raises(FleetError) as raised:
        fleet_from_mapping(described)
    assert words in str(raised.value)
