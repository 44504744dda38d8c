"""The ready-made vectors of the instances notes, 6.4, that concern placement. Numbers in the names are theirs.

19 is where layers are cut; 21 to 24 and 26 concern running: docs/placement.md says what stands in their place.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.fleets import GIB, ask, card, cpu_server, fleet, gpu_server, mac, mesh
from wharfinger.placement.exact import ExactPlacement, ExactShard, check_exact
from wharfinger.placement.planner import plan
from wharfinger.placement.types import (
    DeviceFacts,
    InstanceMeta,
    LinkFacts,
    MemoryKind,
    NodeFacts,
    PlanResult,
    Role,
    Sharding,
)


def code(result: PlanResult) -> str:
    """The refusal's fine code."""
    assert result.refusal is not None, result.best
    return result.refusal.code


def hosts(result: PlanResult) -> tuple[str, ...]:
    """Nodes of the best plan."""
    assert result.best is not None, result.refusal
    return result.best.node_ids


def test_v01_storage_equal_to_free_memory_is_refused_and_with_headroom_placed() -> None:
    """1 (and report 29): an exact fit of the weights is no fit."""
    model = card(n_layers=32, layer_mib=256)  # 8 GiB
    assert code(
        plan(fleet(cpu_server("a", 64, 8)), card(backends=("llama_cpp-cpu",), layer_mib=256), ask())
    ) == ("memory_short")
    assert code(plan(fleet(mac("a", 64, 8)), model, ask())) == "memory_short"
    assert hosts(plan(fleet(mac("a", 64, 13)), model, ask())) == ("a",)


def test_v02_exclude_one_of_two_gives_the_other_and_both_refuse() -> None:
    """2. The published refusal warns that node ids change on restart; ours are stable and it does not."""
    two = fleet(mac("a"), mac("b"))
    assert hosts(plan(two, card(), ask(excluded_node_ids={"a"}))) == ("b",)
    both = plan(two, card(), ask(excluded_node_ids={"a", "b"}))
    assert code(both) == "all_nodes_excluded"
    assert both.refusal is not None
    assert [node.code for node in both.refusal.nodes] == ["node_excluded", "node_excluded"]
    assert {suggestion.kind for suggestion in both.refusal.suggestions} >= {"drop_exclusion"}


def test_v03_too_few_nodes_refuses_but_missing_edges_and_memory_are_pending() -> None:
    """3."""
    assert code(plan(fleet(mac("a"), mac("b")), card(), ask(min_nodes=3))) == "too_few_nodes"
    no_links = plan(fleet(mac("a"), mac("b")), card(), ask(min_nodes=2))
    assert code(no_links) == "links_unknown"
    assert no_links.refusal is not None
    assert no_links.refusal.category == "placement_info_pending"
    assert {(node.node_id, node.missing_facts) for node in no_links.refusal.nodes} == {
        ("a", ("links",)),
        ("b", ("links",)),
    }
    unmeasured = replace(mac("a"), ram_available_bytes=None)
    result = plan(fleet(unmeasured), card(), ask())
    assert code(result) == "memory_unknown"
    assert result.refusal is not None
    assert result.refusal.category == "placement_info_pending"
    assert result.refusal.nodes[0].missing_facts == ("ram_available_bytes",)


def test_v04_the_better_link_wins_not_the_leaf() -> None:
    """4. Published: of equal cycles those with a leaf node win, before engine, files and memory.

    A leaf says nothing about speed or memory. Ours: of sets with equal machines the faster links win.
    """
    nodes = [mac(name, 24) for name in ("a", "b", "c")]
    links = [*mesh("a", "b", interface="ethernet")]
    links = [replace(link, bandwidth_bytes_per_s=1e8, latency_s=0.001) for link in links]
    quick = [replace(link, bandwidth_bytes_per_s=5e9, latency_s=0.0001) for link in mesh("b", "c")]
    result = plan(fleet(*nodes, links=[*links, *quick]), card(layer_mib=700), ask())
    assert sorted(hosts(result)) == ["b", "c"]


