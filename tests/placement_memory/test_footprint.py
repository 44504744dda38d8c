"""Parts of a footprint, and what must hold for every model, engine and window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.model_shapes import SHAPES, full, revised
from support.windows import largest_context
from wharfinger.catalog.card import ByteSize, Companion, LayerGeometry, LayerKind, ModelCard, Weights
from wharfinger.placement.memory import (
    Footprint,
    ShardShape,
    engine_window_cap,
    footprint,
    kv_bytes_per_token,
    kv_cache_bytes,
    layer_weight_bytes,
    reserves_context_at_load,
)
from wharfinger.placement.types import ServingSettings

MIB, GIB = 1 << 20, 1 << 30
SETTINGS = ServingSettings()


def weighed(*, tied: bool = False, companions: tuple[Companion, ...] = ()) -> ModelCard:
    """Four layers of 100, 200, 300 and 400 bytes, an embedding of 1,000, a head of 1,000 and a norm of 10."""
    return ModelCard(
        model_id="a/weighed",
        storage_size=ByteSize(in_bytes=3010 - 1000 * tied),
        n_layers=4,
        hidden_size=64,
        num_attention_heads=2,
        vocab_size=100,
        layers=(full(1, 32),) * 4,
        weights=Weights(
            layer_bytes=(100, 200, 300, 400),
            embedding_bytes=1000,
            output_bytes=10 if tied else 1010,
            output_norm_bytes=10,
            tied_output=tied,
        ),
        companions=companions,
    )


def weights_of(card: ModelCard, backend: str, shape: ShardShape) -> tuple[int, int]:
    need = footprint(card, backend, shape, 256, SETTINGS)
    device = {part.name: part.size_bytes for part in need.parts}
    host = {part.name: part.size_bytes for part in need.host_parts}
    return device["weights"], host.get("weights", 0)


WHOLE, HEAD, TAIL = ShardShape(0, 4), ShardShape(0, 1, last=False), ShardShape(1, 4, first=False)


@pytest.mark.parametrize(
    ("backend", "tied", "shape", "expected"),
    [
        ("llama_cpp-cpu", False, WHOLE, (3010, 0)),
        ("llama_cpp-cpu", True, WHOLE, (2010, 0)),
        # On a GPU llama.cpp leaves the embedding in RAM, and a tied head is a second copy of it.
        ("llama_cpp-cuda", False, WHOLE, (2010, 1000)),
        ("llama_cpp-cuda", True, WHOLE, (2010, 1000)),
        ("llama_server-cuda", True, HEAD, (100, 1000)),
        ("llama_server-cuda", True, TAIL, (1910, 0)),
        ("vllm-cuda", True, WHOLE, (2010, 0)),
        ("vllm-cuda", True, HEAD, (1100, 0)),
        ("vllm-cuda", True, TAIL, (1910, 0)),
        ("vllm-cuda", False, ShardShape(0, 4, tensor_width=2), (1505, 0)),
        # MLX splits layers but keeps embedding and head whole on every rank.
        ("mlx", False, ShardShape(0, 4, tensor_width=2), (2510, 0)),
        ("mlx", False, TAIL, (1910, 0)),
    ],
)
def test_weights_go_to_the_rank_that_holds_them(
    backend: str, tied: bool, shape: ShardShape, expected: tuple[int, int]
) -> None:
    assert weights_of(weighed(tied=tied), backend, shape) == expected


def test_unknown_layer_weights_are_spread_and_flagged() -> None:
    card = revised(weighed(), weights=None)
    assert layer_weight_bytes(card) == ((753, 753, 752, 752), ("layer_weights_unknown",))
    assert layer_weight_bytes(weighed()) == ((100, 200, 300, 400), ())
    assert "layer_weights_unknown" in footprint(card, "vllm-cuda", WHOLE, 256, SETTINGS).flags


def test_companions_are_on_the_first_rank() -> None:
    companions = (
        Companion(role="projector", file="mmproj.gguf", weight_bytes=800),
        Companion(role="draft", file="draft.gguf", weight_bytes=500, layers=(full(1, 16),) * 2),
    )
    card = weighed(companions=companions)
    need = footprint(card, "llama_server-cuda", WHOLE, 1000, ServingSettings(slots=2))
    parts = {part.name: part.size_bytes for part in need.parts}
    assert parts["projector"] == 800
    assert parts["draft_model"] == 500 + 2 * 2 * 1024 * 64  # two slots of 1,024 cells, two layers, K and V
    assert "projector_workspace_estimated" in need.flags
    rest = {part.name for part in footprint(card, "llama_server-cuda", TAIL, 1000, SETTINGS).parts}
    assert rest == {"weights", "kv_cache", "compute_buffers", "engine_floor"}


def test_parts_of_nothing_are_left_out() -> None:
    need = footprint(SHAPES["falcon-mamba-7b"], "llama_cpp-cpu", ShardShape(0, 64), 4096, SETTINGS)
    assert [part.name for part in need.parts] == [
        "weights",
        "recurrent_state",
        "compute_buffers",
        "context_checkpoints",
        "engine_floor",
    ]
    assert need.host_parts == ()
    assert need.device_bytes == sum(part.size_bytes for part in need.parts)


def test_checkpoints_hold_sliding_windows_in_host_memory() -> None:
    """Seen with Gemma 3 270M at 8,192 tokens: two snapshots of 15 layers x 512 tokens x 1 KiB."""
    layers = tuple(full(1, 256) if index % 6 == 5 else _sliding(512) for index in range(18))
    card = revised(SHAPES["gemma-3-27b"], n_layers=18, layers=layers)
    on_cpu = footprint(card, "llama_cpp-cpu", ShardShape(0, 18), 8192, SETTINGS)
    assert {part.name: part.size_bytes for part in on_cpu.parts}["context_checkpoints"] == 2 * 15 * 512 * 1024
    on_gpu = footprint(card, "llama_cpp-cuda", ShardShape(0, 18), 8192, SETTINGS)
    assert {part.name: part.size_bytes for part in on_gpu.host_parts}[
        "context_checkpoints"
    ] == 2 * 15 * 512 * 1024
    longer = footprint(card, "llama_cpp-cpu", ShardShape(0, 18), 131_072, SETTINGS)
    assert {part.name: part.size_bytes for part in longer.parts}["context_checkpoints"] == 4 * 15 * 512 * 1024


def _sliding(window: int) -> LayerGeometry:
    return full(1, 256).model_copy(update={"kind": LayerKind.SLIDING, "window_tokens": window})


def test_quantised_cache_on_a_gpu_needs_room_to_unpack() -> None:
    """unsloth PR 9525: q4_0 saves 5.75 GB of a 27B's cache at 262k but adds 2.44 GB of scratch."""
    card = SHAPES["qwen3.5-27b"]
    plain = footprint(card, "llama_server-cuda", ShardShape(0, 64), 262_144, SETTINGS)
    packed = footprint(
        card,
        "llama_server-cuda",
        ShardShape(0, 64),
        262_144,
        ServingSettings(cache_type_k="q4_0", cache_type_v="q4_0"),
    )
    scratch = _part(packed, "compute_buffers") - _part(plain, "compute_buffers")
    assert scratch == 2 * 262_144 * 2048 * 2  # one layer's keys and values in 16 bits, twice: 2.15 GB
    assert _part(plain, "kv_cache") - _part(packed, "kv_cache") == 16 * GIB * 46 // 64


