"""Unlike machines that share a model: one engine, each with its own backend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.fleets import ask, card, fleet, gpu_server, mac, mesh
from wharfinger.catalog.card import Companion
from wharfinger.placement.memory import ShardShape, footprint
from wharfinger.placement.planner import plan
from wharfinger.placement.types import InstanceMeta, NodeFacts, ServingSettings

RPC = ("llama_server",)


def rpc_mac(name: str, ram_gib: float) -> NodeFacts:
    """A Mac that runs llama-server with Metal."""
    return mac(name, ram_gib, backends=frozenset({"llama_server-metal"}))


def test_a_gpu_and_a_mac_share_a_model_over_rpc() -> None:
    """Instances notes 2.2 step 6: one common engine, and 2.8: each node stamps its own backend."""
    nodes = (gpu_server("gpu", backends=("llama_server-cuda",)), rpc_mac("mac", 24))
    model = card(backends=RPC, layer_mib=900)
    chosen = plan(fleet(*nodes, links=mesh("gpu", "mac")), model, ask()).best
    assert chosen is not None
    assert chosen.meta is InstanceMeta.RPC
    assert {rank.node_id: rank.backend for rank in chosen.ranks} == {
        "gpu": "llama_server-cuda",
        "mac": "llama_server-metal",
    }
    for rank in chosen.ranks:
        charge = next(c for c in rank.charges if c.end_layer)
        shape = ShardShape(
            charge.start_layer,
            charge.end_layer,
            first=rank.rank == 0,
            last=charge.end_layer == model.n_layers,
        )
        own = footprint(model, rank.backend, shape, 8192, ServingSettings())
        weights = {part.name: part.size_bytes for part in own.parts}["weights"]
        assert {part.name: part.size_bytes for part in charge.parts}["weights"] == weights


@pytest.mark.parametrize("tags", [{"mlx"}, {"mlx", "mlx-metal"}])
def test_a_bare_engine_is_that_engine(tags: set[str]) -> None:
    """Macs that advertise ``mlx`` and Macs that also name its compute run one ring."""
    nodes = (mac("a", 24), mac("b", 24, backends=frozenset(tags)))
    chosen = plan(fleet(*nodes, links=mesh("a", "b")), card(layer_mib=700), ask()).best
    assert chosen is not None
    assert chosen.node_ids == ("a", "b")
    expected = "mlx-metal" if "mlx-metal" in tags else "mlx"
    assert [rank.backend for rank in chosen.ranks] == ["mlx-metal", expected]


def test_a_vision_projector_over_rpc_needs_one_accelerator() -> None:
    """Instances notes 2.2 step 8."""
    projector = Companion(role="projector", file="mmproj.gguf", weight_bytes=1 << 29)
    model = card(backends=RPC, layer_mib=900, companions=(projector,))
    gpu = gpu_server("gpu", backends=("llama_server-cuda",))
    refusal = plan(fleet(gpu, rpc_mac("mac", 24), links=mesh("gpu", "mac")), model, ask(min_nodes=2)).refusal
    assert refusal is not None
    assert refusal.code == "no_common_engine"
    both = fleet(gpu, replace(gpu, node_id="gpu2", name="gpu2"), links=mesh("gpu", "gpu2"))
    assert plan(both, model, ask(min_nodes=2)).plans


def test_a_set_of_one_backend_is_preferred_to_unlike_machines_of_a_lesser_one() -> None:
    """The place in the card's preference is that of the least preferred member."""
    order = ("llama_server-cuda", "llama_server-metal")
    nodes = (*(gpu_server(n, backends=order[:1]) for n in "ab"), rpc_mac("mac", 64))
    model = card(backends=order, layer_mib=900)
    result = plan(fleet(*nodes, links=mesh("a", "b", "mac")), model, ask(min_nodes=2))
    assert result.best is not None
    assert set(result.best.node_ids) == {"a", "b"}


def test_vllm_is_not_spread_over_different_accelerators() -> None:
    """Its ranks talk over one accelerator's library."""
    amd = gpu_server("amd", backends=("vllm-rocm",))
    amd = replace(amd, devices=tuple(replace(device, compute="rocm") for device in amd.devices))
    pair = fleet(gpu_server("nvidia", backends=("vllm-cuda",)), amd, links=mesh("nvidia", "amd"))
    refusal = plan(pair, card(backends=("vllm",)), ask(min_nodes=2)).refusal
    assert refusal is not None
    assert refusal.code == "no_common_engine"