def test_v05_rdma_mesh_of_three() -> None:
    """5: N x N names, null diagonal, coordinator at rank 0."""
    names = ("a", "b", "c")
    trio = fleet(*(mac(name) for name in names), links=mesh(*names, rdma=True))
    best = plan(trio, card(), ask(min_nodes=3, meta=InstanceMeta.JACCL)).best
    assert best is not None
    assert best.meta is InstanceMeta.JACCL
    matrix = best.rdma_interfaces
    assert [row[i] for i, row in enumerate(matrix)] == [None, None, None]
    assert matrix[0][1] == f"rdma_{best.node_ids[0]}_{best.node_ids[1]}"
    assert all(name for i, row in enumerate(matrix) for j, name in enumerate(row) if i != j)
    assert best.coordinators[best.node_ids[0]] == ("0.0.0.0", best.port)
    assert set(best.coordinators) == set(names)


def test_v06_the_window_is_stamped_by_the_planner_and_an_exact_placement_is_stamped_anew() -> None:
    """6. What a client asks for is a cap: less is kept, more is lowered to what the planner gives."""
    model = card(context_length=16384)
    planned = plan(fleet(mac("a")), model, ask()).best
    assert planned is not None
    assert planned.context_tokens == planned.max_context_tokens == 16384
    for given, stamped in ((4096, 4096), (16384, 16384), (1048576, 16384)):
        placement = ExactPlacement((ExactShard("a", 0, 32),), context_tokens=given)
        checked = check_exact(fleet(mac("a")), model, placement, ask()).best
        assert checked is not None
        assert checked.context_tokens == stamped


@pytest.mark.parametrize(
    ("node", "tag", "context_length", "stamped"),
    [
        (mac("a"), "mlx-metal", 65536, 65536),
        (cpu_server("a"), "llama_cpp-cpu", 65536, 32768),
        (cpu_server("a"), "llama_cpp-cpu", 4096, 4096),
        (mac("a"), "mlx-metal", 0, 356864),
    ],
)
def test_v06_an_instance_without_a_window_is_given_one(
    node: NodeFacts, tag: str, context_length: int, stamped: int
) -> None:
    """6, back-fill of an old instance, which here is an exact placement without a window.

    MLX gets the card's. Published: 8,192 for engines that reserve theirs; right: the fleet's default where it fits.
    Published: a card that names no window leaves the instance without one; right: what memory holds, and flagged.
    """
    model = card(layer_mib=100, context_length=context_length, backends=(tag,))
    checked = check_exact(fleet(node), model, ExactPlacement((ExactShard("a", 0, 32),)), ask()).best
    assert checked is not None
    assert checked.context_tokens == stamped
    assert ("context_length_unknown" in checked.flags) is (context_length == 0)


def test_v07_the_backend_is_stamped_and_unknown_engines_are_pending() -> None:
    """7. Published: null backend while node resources are unknown. Ours: pending, a plan always names its backend."""
    best = plan(fleet(mac("a")), card(), ask()).best
    assert best is not None
    assert best.ranks[0].backend == "mlx-metal"
    unknown = plan(fleet(replace(mac("a"), backends=None)), card(), ask())
    assert code(unknown) == "engines_unknown"


@pytest.mark.parametrize(
    ("files_a", "files_b", "winner"),
    [(0.0, 1.0, "b"), (0.2, 0.7, "b"), (1.0, 0.0, "a"), (0.0, 0.0, "a")],
)
def test_v08_files_already_there_win_between_equal_nodes(files_a: float, files_b: float, winner: str) -> None:
    """8: complete beats none, more beats less; without any the id decides."""
    nodes = (
        mac("a", local_artifacts={"tests/dense": files_a}),
        mac("b", local_artifacts={"tests/dense": files_b}),
    )
    assert hosts(plan(fleet(*nodes), card(), ask())) == (winner,)


def test_v09_a_management_node_is_never_used() -> None:
    """9. ``ffn_only`` is declared by the contract too; it is honoured as not serving."""
    for role in (Role.MANAGEMENT, Role.FFN_ONLY):
        assert hosts(plan(fleet(mac("a", role=role), mac("b")), card(), ask())) == ("b",)
        assert code(plan(fleet(mac("a", role=role)), card(), ask())) == "role_not_serving"


def test_v10_an_incompatible_backend_is_never_used() -> None:
    """10. Published: missing resources count as eligible. Ours: pending, never assumed."""
    only = fleet(gpu_server("a", backends=("vllm-cuda",)), mac("b"))
    assert hosts(plan(only, card(), ask())) == ("b",)
    assert code(plan(fleet(gpu_server("a", backends=("vllm-cuda",))), card(), ask())) == "engine_missing"