def _part(need: Footprint, name: str) -> int:
    return {part.name: part.size_bytes for part in need.parts}[name]


def test_images_and_music_have_no_window() -> None:
    card = ModelCard(
        model_id="a/flux",
        storage_size=ByteSize(in_bytes=15 * GIB),
        n_layers=57,
        hidden_size=1,
        tasks=("TextToImage",),
    )
    assert kv_bytes_per_token(card, "mlx", SETTINGS) is None
    assert largest_context(card, "mlx", ShardShape(0, 57), 100 * GIB, SETTINGS) is None
    need = footprint(card, "mlx", ShardShape(0, 57), 256, SETTINGS)
    assert "kv_cache" not in {part.name for part in need.parts}
    assert "workspace_unknown" in need.flags
    music = revised(card, tasks=("TextToMusic",), family="ace_step_1_5")
    assert (
        _part(footprint(music, "audio_cpp-cuda", ShardShape(0, 57), 256, SETTINGS), "compute_buffers")
        == 10 * GIB
    )
    minimax = revised(card, tasks=("TextToMusic",), family="minimax_music3")
    for tag, gib in (("cuda", 2), ("vulkan", 2), ("metal", 5), ("cpu", 5)):
        need = footprint(minimax, f"audio_cpp-{tag}", ShardShape(0, 57), 256, SETTINGS)
        assert _part(need, "compute_buffers") == gib * GIB


def test_floors_of_accelerators_are_flagged_as_estimates() -> None:
    card = SHAPES["gemma-3-27b"]
    for tag, flagged in (("vllm-cuda", True), ("llama_cpp-vulkan", True), ("llama_cpp-cpu", False)):
        need = footprint(card, tag, ShardShape(0, 62), 8192, SETTINGS)
        assert ("engine_floor_estimated" in need.flags) is flagged


def test_engines_without_a_rule_are_pessimistic_and_say_so() -> None:
    card = SHAPES["gemma-3-27b"]
    found, flags = kv_cache_bytes(card, "sglang-cuda", ShardShape(0, 62), 8192, SETTINGS)
    assert (found, flags) == (62 * 8192 * 8192, ("engine_rule_unknown",))


