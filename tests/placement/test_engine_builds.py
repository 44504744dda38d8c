"""Cards that need certain builds of an engine: refused, pending, or served by the next backend."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from support.fleets import ask, card, cpu_server, fleet, gpu_server, mesh
from wharfinger.catalog.card import EngineBuilds, ModelCard
from wharfinger.placement.exact import ExactPlacement, ExactShard, check_exact
from wharfinger.placement.planner import plan
from wharfinger.placement.types import NodeFacts, PlanResult

TAGS = ("vllm-cuda", "llama_cpp-cuda")


def needing(builds: Mapping[str, tuple[str, ...]], *tags: str) -> ModelCard:
    """A card with that preference which runs with those builds only."""
    model = card(backends=tags, layer_mib=100)
    needs = tuple(EngineBuilds(engine=engine, builds=each) for engine, each in builds.items())
    return model.model_copy(update={"placement": model.placement.model_copy(update={"engine_builds": needs})})


def server(name: str = "a", tags: tuple[str, ...] = TAGS, **builds: str) -> NodeFacts:
    """A GPU server with builds by engine."""
    return gpu_server(name, backends=tags, engine_builds=builds)


VLLM = needing({"vllm": ("0.31.0", "0.32.0")}, *TAGS)
ONLY_VLLM = needing({"vllm": ("0.31.0", "0.32.0")}, "vllm-cuda")


def told(result: PlanResult) -> tuple[str, str, str]:
    """Code, category and the first node's message."""
    assert result.refusal is not None, result.best
    return result.refusal.code, result.refusal.category, result.refusal.nodes[0].message


def test_a_build_the_card_names_is_taken_and_stamped() -> None:
    """Engines that the card does not list are free."""
    best = plan(fleet(server(vllm="0.32.0")), VLLM, ask()).best
    assert best is not None
    assert (best.ranks[0].backend, best.ranks[0].engine_build) == ("vllm-cuda", "0.32.0")


def test_another_build_is_refused() -> None:
    """Build strings are compared exactly."""
    result = plan(fleet(server(vllm="0.32.0.post1")), ONLY_VLLM, ask())
    assert told(result) == (
        "engine_build",
        "no_valid_placement",
        "a has vllm 0.32.0.post1; the card runs with vllm 0.31.0 or 0.32.0",
    )
    assert result.refusal is not None
    assert result.refusal.message == "0/1 nodes can run this: 1 with another build of the engine"


def test_an_unknown_build_is_pending() -> None:
    """Also where another node is a plain no."""
    result = plan(fleet(server(), cpu_server("b")), ONLY_VLLM, ask())
    assert told(result) == (
        "engine_build_unknown",
        "placement_info_pending",
        "a has vllm of unknown build; the card runs with vllm 0.31.0 or 0.32.0",
    )
    assert result.refusal is not None
    assert result.refusal.nodes[0].missing_facts == ("engine_builds[vllm]",)
    assert "1 has not reported builds yet (a: engine_builds[vllm])" in result.refusal.message


@pytest.mark.parametrize("builds", [{}, {"vllm": "0.30.0"}])
def test_the_next_backend_is_taken(builds: dict[str, str]) -> None:
    """Of another build or an unknown one alike: an engine does not tell its build later."""
    best = plan(
        fleet(gpu_server("a", backends=TAGS, engine_builds={"llama_cpp": "b1"} | builds)), VLLM, ask()
    ).best
    assert best is not None
    assert (best.ranks[0].backend, best.ranks[0].engine_build) == ("llama_cpp-cuda", "b1")


def test_every_rank_of_a_set_has_such_a_build() -> None:
    """The node of another build is left out of the set, and exact placements are held to the same."""
    names = ("a", "b", "c")
    builds = {"a": "0.32.0", "b": "0.30.0", "c": "0.31.0"}
    snapshot = fleet(*(server(name, ("vllm-cuda",), vllm=builds[name]) for name in names), links=mesh(*names))
    result = plan(snapshot, ONLY_VLLM, ask(min_nodes=2))
    assert result.best is not None
    assert set(result.best.node_ids) == {"a", "c"}
    assert {node.node_id: node.code for node in result.node_refusals} == {"b": "engine_build"}
    given = ExactPlacement((ExactShard("a", 0, 16), ExactShard("b", 16, 32)))
    assert told(check_exact(snapshot, ONLY_VLLM, given, ask()))[0] == "engine_build"


@pytest.mark.parametrize("named", ["vllm-cuda", "vllm"])
def test_an_exact_placement_on_another_build_says_so(named: str) -> None:
    """The node could run it with another engine; the named one is of the wrong build."""
    given = ExactPlacement((ExactShard("a", 0, 32, named),))
    result = check_exact(fleet(server(vllm="0.30.0")), VLLM, given, ask())
    assert told(result)[::2] == (
        "engine_build",
        "a has vllm 0.30.0; the card runs with vllm 0.31.0 or 0.32.0",
    )


def test_the_field_is_optional_and_never_empty() -> None:
    """A card without it keeps the identity it had; a list of no builds is a mistake."""
    assert "engineBuilds" not in card().canonical_json()
    assert '"engineBuilds":[{"engine":"vllm","builds":["0.31.0","0.32.0"]}]' in VLLM.canonical_json()
    with pytest.raises(ValidationError, match="at least 1 item"):
        EngineBuilds(engine="vllm", builds=())
