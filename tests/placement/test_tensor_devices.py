"""How many devices of a node a tensor engine may use."""

from __future__ import annotations

from support.fleets import ask, card, fleet, gpu_server, mesh
from wharfinger.placement.exact import ExactPlacement, ExactShard, check_exact
from wharfinger.placement.planner import plan

VLLM = ("vllm-cuda",)
H100 = {"device_name": "NVIDIA H100 80GB HBM3", "backends": VLLM}
QWEN3_235B = card(
    n_layers=94,
    layer_mib=4750,
    embedding_mib=1187,
    output_mib=1187,
    backends=VLLM,
    kv_heads=4,
    num_attention_heads=64,
    vocab_size=151936,
    context_length=40960,
)
"""bf16: 438 GiB, 4 KV heads."""


def test_kv_heads_are_repeated_over_more_devices_than_there_are() -> None:
    """Qwen3-235B on 8 x H100: 4 KV heads, each held by two devices; 4 devices are too few."""
    node = gpu_server("a", (80,) * 8, ram_gib=1024, **H100)
    best = plan(fleet(node), QWEN3_235B, ask()).best
    assert best is not None
    charges = [charge for charge in best.ranks[0].charges if charge.device_index is not None]
    assert len(charges) == 8
    weights = {part.name: part.size_bytes for part in charges[0].parts}["weights"]
    assert 8 * weights >= QWEN3_235B.storage_size.in_bytes
    assert 8 * weights < QWEN3_235B.storage_size.in_bytes + 8 * 94


def test_device_counts_that_do_not_divide_are_named() -> None:
    """6 devices hold it by their bytes, but 64 heads are not cut by 3, 5 or 6."""
    node = gpu_server("a", (80,) * 6, ram_gib=1024, **H100)
    refusal = plan(fleet(node), QWEN3_235B, ask()).refusal
    assert refusal is not None
    assert refusal.nodes[0].message.endswith(
        "(3 devices do not divide hidden size 4096, 64 heads, 4 KV heads; "
        "5 devices do not divide hidden size 4096, 64 heads, 4 KV heads; "
        "6 devices do not divide hidden size 4096, 64 heads, 4 KV heads)"
    )


def test_an_exact_vllm_set_uses_as_many_devices_on_each_node() -> None:
    """Pipeline ranks of vLLM are equally wide: the light rank takes two cards because the heavy one must."""
    model = card(n_layers=32, layer_mib=1000, backends=VLLM)
    pair = [gpu_server(name, (24, 24), backends=VLLM) for name in ("a", "b")]
    given = ExactPlacement((ExactShard("a", 0, 4, "vllm-cuda"), ExactShard("b", 4, 32, "vllm-cuda")))
    checked = check_exact(fleet(*pair, links=mesh("a", "b")), model, given, ask()).best
    assert checked is not None
    used = [[c.device_index for c in rank.charges if c.device_index is not None] for rank in checked.ranks]
    assert used == [[0, 1], [0, 1]]


def test_kv_heads_are_repeated_inside_nodes_of_a_pipeline() -> None:
    """2 KV heads over 4 cards of each of two nodes: what one node may do, a rank of a pipeline may."""
    model = card(n_layers=60, layer_mib=2000, backends=VLLM, kv_heads=2)
    pair = [gpu_server(name, (24,) * 4, ram_gib=256, backends=VLLM) for name in ("a", "b")]
    best = plan(fleet(*pair, links=mesh("a", "b")), model, ask()).best
    assert best is not None
    used = [[c.device_index for c in rank.charges if c.device_index is not None] for rank in best.ranks]
    assert used == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert [(rank.start_layer, rank.end_layer) for rank in best.ranks] == [(0, 30), (30, 60)]