def test_unknown_cache_type_is_refused() -> None:
    with pytest.raises(ValueError, match="cache type 'q3_k' is not one of bf16, f16"):
        footprint(
            SHAPES["llama-3.1-8b"],
            "llama_cpp-cpu",
            ShardShape(0, 32),
            256,
            ServingSettings(cache_type_k="q3_k"),
        )


@pytest.mark.parametrize(
    ("backend", "reserves", "cap"),
    [
        ("llama_cpp", True, None),
        ("llama_cpp-cpu", True, None),
        ("llama_server-vulkan", True, None),
        ("vllm-cuda", True, 32_768),
        ("mlx", False, None),
        ("mlx-metal", False, None),
        ("something-cuda", True, None),
    ],
)
def test_which_engines_reserve_their_window(backend: str, reserves: bool, cap: int | None) -> None:
    assert reserves_context_at_load(backend) is reserves
    assert engine_window_cap(backend) == cap


def test_parallel_hybrid_keeps_both_cache_and_state() -> None:
    """Falcon-H1: attention and a recurrent state in every layer."""
    both = full(2, 64).model_copy(update={"conv_state_elements": 30, "recurrent_state_elements": 70})
    card = revised(weighed(), layers=(both,) * 4)
    need = footprint(card, "llama_cpp-cpu", WHOLE, 256, SETTINGS)
    assert _part(need, "kv_cache") == 4 * 256 * 512
    assert _part(need, "recurrent_state") == 4 * 4 * 100


names = st.sampled_from(sorted(SHAPES))
backends = st.sampled_from(
    ["llama_cpp-cpu", "llama_cpp-cuda", "llama_server-rocm", "vllm-cuda", "mlx", "sglang-cuda"]
)
windows = st.integers(256, 200_000)
slots = st.integers(1, 16)


@given(name=names, backend=backends, window=windows, more=st.integers(0, 100_000), slots=slots)
def test_a_larger_window_or_more_slots_never_cost_less(
    name: str, backend: str, window: int, more: int, slots: int
) -> None:
    card = SHAPES[name]
    shape = ShardShape(0, card.n_layers)
    base = footprint(card, backend, shape, window, ServingSettings(slots=slots))
    longer = footprint(card, backend, shape, window + more, ServingSettings(slots=slots))
    wider = footprint(card, backend, shape, window, ServingSettings(slots=slots + 1))
    for other in (longer, wider):
        assert other.device_bytes >= base.device_bytes
        assert other.host_bytes >= base.host_bytes


@given(name=names, backend=backends, budget=st.integers(0, 700), slots=slots)
def test_largest_context_is_the_largest(name: str, backend: str, budget: int, slots: int) -> None:
    card, settings = SHAPES[name], ServingSettings(slots=slots)
    shape, budget_bytes = ShardShape(0, card.n_layers), budget * GIB
    window = largest_context(card, backend, shape, budget_bytes, settings)
    assert window is not None
    highest = card.context_length or 1_048_576
    if window == 0:
        assert footprint(card, backend, shape, min(256, highest), settings).device_bytes > budget_bytes
        return
    assert footprint(card, backend, shape, window, settings).device_bytes <= budget_bytes
    if window < highest:
        assert footprint(card, backend, shape, window + 1, settings).device_bytes > budget_bytes


@given(name=names, budget=st.integers(0, 64))
def test_host_budget_limits_the_window_too(name: str, budget: int) -> None:
    card = SHAPES[name]
    shape = ShardShape(0, card.n_layers)
    free = largest_context(card, "llama_cpp-cuda", shape, 2000 * GIB, SETTINGS)
    tied = largest_context(
        card, "llama_cpp-cuda", shape, 2000 * GIB, SETTINGS, host_budget_bytes=budget * GIB // 16
    )
    assert free is not None
    assert tied is not None
    assert tied <= free
    if tied:
        assert footprint(card, "llama_cpp-cuda", shape, tied, SETTINGS).host_bytes <= budget * GIB // 16


@given(name=names, backend=st.sampled_from(["llama_cpp-cpu", "mlx"]), cut=st.floats(0, 1))
def test_weights_of_two_ranks_add_up(name: str, backend: str, cut: float) -> None:
    card = SHAPES[name]
    middle = min(max(1, int(cut * card.n_layers)), card.n_layers - 1)
    halves = [
        footprint(card, backend, ShardShape(0, middle, last=False), 256, SETTINGS),
        footprint(card, backend, ShardShape(middle, card.n_layers, first=False), 256, SETTINGS),
    ]
    assert sum(_part(half, "weights") for half in halves) == card.storage_size.in_bytes
