"""Cache geometries of real public models, from their published configurations, as model cards.

Weights are given only as a whole; sizes are those of a common artifact of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wharfinger.catalog.card import ByteSize, LayerGeometry, LayerKind, ModelCard

GIB = 1 << 30


def full(kv_heads: int, head_dim: int) -> LayerGeometry:
    """A layer that sees the whole window."""
    return LayerGeometry(kind=LayerKind.FULL, kv_heads=kv_heads, key_dim=head_dim, value_dim=head_dim)


def sliding(kv_heads: int, head_dim: int, window: int) -> LayerGeometry:
    """A layer that sees the last ``window`` tokens."""
    return full(kv_heads, head_dim).model_copy(update={"kind": LayerKind.SLIDING, "window_tokens": window})


def latent(rank: int = 512, rope: int = 64) -> LayerGeometry:
    """Multi-head latent attention."""
    return LayerGeometry(kind=LayerKind.LATENT, latent_dim=rank, rope_dim=rope)


def state(conv: int, recurrent: int) -> LayerGeometry:
    """A recurrent layer."""
    return LayerGeometry(
        kind=LayerKind.RECURRENT, conv_state_elements=conv, recurrent_state_elements=recurrent
    )


def delta_net(key_heads: int, value_heads: int, head_dim: int = 128, kernel: int = 4) -> LayerGeometry:
    """Gated delta net: the convolution runs over queries, keys and values."""
    return state((kernel - 1) * (2 * key_heads + value_heads) * head_dim, head_dim * head_dim * value_heads)


def mamba2(inner: int, groups: int, state_size: int, kernel: int = 4) -> LayerGeometry:
    """Mamba-2."""
    return state((kernel - 1) * (inner + 2 * groups * state_size), state_size * inner)


def revised(card: ModelCard, **changes: object) -> ModelCard:
    """A card with some fields changed, built anew so that its digest is its own."""
    return ModelCard.model_validate({name: getattr(card, name) for name in ModelCard.model_fields} | changes)


NONE = LayerGeometry(kind=LayerKind.NONE)


def _every(n_layers: int, period: int, rare: LayerGeometry, common: LayerGeometry) -> list[LayerGeometry]:
    return [rare if index % period == period - 1 else common for index in range(n_layers)]


def _at(
    n_layers: int, places: Sequence[int], rare: LayerGeometry, common: LayerGeometry
) -> list[LayerGeometry]:
    return [rare if index in places else common for index in range(n_layers)]


def _card(
    name: str,
    layers: Sequence[LayerGeometry],
    hidden: int,
    heads: int,
    size_gib: float,
    context: int,
    feed_forward: int,
    vocab: int,
    **more: object,
) -> ModelCard:
    kv_heads = max((layer.kv_heads or 0 for layer in layers), default=0)
    head_dim = max((layer.key_dim or 0 for layer in layers), default=0)
    fields: dict[str, object] = {
        "num_attention_heads": heads or None,
        "num_key_value_heads": kv_heads or None,
        "head_dim": head_dim or None,
        "feed_forward_size": feed_forward or None,
    }
    return ModelCard(
        model_id=f"shapes/{name}",
        storage_size=ByteSize(in_bytes=round(size_gib * GIB)),
        n_layers=len(layers),
        hidden_size=hidden,
        context_length=context,
        vocab_size=vocab,
        layers=tuple(layers),
        **(fields | more),  # pyright: ignore[reportArgumentType]
    )


def _nemotron_nano() -> list[LayerGeometry]:
    # M mamba, - network, * attention, as its configuration spells the order.
    kinds = {"M": mamba2(10240, 8, 128), "-": NONE, "*": full(8, 128)}
    return [kinds[letter] for letter in "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"]


def _whisper() -> list[LayerGeometry]:
    decoder = full(20, 64).model_copy(update={"cross_tokens": 1500})
    return [NONE] * 32 + [decoder] * 32


def _mllama() -> list[LayerGeometry]:
    cross = full(8, 128).model_copy(update={"kind": LayerKind.CROSS, "cross_tokens": 6404})
    return _at(40, (3, 8, 13, 18, 23, 28, 33, 38), cross, full(8, 128))


_MAKERS: dict[str, Callable[[str], ModelCard]] = {
    "llama-3.2-1b": lambda n: _card(n, [full(8, 64)] * 16, 2048, 32, 2.3, 131072, 8192, 128256),
    "llama-3.1-8b": lambda n: _card(n, [full(8, 128)] * 32, 4096, 32, 15.0, 131072, 14336, 128256),
    "llama-3.3-70b": lambda n: _card(n, [full(8, 128)] * 80, 8192, 64, 37.86, 131072, 28672, 128256),
    "llama-3.2-11b-vision": lambda n: _card(n, _mllama(), 4096, 32, 19.9, 131072, 14336, 128256),
    "llama-4-scout": lambda n: _card(
        n, _every(48, 4, full(8, 128), sliding(8, 128, 8192)), 5120, 40, 203.0, 10485760, 16384, 202048
    ),
    "mistral-7b-v0.3": lambda n: _card(n, [full(8, 128)] * 32, 4096, 32, 13.5, 32768, 14336, 32768),
    "mixtral-8x7b": lambda n: _card(
        n, [full(8, 128)] * 32, 4096, 32, 87.0, 32768, 14336, 32000, n_experts=8, n_experts_used=2
    ),
    "qwen2.5-7b": lambda n: _card(n, [full(4, 128)] * 28, 3584, 28, 14.2, 131072, 18944, 152064),
    "qwen3-0.6b": lambda n: _card(n, [full(8, 128)] * 28, 1024, 16, 1.4, 40960, 3072, 151936),
    "qwen3-32b": lambda n: _card(n, [full(8, 128)] * 64, 5120, 64, 61.0, 40960, 25600, 151936),
    "qwen3-30b-a3b": lambda n: _card(
        n, [full(4, 128)] * 48, 2048, 32, 16.403, 40960, 768, 151936, n_experts=128, n_experts_used=8
    ),
    "qwen3-235b-a22b": lambda n: _card(
        n, [full(4, 128)] * 94, 4096, 64, 132.0, 262144, 1536, 151936, n_experts=128, n_experts_used=8
    ),
    "qwen3-next-80b-a3b": lambda n: _card(
        n, _every(48, 4, full(2, 256), delta_net(16, 32)), 2048, 16, 43.75, 262144, 512, 151936,
        n_experts=512, n_experts_used=10,
    ),
    "qwen3.5-9b": lambda n: _card(
        n, _every(32, 4, full(4, 256), delta_net(16, 32)), 4096, 16, 5.541, 262144, 12288, 248320
    ),
    "qwen3.5-27b": lambda n: _card(
        n, _every(64, 4, full(4, 256), delta_net(16, 48)), 5120, 24, 14.95, 262144, 17408, 248320
    ),
    "qwen3.5-35b-a3b": lambda n: _card(
        n, _every(40, 4, full(2, 256), delta_net(16, 32)), 2048, 16, 19.713, 262144, 512, 248320,
        n_experts=256, n_experts_used=8,
    ),
    "gemma-2-9b": lambda n: _card(
        n, _every(42, 2, full(8, 256), sliding(8, 256, 4096)), 3584, 16, 17.2, 8192, 14336, 256000
    ),
    "gemma-3-27b": lambda n: _card(
        n, _every(62, 6, full(16, 128), sliding(16, 128, 1024)), 5376, 32, 51.0, 131072, 21504, 262208
    ),
    "deepseek-v2-lite": lambda n: _card(
        n, [latent()] * 27, 2048, 16, 29.3, 163840, 10944, 102400, n_experts=64, n_experts_used=6
    ),
    "deepseek-v3.1": lambda n: _card(
        n, [latent()] * 61, 7168, 128, 378.0, 163840, 2048, 129280, n_experts=256, n_experts_used=8
    ),
    "kimi-k2": lambda n: _card(
        n, [latent()] * 61, 7168, 64, 578.0, 262144, 2048, 163840, n_experts=384, n_experts_used=8
    ),
    "glm-5": lambda n: _card(
        n, [latent()] * 78, 6144, 64, 377.6, 202752, 2048, 154880, n_experts=256, n_experts_used=8
    ),
    "glm-4.5-air": lambda n: _card(
        n, [full(8, 128)] * 46, 4096, 96, 114.0, 131072, 1408, 151552, n_experts=128, n_experts_used=8
    ),
    "gpt-oss-20b": lambda n: _card(
        n, _every(24, 2, full(8, 64), sliding(8, 64, 128)), 2880, 64, 11.2, 131072, 2880, 201088,
        n_experts=32, n_experts_used=4,
    ),
    "gpt-oss-120b": lambda n: _card(
        n, _every(36, 2, full(8, 64), sliding(8, 64, 128)), 2880, 64, 65.8, 131072, 2880, 201088,
        n_experts=128, n_experts_used=4,
    ),
    "minimax-m2": lambda n: _card(
        n, [full(8, 128)] * 62, 3072, 48, 119.8, 196608, 1536, 200064, n_experts=256, n_experts_used=8
    ),
    "phi-4": lambda n: _card(n, [full(10, 128)] * 40, 5120, 40, 27.3, 16384, 17920, 100352),
    "phi-3-mini-4k": lambda n: _card(n, [full(32, 96)] * 32, 3072, 32, 7.1, 4096, 8192, 32064),
    "falcon-mamba-7b": lambda n: _card(n, [state(24576, 131072)] * 64, 4096, 0, 13.6, 0, 0, 65024),
    "nemotron-nano-9b-v2": lambda n: _card(n, _nemotron_nano(), 4480, 40, 4.659, 131072, 15680, 131072),
    "granite-4.0-h-small": lambda n: _card(
        n, _at(40, (5, 15, 25, 35), full(8, 128), mamba2(8192, 1, 128)), 4096, 32, 60.0, 131072, 768, 100352,
        n_experts=72, n_experts_used=10,
    ),
    "lfm2-1.2b": lambda n: _card(
        n, _at(16, (2, 5, 8, 10, 12, 14), full(8, 64), state(4096, 0)), 2048, 32, 2.2, 128000, 8192, 65536
    ),
    "bge-small-en-v1.5": lambda n: _card(
        n, [NONE] * 12, 384, 12, 0.121, 512, 1536, 30522, tasks=("TextEmbedding",), architecture="bert"
    ),
    "all-minilm-l6-v2": lambda n: _card(
        n, [NONE] * 6, 384, 12, 0.075, 512, 1536, 30522, tasks=("TextEmbedding",), architecture="bert"
    ),
    "whisper-large-v3": lambda n: _card(
        n, _whisper(), 1280, 20, 2.9, 448, 5120, 51866, tasks=("SpeechToText",)
    ),
}  # fmt: skip

SHAPES: dict[str, ModelCard] = {name: make(name) for name, make in _MAKERS.items()}
"""Model cards by name."""
