"""The planner against brute force on small fleets: every node set, every order, every contiguous cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from support.fleets import ask, card, fleet, gpu_server, mac, mesh
from wharfinger.catalog.card import ModelCard
from wharfinger.placement import memory
from wharfinger.placement.memory import ShardShape
from wharfinger.placement.planner import plan
from wharfinger.placement.types import NodeFacts, Plan, ServingSettings

TAG = "mlx-metal"
SETTINGS = ServingSettings()
LAYERS = st.lists(st.integers(200, 2500), min_size=3, max_size=7).map(tuple)


def need(model: ModelCard, tag: str, start: int, end: int) -> int:
    """Bytes of a rank at the planning window."""
    shape = ShardShape(start, end, first=start == 0, last=end == model.n_layers)
    return memory.footprint(model, tag, shape, 8192, SETTINGS).device_bytes


def feasible_at(model: ModelCard, tag: str, usable: Sequence[int], width: int) -> bool:
    """Whether any ``width`` pools, in any order and with any cut, hold the model."""
    n_layers = model.n_layers
    for chosen in combinations(usable, width):
        for order in permutations(chosen):
            for cuts in combinations(range(1, n_layers), width - 1):
                edges = (0, *cuts, n_layers)
                if all(need(model, tag, edges[i], edges[i + 1]) <= order[i] for i in range(width)):
                    return True
    return False


@settings(max_examples=60)
@given(
    LAYERS, st.lists(st.integers(2, 14), min_size=1, max_size=4), st.integers(0, 1500), st.integers(0, 1500)
)
def test_width_and_feasibility_agree_with_brute_force(
    layers: tuple[int, ...], rams: list[int], embedding: int, output: int
) -> None:
    """Fully linked Macs: the planner finds a plan exactly when there is one, and the narrowest."""
    model = card(layer_mib=layers, embedding_mib=embedding, output_mib=output, n_layers=len(layers))
    names = [f"n{i}" for i in range(len(rams))]
    nodes = [mac(name, ram) for name, ram in zip(names, rams, strict=True)]
    usable = [pool(node) for node in nodes]
    result = plan(fleet(*nodes, links=mesh(*names)), model, ask())
    widths = [
        w for w in range(1, len(rams) + 1) if w <= model.n_layers and feasible_at(model, TAG, usable, w)
    ]
    if not widths:
        assert result.refusal is not None
        assert result.refusal.category == "no_valid_placement"
    else:
        assert result.best is not None, (result.refusal, widths)
        assert len(result.best.ranks) == widths[0]


def pool(node: NodeFacts) -> int:
    """Usable bytes of a Mac."""
    size = memory.usable(node, TAG, ())[0].usable_bytes
    assert size is not None
    return size


@settings(max_examples=60)
@given(LAYERS, st.lists(st.integers(2, 10), min_size=1, max_size=3), st.integers(0, 1000))
def test_devices_of_one_node_agree_with_brute_force(
    layers: tuple[int, ...], vrams: list[int], output: int
) -> None:
    """llama.cpp over several devices in index order: device by device, never summed, fewest devices first."""
    model = card(layer_mib=layers, output_mib=output, backends=("llama_cpp-cuda",), n_layers=len(layers))
    node = gpu_server("a", vrams)
    tag = "llama_cpp-cuda"
    usable = [each.usable_bytes or 0 for each in memory.usable(node, tag, ())]
    by_size = sorted(range(len(usable)), key=lambda i: (-usable[i], i))

    def holds(count: int) -> bool:
        order = [usable[i] for i in sorted(by_size[:count])]
        return any(
            all(need(model, tag, edges[i], edges[i + 1]) <= order[i] for i in range(count))
            for cuts in combinations(range(1, model.n_layers), count - 1)
            for edges in ((0, *cuts, model.n_layers),)
        )

    counts = [count for count in range(1, len(vrams) + 1) if count <= model.n_layers and holds(count)]
    best = plan(fleet(node), model, ask()).best
    assert (best is not None) is bool(counts)
    if best is not None:
        used = [charge for charge in best.ranks[0].charges if charge.device_index is not None]
        assert len(used) == counts[0]


def most_even(model: ModelCard, usable: Sequence[int]) -> list[int]:
    """Layers per rank that bring the fullest rank as low as possible, by CP-SAT (per cent of 100,000)."""
    solver_model = cp_model.CpModel()
    n = model.n_layers
    counts = [solver_model.new_int_var(1, n, f"c{i}") for i in range(len(usable))]
    solver_model.add(sum(counts) == n)
    assert model.weights is not None
    layer = model.weights.layer_bytes[0] // 2**20
    peak = solver_model.new_int_var(0, 10**9, "peak")
    for count, bytes_ in zip(counts, usable, strict=True):
        solver_model.add(peak * (bytes_ // 2**20) >= count * layer * 100_000)
    solver_model.minimize(peak)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    assert solver.solve(solver_model) == cp_model.OPTIMAL
    return [solver.value(count) for count in counts]


@settings(max_examples=15)
@given(st.lists(st.sampled_from([24, 32, 48, 64, 96, 128]), min_size=2, max_size=4), st.integers(12, 60))
def test_the_split_is_within_a_layer_of_the_most_even_one(rams: list[int], n_layers: int) -> None:
    """Equal layers with room to spare: proportional to usable memory is what keeps the fullest rank lowest."""
    model = card(n_layers=n_layers, layer_mib=240, kv_heads=1)
    names = [f"n{i}" for i in range(len(rams))]
    nodes = [mac(name, ram) for name, ram in zip(names, rams, strict=True)]
    best = plan(fleet(*nodes, links=mesh(*names)), model, ask(min_nodes=len(rams))).best
    assert best is not None
    ideal = most_even(model, [pool(node) for node in nodes])
    got = layers_by_node(best)
    total = sum(pool(node) for node in nodes)
    for name, node, even in zip(names, nodes, ideal, strict=True):
        share = n_layers * pool(node) / total
        # Where several cuts share the lowest peak, CP-SAT may pick any: the exact share is the tie-breaker.
        assert min(abs(got[name] - even), abs(got[name] - share)) <= 1


def layers_by_node(best: Plan) -> dict[str, int]:
    """Layers of each node."""
    return {rank.node_id: rank.end_layer - rank.start_layer for rank in best.ranks}
