"""Two launches can never be promised the same memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from support.server import Server
from support.tiny_gguf import TinyShape, write_tiny_gguf

WIDE = TinyShape(hidden=64, heads=64, kv_heads=64, head_dim=256, context=1_048_576)
CACHE_BYTES_PER_TOKEN = 2 * WIDE.layers * WIDE.kv_heads * WIDE.head_dim * 2
FIT = 6
"""How many windows are to fit into this machine, however large it is: each is an engine that starts."""


async def test_concurrent_launches_never_oversell(server: Server, tmp_path: Path) -> None:
    """Ask at once for more windows than RAM can hold: the sum of what was accepted fits."""
    headers = {"Authorization": f"Bearer {server.key}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
        node = (await client.get("/api/v1/nodes")).json()["nodes"][0]
        model = {"path": str(write_tiny_gguf(tmp_path, "llama", WIDE).path), "model_id": "wide"}
        (await client.post("/api/v1/models", json=model)).raise_for_status()
        roughly = min(node["ram_available_bytes"], node["ram_total_bytes"] * 3 // 4) // FIT
        wish = {"model_id": "wide", "context_tokens": roughly // CACHE_BYTES_PER_TOKEN}
        row = (await client.get("/instance/previews", params=wish)).json()["previews"][0]
        needed = sum(row["memory_delta_by_node"].values())
        usable = row["plan"]["ranks"][0]["charges"][0]["usable_bytes"]
        asked = usable // needed + 8
        assert 1 <= usable // needed <= 2 * FIT, (usable, needed)
        answers = await asyncio.gather(*(client.post("/place_instance", json=wish) for _ in range(asked)))
        accepted = [answer.json()["instance_id"] for answer in answers if answer.status_code == 200]
        refused = [answer.json()["error"] for answer in answers if answer.status_code == 400]
        try:
            assert len(accepted) + len(refused) == asked
            assert len(refused) >= 1
            assert len(accepted) * needed <= node["ram_total_bytes"] * 0.75
            assert refused[0]["details"]["nodes"][0]["short_by_bytes"] > 0
            kinds = {suggestion["kind"] for suggestion in refused[0]["details"]["suggestions"]}
            assert "stop_instance" in kinds
        finally:
            await asyncio.gather(*(client.delete(f"/instance/{instance_id}") for instance_id in accepted))
            for instance_id in accepted:
                await asyncio.to_thread(server.wait_status, instance_id, "deleted", 120)
