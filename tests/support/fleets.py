"""Cards and machines for planner tests: small builders whose defaults are an idle, reachable, known machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import permutations
from typing import Any

from wharfinger.catalog.card import (
    ByteSize,
    LayerGeometry,
    LayerKind,
    ModelCard,
    PlacementPreferences,
    Weights,
)
from wharfinger.placement.types import (
    DeviceFacts,
    FleetSnapshot,
    InstanceFacts,
    LinkFacts,
    MemoryKind,
    NodeFacts,
    PlanRequest,
    ReservationFacts,
)

GIB = 1024**3
MIB = 1024**2

TABLE_CARDS: dict[str, tuple[int, int, int | None, int, int, bool]] = {
    # model: layers, hidden size, KV heads, storage bytes, context, tensor (instances notes 3.5)
    "mlx-community/Llama-3.2-1B-Instruct-4bit": (16, 2048, 8, 729808896, 0, True),
    "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit": (32, 4096, 8, 4637851648, 131072, True),
    "mlx-community/Llama-3.3-70B-Instruct-4bit": (80, 8192, 8, 40652242944, 0, True),
    "mlx-community/NVIDIA-Nemotron-Nano-9B-v2-4bits": (56, 4480, None, 5002791936, 131072, True),
    "mlx-community/Qwen3.5-2B-4bit": (24, 2048, 2, 1755848704, 262144, True),
    "mlx-community/Qwen3.5-9B-4bit": (32, 4096, 4, 5950062560, 262144, True),
    "mlx-community/Qwen3-30B-A3B-4bit": (48, 2048, 4, 17612931072, 40960, True),
    "mlx-community/Qwen3-235B-A22B-Instruct-2507-4bit": (94, 4096, 4, 141733920768, 0, True),
    "mlx-community/gpt-oss-20b-MXFP4-Q8": (24, 2880, 8, 12025908224, 131072, True),
    "mlx-community/gpt-oss-120b-MXFP4-Q8": (36, 2880, 8, 70652212224, 0, True),
    "mlx-community/gemma-4-31b-it-4bit": (60, 5376, 16, 18454147072, 262144, False),
    "mlx-community/gemma-4-e2b-it-8bit": (35, 1536, 1, 5932109824, 131072, False),
    "mlx-community/GLM-4.7-Flash-4bit": (47, 2048, 20, 19327352832, 202752, True),
    "mlx-community/DeepSeek-V3.1-4bit": (61, 7168, 128, 405874409472, 0, True),
    "mlx-community/DeepSeek-V3.1-8bit": (61, 7168, 128, 765577920512, 0, True),
    "exolabs/FLUX.1-schnell-4bit": (57, 1, None, 15470210592, 0, False),
}


def table_card(model_id: str, **changes: Any) -> ModelCard:
    """A card of the table as the contract has it: no per-layer facts, MLX only."""
    layers, hidden, kv_heads, storage, context, tensor = TABLE_CARDS[model_id]
    values: dict[str, Any] = {
        "model_id": model_id,
        "storage_size": ByteSize(in_bytes=storage),
        "n_layers": layers,
        "hidden_size": hidden,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "context_length": context,
        "supports_tensor": tensor,
        "placement": PlacementPreferences(compatible_backends=("mlx",)),
    }
    return ModelCard(**(values | changes))


def card(
    *,
    n_layers: int = 32,
    layer_mib: int | tuple[int, ...] = 100,
    embedding_mib: int = 0,
    output_mib: int = 0,
    backends: tuple[str, ...] = ("mlx",),
    preference: tuple[str, ...] | None = None,
    kv_heads: int = 8,
    context_length: int = 32768,
    **changes: Any,
) -> ModelCard:
    """A dense model with every per-layer fact known; head size 128, hidden size 4096, 32 heads."""
    sizes = (layer_mib,) * n_layers if isinstance(layer_mib, int) else layer_mib
    weights = Weights(
        layer_bytes=tuple(size * MIB for size in sizes),
        embedding_bytes=embedding_mib * MIB,
        output_bytes=output_mib * MIB,
    )
    values: dict[str, Any] = {
        "model_id": "tests/dense",
        "storage_size": ByteSize(in_bytes=weights.total_bytes),
        "n_layers": len(sizes),
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "feed_forward_size": 8192,
        "vocab_size": 32000,
        "context_length": context_length,
        "supports_tensor": True,
        "layers": (LayerGeometry(kind=LayerKind.FULL, kv_heads=kv_heads, key_dim=128, value_dim=128),)
        * len(sizes),
        "weights": weights,
        "placement": PlacementPreferences(
            compatible_backends=backends, backend_preference=backends if preference is None else preference
        ),
    }
    return ModelCard(**(values | changes))


def mac(name: str, ram_gib: float = 64, available_gib: float | None = None, **changes: Any) -> NodeFacts:
    """An Apple machine; what is available is its RAM unless said otherwise."""
    ram = int(ram_gib * GIB)
    values: dict[str, Any] = {
        "ram_total_bytes": ram,
        "ram_available_bytes": ram if available_gib is None else int(available_gib * GIB),
        "devices": (DeviceFacts(0, "Apple M4 Max", "metal", MemoryKind.APPLE, total_bytes=ram),),
        "backends": frozenset({"mlx", "mlx-metal"}),
    }
    return NodeFacts(name, name, **(values | changes))


def gpu_server(
    name: str,
    vram_gib: Iterable[float] = (24,),
    used_gib: Iterable[float] = (),
    *,
    ram_gib: float = 128,
    backends: Iterable[str] = ("llama_cpp-cuda",),
    device_name: str = "NVIDIA GeForce RTX 4090",
    **changes: Any,
) -> NodeFacts:
    """A server with discrete NVIDIA devices."""
    used = [*used_gib]
    devices = tuple(
        DeviceFacts(
            index,
            device_name,
            "cuda",
            MemoryKind.DISCRETE,
            total_bytes=int(size * GIB),
            used_bytes=int(used[index] * GIB) if index < len(used) else 0,
        )
        for index, size in enumerate(vram_gib)
    )
    values: dict[str, Any] = {
        "ram_total_bytes": int(ram_gib * GIB),
        "ram_available_bytes": int(ram_gib * GIB),
        "devices": devices,
        "backends": frozenset(backends),
    }
    return NodeFacts(name, name, **(values | changes))


def cpu_server(
    name: str, ram_gib: float = 64, available_gib: float | None = None, **changes: Any
) -> NodeFacts:
    """A machine without accelerators."""
    ram = int(ram_gib * GIB)
    values: dict[str, Any] = {
        "ram_total_bytes": ram,
        "ram_available_bytes": ram if available_gib is None else int(available_gib * GIB),
        "backends": frozenset({"llama_cpp-cpu"}),
    }
    return NodeFacts(name, name, **(values | changes))


def mesh(*names: str, interface: str = "ethernet", rdma: bool = False) -> tuple[LinkFacts, ...]:
    """Links from each to each. Node ``k`` (from 1) has the address 10.0.0.0 + k."""
    address = {name: str(IPv4Address("10.0.0.0") + index) for index, name in enumerate(names, start=1)}
    return tuple(
        LinkFacts(
            left,
            right,
            interface,
            address[right],
            rdma=rdma,
            rdma_interface=f"rdma_{left}_{right}" if rdma else None,
        )
        for left, right in permutations(names, 2)
    )


def fleet(
    *nodes: NodeFacts,
    links: Iterable[LinkFacts] = (),
    reservations: Iterable[ReservationFacts] = (),
    instances: Iterable[InstanceFacts] = (),
) -> FleetSnapshot:
    """A snapshot."""
    return FleetSnapshot(nodes, tuple(links), tuple(reservations), tuple(instances))


def ask(**values: Any) -> PlanRequest:
    """A request; node ids may be given as any iterable."""
    for field in ("excluded_node_ids", "required_node_ids"):
        if field in values:
            values[field] = frozenset(values[field])
    return replace(PlanRequest(), **values)
