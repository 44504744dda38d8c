"""Two launches can never be promised the same memory."""

from __future__ import annotations

import asyncio

import httpx

from support.server import DEMO_MODEL_ID, Server


async def test_concurrent_launches_never_oversell(server: Server) -> None:
    """Ask at once for more windows than RAM can hold: the sum of what was accepted fits."""
    headers = {"Authorization": f"Bearer {server.key}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
        node = (await client.get("/api/v1/nodes")).json()["nodes"][0]
        row = (
            await client.get(
                "/instance/previews", params={"model_id": DEMO_MODEL_ID, "context_tokens": 32768}
            )
        ).json()["previews"][0]
        needed = sum(row["memory_delta_by_node"].values())
        usable = row["plan"]["ranks"][0]["charges"][0]["usable_bytes"]
        asked = usable // needed + 8
        answers = await asyncio.gather(
            *(
                client.post("/place_instance", json={"model_id": DEMO_MODEL_ID, "context_tokens": 32768})
                for _ in range(asked)
            )
        )
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