def test_v11_repair_goes_wider_by_asking_for_one_more_node() -> None:
    """11: the planner's part. At full width asking for more is a hard refusal."""
    pair = fleet(mac("a"), mac("b"), links=mesh("a", "b"))
    assert len(hosts(plan(pair, card(), ask(min_nodes=2)))) == 2
    assert code(plan(pair, card(), ask(min_nodes=3))) == "too_few_nodes"


def test_v12_llama_cpp_does_not_span_but_an_mlx_card_does() -> None:
    """12."""
    servers = fleet(gpu_server("a"), gpu_server("b"), links=mesh("a", "b"))
    in_process = card(backends=("llama_cpp-cuda",))
    assert code(plan(servers, in_process, ask(min_nodes=2))) == "engine_cannot_span"
    assert len(hosts(plan(servers, in_process, ask()))) == 1
    hybrid = card(backends=("llama_cpp-cuda", "mlx"))
    macs = fleet(mac("a"), mac("b"), links=mesh("a", "b"))
    assert hosts(plan(macs, hybrid, ask(min_nodes=2))) == ("a", "b")
    mixed = fleet(mac("a"), gpu_server("b"), links=mesh("a", "b"))
    assert code(plan(mixed, hybrid, ask(min_nodes=2))) == "no_common_engine"


def test_v13_tensor_on_an_uneven_pair_whose_sum_fits_is_refused() -> None:
    """13 (and report 28): memory of nodes is never summed."""
    model = card(layer_mib=960)  # 30 GiB, 15 a rank
    uneven = fleet(mac("a", 48), mac("b", 16), links=mesh("a", "b"))
    refused = plan(uneven, model, ask(min_nodes=2, sharding=Sharding.TENSOR))
    assert code(refused) == "memory_short"
    assert refused.refusal is not None
    assert [node.node_id for node in refused.refusal.nodes if node.short_by_bytes] == ["b"]
    assert plan(uneven, model, ask(min_nodes=2)).best is not None  # a pipeline follows the memory


def test_v14_the_pipeline_follows_usable_memory_not_free_memory() -> None:
    """14: 0.75 of the RAM caps a node whose free memory is larger than that."""
    model = card(n_layers=30, layer_mib=1024)
    pair = fleet(mac("a", 48, 48), mac("b", 64, 18), links=mesh("a", "b"))  # usable 36 and 18
    best = plan(pair, model, ask(min_nodes=2)).best
    assert best is not None
    assert {rank.node_id: rank.end_layer - rank.start_layer for rank in best.ranks} == {"a": 20, "b": 10}


def apu(vram_gib: float, gtt_gib: float | None, ram_gib: float) -> NodeFacts:
    """An AMD machine with a carve-out."""
    kind = MemoryKind.DISCRETE if gtt_gib is None else MemoryKind.APU
    device = DeviceFacts(
        0,
        "AMD Radeon 8060S",
        "vulkan",
        kind,
        total_bytes=int(vram_gib * GIB),
        used_bytes=0,
        gtt_total_bytes=None if gtt_gib is None else int(gtt_gib * GIB),
    )
    ram = int(ram_gib * GIB)
    return NodeFacts("apu", "apu", ram_total_bytes=ram, ram_available_bytes=ram, devices=(device,),
                     backends=frozenset({"llama_cpp-vulkan"}))  # fmt: skip


def test_v15_each_memory_kind_has_its_own_pool() -> None:
    """15 (and report 31): VRAM admits what RAM would refuse and the other way round; an APU has VRAM and GTT."""
    model = card(backends=("llama_cpp-cuda", "llama_cpp-cpu"), layer_mib=500)  # 15.6 GiB
    small_ram = gpu_server("a", (24,), ram_gib=8)
    assert plan(fleet(small_ram), model, ask()).best is not None
    small_vram = gpu_server("a", (8,), ram_gib=64)
    assert code(plan(fleet(small_vram), model, ask())) == "memory_short"
    on_cpu = plan(
        fleet(replace(small_vram, backends=frozenset({"llama_cpp-cuda", "llama_cpp-cpu"}))), model, ask()
    )
    assert on_cpu.best is not None
    assert on_cpu.best.ranks[0].backend == "llama_cpp-cpu"  # fall-through to the next launchable backend
    large = card(backends=("llama_cpp-vulkan",), layer_mib=1600)  # 50 GiB
    assert plan(fleet(apu(8, 110, 112)), large, ask()).best is not None
    assert code(plan(fleet(apu(8, None, 112)), large, ask())) == "memory_short"


