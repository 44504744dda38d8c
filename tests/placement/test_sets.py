"""Node sets: which engines span, which sets are found in larger fleets, who drives, what required nodes mean."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from support.fleets import ask, card, fleet, gpu_server, mac, mesh
from wharfinger.placement import memory
from wharfinger.placement.memory import ShardShape
from wharfinger.placement.planner import plan
from wharfinger.placement.types import InstanceMeta, LinkFacts, Plan, PlanResult, ServingSettings, Sharding


def best(result: PlanResult) -> Plan:
    """The plan, or a failure that shows the refusal."""
    assert result.best is not None, result.refusal
    return result.best


def capacity(usable: int, layer_mib: int) -> int:
    """Most equal layers a Mac holds at the planning window."""
    model = card(n_layers=200, layer_mib=layer_mib)
    held = 0
    while held < 200:
        shape = ShardShape(1, 2 + held, first=False, last=False)
        if memory.footprint(model, "mlx-metal", shape, 8192, ServingSettings()).device_bytes > usable:
            break
        held += 1
    return held


@settings(max_examples=25)
@given(st.lists(st.integers(8, 40), min_size=13, max_size=16), st.integers(400, 900), st.integers(40, 160))
def test_the_narrowest_width_is_found_in_larger_fleets(
    rams: list[int], layer_mib: int, n_layers: int
) -> None:
    """13 to 16 fully linked Macs: far more sets than are tried, yet the width agrees with the largest capacities."""
    names = [f"n{i:02d}" for i in range(len(rams))]
    nodes = [mac(name, ram) for name, ram in zip(names, rams, strict=True)]
    model = card(n_layers=n_layers, layer_mib=layer_mib)
    room = sorted((capacity(ram * 3 * 2**28, layer_mib) for ram in rams), reverse=True)
    widths = [k for k in range(1, len(room) + 1) if sum(room[:k]) >= n_layers and room[k - 1] > 0]
    result = plan(fleet(*nodes, links=mesh(*names)), model, ask())
    assert (len(result.best.ranks) if result.best else None) == (widths[0] if widths else None)


def test_sets_are_found_inside_racks_that_are_not_linked_with_each_other() -> None:
    """Four racks of five; only the last has the memory."""
    racks = [[f"r{rack}n{i}" for i in range(5)] for rack in range(4)]
    nodes = [mac(name, 40 if name.startswith("r3") else 16) for rack in racks for name in rack]
    links = [link for rack in racks for link in mesh(*rack)]
    chosen = best(plan(fleet(*nodes, links=links), card(n_layers=60, layer_mib=1500), ask()))
    assert {node[:2] for node in chosen.node_ids} == {"r3"}


def test_vllm_over_ray_needs_every_pair_linked() -> None:
    """A ring of four is enough for MLX and not for vLLM."""
    names = ("a", "b", "c", "d")
    ring = [link for pair in (("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")) for link in mesh(*pair)]
    servers = [gpu_server(name, backends=("vllm-cuda",)) for name in names]
    model = card(backends=("vllm-cuda",))
    refusal = plan(fleet(*servers, links=ring), model, ask(min_nodes=4)).refusal
    assert refusal is not None
    assert refusal.code == "link_missing"
    assert len(best(plan(fleet(*servers, links=mesh(*names)), model, ask(min_nodes=4))).ranks) == 4
    macs = [mac(name) for name in names]
    assert len(best(plan(fleet(*macs, links=ring), card(), ask(min_nodes=4))).ranks) == 4


def test_vllm_tensor_over_nodes_uses_the_same_number_of_devices_on_each() -> None:
    """Two nodes with 2 and 4 devices: 2 each, every device a quarter."""
    servers = (
        gpu_server("a", (24, 24), backends=("vllm-cuda",)),
        gpu_server("b", (24,) * 4, backends=("vllm-cuda",)),
    )
    model = card(
        backends=("vllm-cuda",), layer_mib=1500, n_layers=40
    )  # 58.6 GiB: a half exceeds 21.6, a quarter fits
    chosen = best(
        plan(fleet(*servers, links=mesh("a", "b")), model, ask(min_nodes=2, sharding=Sharding.TENSOR))
    )
    devices = [[c.device_index for c in rank.charges if c.device_index is not None] for rank in chosen.ranks]
    assert devices == [[0, 1], [0, 1]]


def test_between_equal_drivers_the_one_with_more_of_the_files_drives() -> None:
    """Instances notes 2.5."""
    model = card(backends=("llama_server-cuda",), layer_mib=900, n_layers=40)
    servers = [gpu_server(name, backends=("llama_server-cuda",)) for name in ("a", "b")]
    pair = fleet(servers[0], replace(servers[1], local_artifacts={model.model_id: 0.5}), links=mesh("a", "b"))
    assert best(plan(pair, model, ask())).node_ids == ("b", "a")


def test_a_driver_must_reach_its_donors_and_donors_need_no_links_among_themselves() -> None:
    """A star: the largest node is out as driver when it does not reach both."""
    model = card(backends=("llama_server-cuda",), layer_mib=1000, n_layers=50)
    servers = [
        gpu_server("big", (32,), backends=("llama_server-cuda",)),
        gpu_server("hub", (24,), backends=("llama_server-cuda",)),
        gpu_server("leaf", (24,), backends=("llama_server-cuda",)),
    ]
    links = [
        LinkFacts("hub", "big", "ethernet", "10.0.0.1"),
        LinkFacts("hub", "leaf", "ethernet", "10.0.0.3"),
    ]
    chosen = best(plan(fleet(*servers, links=links), model, ask()))
    assert chosen.node_ids[0] == "hub"
    assert chosen.hosts_by_node == {"big": (("10.0.0.1", chosen.port),), "leaf": (("10.0.0.3", chosen.port),)}


def test_a_more_preferred_backend_over_two_nodes_ranks_before_one_node_with_a_lesser() -> None:
    """Backend preference comes before width; both are listed."""
    model = card(backends=("mlx", "llama_cpp-cpu"), layer_mib=700)
    big_cpu = replace(mac("c", 96), devices=(), backends=frozenset({"llama_cpp-cpu"}))
    result = plan(fleet(mac("a", 24), mac("b", 24), big_cpu, links=mesh("a", "b")), model, ask())
    assert [chosen.node_ids for chosen in result.plans] == [("a", "b"), ("c",)]


def test_required_nodes_pin_the_set() -> None:
    """Also in a fleet with more sets than are tried."""
    names = [f"n{i:02d}" for i in range(14)]
    linked = fleet(*(mac(name) for name in names), links=mesh(*names))
    chosen = best(plan(linked, card(), ask(required_node_ids={"n07", "n11"}, min_nodes=4)))
    assert {"n07", "n11"} < set(chosen.node_ids)
    assert len(chosen.node_ids) == 4
    assert best(plan(linked, card(), ask(required_node_ids={"n07", "n11"}))).node_ids == ("n07", "n11")
    assert best(plan(linked, card(), ask(required_node_ids={"n07"}))).node_ids == ("n07",)


def test_widths_may_be_bounded_from_above() -> None:
    """``max_nodes`` 1 keeps a model that needs two nodes off."""
    pair = fleet(mac("a", 24), mac("b", 24), links=mesh("a", "b"))
    assert len(best(plan(pair, card(layer_mib=700), ask())).ranks) == 2
    refusal = plan(pair, card(layer_mib=700), ask(max_nodes=1)).refusal
    assert refusal is not None
    assert refusal.code == "memory_short"


def test_jaccl_finds_a_wider_mesh_when_the_narrowest_width_has_none() -> None:
    """Published: refused, because the smallest fitting width is taken before RDMA is looked at. Right: the trio."""
    model = card(layer_mib=1100)
    members = [mac(name, 24) for name in ("a", "b", "c")] + [mac("d", 40), mac("e", 40)]
    links = [*mesh("d", "e"), *mesh("a", "b", "c", rdma=True)]
    assert set(best(plan(fleet(*members, links=links), model, ask())).node_ids) == {"d", "e"}
    chosen = best(plan(fleet(*members, links=links), model, ask(meta=InstanceMeta.JACCL)))
    assert set(chosen.node_ids) == {"a", "b", "c"}
