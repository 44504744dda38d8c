"""Memory arithmetic: what a shard takes, engine by engine, and what a node has to give. Pure and fast."""

from wharfinger.placement.memory.context import (
    MAX_CONTEXT_TOKENS,
    MIN_CONTEXT_TOKENS,
    engine_window_cap,
    reserves_context_at_load,
)
from wharfinger.placement.memory.footprint import footprint, kv_bytes_per_token, kv_cache_bytes
from wharfinger.placement.memory.interface import Footprint, Pool, ShardShape
from wharfinger.placement.memory.pools import Claims, device_totals, host_pool, node_cap_left, usable
from wharfinger.placement.memory.profile import layer_weight_bytes

__all__ = [
    "MAX_CONTEXT_TOKENS",
    "MIN_CONTEXT_TOKENS",
    "Claims",
    "Footprint",
    "Pool",
    "ShardShape",
    "device_totals",
    "engine_window_cap",
    "footprint",
    "host_pool",
    "kv_bytes_per_token",
    "kv_cache_bytes",
    "layer_weight_bytes",
    "node_cap_left",
    "reserves_context_at_load",
    "usable",
]