def test_v16_the_cache_decides_an_otherwise_fitting_case() -> None:
    """16: the same weights with eight times the KV heads no longer fit."""
    narrow, wide = card(layer_mib=256, kv_heads=4), card(layer_mib=256, kv_heads=32)
    node = mac("a", 15)
    assert plan(fleet(node), narrow, ask()).best is not None
    assert code(plan(fleet(node), wide, ask())) == "memory_short"


def test_v17_ring_hosts_and_a_missing_path() -> None:
    """17: myself is 0.0.0.0, neighbours have addresses, others stand as TEST-NET-2; no path is a refusal."""
    names = ("a", "b", "c", "d")
    best = plan(fleet(*(mac(n) for n in names), links=mesh(*names)), card(), ask(min_nodes=4)).best
    assert best is not None
    row = best.hosts_by_node[best.node_ids[0]]
    assert row[0] == ("0.0.0.0", best.port)
    assert row[2] == ("198.51.100.1", 0)
    assert row[1][1] == row[3][1] == best.port
    line = [*mesh("a", "b"), *mesh("b", "c")]
    broken = plan(fleet(mac("a"), mac("b"), mac("c"), links=line), card(), ask(min_nodes=3))
    assert code(broken) == "link_missing"


@pytest.mark.parametrize(("width", "cut"), [(2, [0, 16]), (3, [0, 11, 22]), (4, [0, 8, 16, 24])])
def test_v18_classifier_free_guidance_is_a_plain_pipeline(width: int, cut: list[int]) -> None:
    """18. Published: two branches at 2 and 4 nodes, a plain pipeline at 3. That shape is not made: see the page."""
    names = ("a", "b", "c", "d")[:width]
    members = fleet(*(mac(name) for name in names), links=mesh(*names))
    best = plan(members, card(uses_cfg=True), ask(min_nodes=width)).best
    assert best is not None
    assert [rank.start_layer for rank in best.ranks] == cut
    assert best.ranks[-1].end_layer == 32


def test_v20_preference_order() -> None:
    """20: the preferred backend ranks a node first; one that has only the fallback comes after."""
    model = card(backends=("vllm-cuda", "llama_cpp-cuda"), layer_mib=100)
    result = plan(fleet(gpu_server("a"), gpu_server("b", backends=("vllm-cuda",))), model, ask())
    assert [(p.node_ids[0], p.ranks[0].backend) for p in result.plans] == [
        ("b", "vllm-cuda"),
        ("a", "llama_cpp-cuda"),
    ]
    assert [p.score[1].value for p in result.plans] == [2, 1]


def test_v25_rpc_driver_is_the_big_card_and_donors_need_a_routable_address() -> None:
    """25: a model too large for 57.6 GB of VRAM takes 28.8 GB more from a donor.

    Published: 55 GB of weights, which a 10 % allowance pushes past the big card. By exact parts 55 GiB fit it alone,
    so the model here is 58.6 GiB.
    """
    model = card(backends=("llama_server-cuda",), n_layers=48, layer_mib=1250, kv_heads=2)
    pair = (
        gpu_server("small", (32,), backends=("llama_server-cuda",)),
        gpu_server("big", (64,), backends=("llama_server-cuda",)),
    )
    links = (
        LinkFacts("big", "small", "thunderbolt", "10.9.0.2"),
        LinkFacts("big", "small", "ethernet", "192.168.1.2"),
        LinkFacts("small", "big", "ethernet", "192.168.1.1"),
    )
    best = plan(fleet(*pair, links=links), model, ask()).best
    assert best is not None
    assert best.meta is InstanceMeta.RPC
    driver, donor = best.ranks
    assert (driver.node_id, driver.start_layer, driver.end_layer) == ("big", 0, 48)
    assert (donor.node_id, donor.start_layer, donor.end_layer) == ("small", 0, 0)
    assert best.hosts_by_node == {"small": (("10.9.0.2", best.port),)}
    # What is really charged: the donor's devices hold the first layers, the driver's the rest.
    assert donor.charges[0].start_layer == 0
    assert donor.charges[0].end_layer == driver.charges[0].start_layer
    assert driver.charges[0].end_layer == 48
    local = (
        LinkFacts("big", "small", "thunderbolt", "169.254.0.2"),
        LinkFacts("small", "big", "wifi", "169.254.0.1"),
    )
    assert code(plan(fleet(*pair, links=local), model, ask(min_nodes=2))) == "no_routable_address"
