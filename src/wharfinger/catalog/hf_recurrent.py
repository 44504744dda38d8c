"""Fixed-size states of recurrent layers, from the fields of a ``config.json``.

Source: the cache classes of transformers and vLLM's state shapes. A causal convolution of ``k`` taps keeps the
``k - 1`` inputs before the present one.
"""

from __future__ import annotations

from wharfinger.catalog.card import LayerGeometry, LayerKind
from wharfinger.catalog.hf_config import HfConfig


def state(conv_elements: int, recurrent_elements: int) -> LayerGeometry:
    """A recurrent layer with states of these sizes per sequence."""
    return LayerGeometry(
        kind=LayerKind.RECURRENT,
        conv_state_elements=conv_elements,
        recurrent_state_elements=recurrent_elements,
    )


def mamba1(config: HfConfig, prefix: str = "") -> LayerGeometry:
    """Mamba: convolution and state run over the inner width. Jamba's fields begin with ``mamba_``."""
    hidden = config.required_named("hidden")
    expand = config.positive(f"{prefix}expand", 2) or 2
    inner = hidden * expand if prefix else config.positive("intermediate_size") or hidden * expand
    kernel = config.positive(f"{prefix}d_conv" if prefix else "conv_kernel", 4) or 4
    size = config.positive(f"{prefix}d_state" if prefix else "state_size", 16) or 16
    return state(inner * (kernel - 1), inner * size)


def mamba2(inner: int, groups: int, state_size: int, kernel: int) -> LayerGeometry:
    """Mamba-2: the convolution also runs over B and C of every group; ``inner`` is heads × head size."""
    return state((inner + 2 * groups * state_size) * (kernel - 1), inner * state_size)


def delta_net(config: HfConfig) -> LayerGeometry:
    """Gated delta net (Qwen3-Next, Qwen3.5): one key × value matrix per value head."""
    key_heads = config.required("linear_num_key_heads")
    value_heads = config.required("linear_num_value_heads")
    key_dim = config.required("linear_key_head_dim")
    value_dim = config.required("linear_value_head_dim")
    kernel = config.positive("linear_conv_kernel_dim", 4) or 4
    width = 2 * key_heads * key_dim + value_heads * value_dim
    return state(width * (kernel - 1), value_heads * key_dim * value_dim)


def short_convolution(config: HfConfig) -> LayerGeometry:
    """LFM2's gated short convolution: it keeps its last inputs and nothing else."""
    taps = config.positive("conv_L_cache", 3) or 3
    width = config.positive("conv_dim") or config.required_named("hidden")
    return state(width * (taps - 1), 0)


def mamba2_of_granite(config: HfConfig) -> LayerGeometry:
    """Granite 4's and Falcon-H1's field names."""
    heads = config.required("mamba_n_heads")
    inner = config.positive("mamba_d_ssm") or (
        (config.positive("mamba_expand", 2) or 2) * config.required_named("hidden")
    )
    head_dim = config.positive("mamba_d_head") or inner // heads
    return mamba2(
        heads * head_dim,
        config.positive("mamba_n_groups", 1) or 1,
        config.required("mamba_d_state"),
        config.positive("mamba_d_conv", 4) or 4,
    )


def mamba2_of_nemotron(config: HfConfig) -> LayerGeometry:
    """Nemotron-H's field names."""
    inner = config.required("mamba_num_heads") * config.required("mamba_head_dim")
    groups = config.positive("n_groups", 8) or 8
    return mamba2(inner, groups, config.required("ssm_state_size"), config.positive("conv_kernel", 4) or 4)


def mamba2_alone(config: HfConfig) -> LayerGeometry:
    """The pure Mamba-2 models' field names."""
    hidden = config.required_named("hidden")
    inner = (config.positive("expand", 2) or 2) * hidden
    groups = config.positive("n_groups", 1) or 1
    return mamba2(
        inner, groups, config.positive("state_size", 128) or 128, config.positive("conv_kernel", 4) or 4
    )
