"""An idempotency key means the same launch after a restart, also one with other settings."""

from __future__ import annotations

from support.server import DEMO_MODEL_ID, Server


def test_same_key_after_a_restart_with_another_default_window(fresh: Server) -> None:
    fresh.start()
    fresh.add_demo_model()
    key = {"Idempotency-Key": "k1"}
    body = {"model_id": DEMO_MODEL_ID}
    with fresh.client() as client:
        first = client.post("/place_instance", json=body, headers=key).json()
    fresh.wait_status(first["instance_id"], "ready")
    fresh.stop()
    again = Server(fresh.data_dir, environment={"WHARF_DEFAULT_CONTEXT_TOKENS": "1024"}).start()
    try:
        with again.client() as client:
            second = client.post("/place_instance", json=body, headers=key)
        assert second.status_code == 200, second.text
        assert second.json()["instance_id"] == first["instance_id"]
        assert second.json()["operation_id"] == first["operation_id"]
    finally:
        again.kill()
