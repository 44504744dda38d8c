"""The way of a model through the dashboard: launch by clicking, ask, see the answer stream, stop by clicking."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from support.local_node import NO_END
from support.server import DEMO_MODEL_ID, Server
from support.tiny_gguf import TinyShape, write_tiny_gguf
from web.conftest import SLOW_MS

pytestmark = pytest.mark.usefixtures("nothing_runs")
GIB = 1 << 30
FIGURES = re.compile(r"^first token \d+\.\d\d s · \d+\.\d tokens/s · \d+ tokens( · .+)?$")


def instance(page: Page, status: str) -> str:
    """The id of the one instance once it has a status."""
    card = page.locator(f"[data-instance][data-status={status}]")
    expect(card).to_have_count(1)
    return card.get_attribute("data-instance") or ""


def launch_by_click(page: Page, context_tokens: int = 1024) -> str:
    page.get_by_label("Context window").fill(str(context_tokens))
    page.keyboard.press("Enter")
    expect(page.locator(".options")).to_contain_text(f"{context_tokens:,}")
    page.get_by_role("button", name=f"Launch {DEMO_MODEL_ID}").click()
    return instance(page, "ready")


def without_end(page: Page) -> None:
    """Let answers go on until they are stopped: how long a model's own answer is, its sampler decides."""

    def go_on(route: Route) -> None:
        route.continue_(post_data=json.dumps({**json.loads(route.request.post_data or ""), **NO_END}))

    page.route("**/v1/chat/completions", go_on)


def answered(page: Page) -> str:
    return page.locator("[data-role=assistant]").last.inner_text()


def test_launch_chat_and_stop(dashboard: Callable[..., Page], server: Server) -> None:
    page = dashboard()
    without_end(page)
    instance_id = launch_by_click(page)
    document = server.wait_status(instance_id, "ready")
    assert document["context_tokens"] == 1024
    assert server.engine_pids() != []
    expect(page.locator("#announcer")).to_have_text(f"{DEMO_MODEL_ID} is ready")
    expect(page.locator("#launch-notice")).to_be_empty()
    expect(page.get_by_label("Model").nth(1)).to_have_value(DEMO_MODEL_ID)

    page.get_by_label("Message").fill("Tell me about harbours, please.")
    page.keyboard.press("Enter")
    seen: set[str] = set()
    deadline = time.monotonic() + SLOW_MS / 1000
    while len(seen) < 4:  # it grows before our eyes: streamed, not shown when done
        assert time.monotonic() < deadline, seen
        seen.add(answered(page))
    in_order = sorted(seen, key=len)
    assert all(later.startswith(earlier.rstrip()) for earlier, later in pairwise(in_order))
    page.locator("#chat-stop").click()
    expect(page.locator("#chat-figures")).to_have_text(FIGURES)
    expect(page.locator("#chat-send")).to_be_visible()

    page.get_by_role("button", name=f"Stop {DEMO_MODEL_ID}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Running ones have up to 30 s to finish, then its processes end")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name=f"Stop {DEMO_MODEL_ID}")).to_be_focused()
    assert server.wait_status(instance_id, "ready")["status"] == "ready"
    page.get_by_role("button", name=f"Stop {DEMO_MODEL_ID}").click()
    dialog.get_by_role("button", name="Stop").click()
    expect(page.locator("[data-instance]")).to_have_count(0)
    expect(page.locator("#announcer")).to_have_text(f"{DEMO_MODEL_ID} is gone")
    expect(page.locator("#chat-model")).to_have_text("no model is running")
    server.wait_status(instance_id, "deleted")
    assert server.engine_pids() == []
    expect(page.locator("#operations")).to_contain_text("instance.stop")


def test_an_answer_is_text_and_never_markup(dashboard: Callable[..., Page]) -> None:
    page = dashboard()
    without_end(page)
    launch_by_click(page)
    attack = "<img src=x onerror=document.title='hit'><b>bold</b>"
    page.get_by_label("Message").fill(attack)
    page.keyboard.press("Enter")
    expect(page.locator("[data-role=user]")).to_have_text(attack)
    expect(page.locator("[data-role=assistant]")).to_have_text(re.compile(".{3}"))
    page.locator("#chat-stop").click()
    assert page.locator("#chat-log img, #chat-log b").count() == 0
    assert page.title() == "Wharfinger"


def test_chat_shows_what_the_server_refuses(dashboard: Callable[..., Page]) -> None:
    page = dashboard(expected=("status of 400",))
    launch_by_click(page, context_tokens=256)
    page.get_by_label("Message").fill("word " * 600)
    page.keyboard.press("Enter")
    expect(page.locator("#chat-log .problem")).to_contain_text("context")
    expect(page.locator("#chat-send")).to_be_visible()
    assert page.locator("[data-role=assistant]").count() == 0


def test_chat_without_a_running_model_says_so(dashboard: Callable[..., Page]) -> None:
    page = dashboard()
    page.get_by_label("Message").fill("Anybody there?")
    page.keyboard.press("Enter")
    expect(page.locator("#chat-log .problem")).to_have_text(
        "No model that generates text is running. Launch one first."
    )
    expect(page.get_by_label("Message")).to_have_value("Anybody there?")


def test_launch_with_the_keyboard_only(dashboard: Callable[..., Page]) -> None:
    page = dashboard()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "launch-0":
            break
    expect(page.locator("#launch-0")).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focused button must be seen to be focused"
    page.keyboard.press("Enter")
    expect(page.locator("#launch-notice .ok")).to_be_focused()
    instance(page, "ready")


def test_log_stays_open_while_the_panel_is_sent_again(dashboard: Callable[..., Page]) -> None:
    page = dashboard()
    page.get_by_role("button", name=f"Launch {DEMO_MODEL_ID}").click()
    page.locator("[data-instance] summary").click()  # while it loads: the panel still changes several times
    instance(page, "ready")
    expect(page.locator("[data-instance] details")).to_have_attribute("open", "")
    expect(page.locator("[data-instance] .log")).to_contain_text("load_model")


def test_a_launch_that_is_refused_explains_itself_in_place(
    dashboard: Callable[..., Page], server: Server, tmp_path: Path
) -> None:
    cache_bytes = 2 * 64 * 256 * 2 * 1_000_000  # K and V, heads, elements, bytes, tokens: 61 GiB a layer
    with server.client() as client:
        node = client.get("/api/v1/nodes").json()["nodes"][0]
        layers = node["ram_total_bytes"] // cache_bytes + 1
        wide = TinyShape(layers=layers, hidden=64, heads=64, kv_heads=64, head_dim=256, context=1_048_576)
        model = write_tiny_gguf(tmp_path, "llama", wide)
        added = client.post("/api/v1/models", json={"path": str(model.path), "model_id": "wide-cache"})
        assert added.status_code == 201, added.text
    needed = layers * cache_bytes

    page = dashboard(expected=("status of 400", "Response Status Error Code 400"))
    page.goto(f"{server.url}/?model=wide-cache&context_tokens=2048")
    # The row is possible; then the wish behind it grows, as memory may shrink between a preview and its launch.
    page.locator(".options input[name=context_tokens]").evaluate("field => field.value = 1000000")
    page.get_by_role("button", name="Launch wide-cache").click()
    refused = page.locator("#launch-notice .problem")
    expect(refused).to_contain_text("wide-cache was not launched.")
    row = refused.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row.get_by_role("rowheader")).to_have_text(node["name"])
    expect(row).to_contain_text("memory_short")
    expect(row).to_contain_text("kv_cache")
    cells = [cell.strip() for cell in row.locator(".number").all_inner_texts()]
    shown_gib = [float(cell.removesuffix(" GiB")) for cell in cells]
    assert shown_gib[0] >= round(needed / GIB)  # large sizes are shown without decimals
    assert shown_gib[0] - shown_gib[1] == pytest.approx(shown_gib[2], abs=1.0)
    assert page.locator("[data-instance]").count() == 0

    page.get_by_label("Context window").fill("1,000,000")
    page.keyboard.press("Enter")
    expect(page.locator("#preview .refused").first).to_contain_text("memory_short")


def test_a_failed_launch_keeps_its_reason(
    dashboard: Callable[..., Page], server: Server, tmp_path: Path
) -> None:
    model = write_tiny_gguf(tmp_path, "llama")
    with server.client() as client:
        assert (
            client.post(
                "/api/v1/models", json={"path": str(model.path), "model_id": "unloadable"}
            ).status_code
            == 201
        )
    damaged = bytearray(model.path.read_bytes())
    damaged[4096:] = b"\0" * 8  # the header still names tensors, but their bytes are gone
    model.path.write_bytes(damaged)

    page = dashboard()
    page.goto(f"{server.url}/?model=unloadable")
    page.get_by_role("button", name="Launch unloadable").click()
    instance_id = instance(page, "failed")
    with server.client() as client:
        failure = client.get(f"/api/v1/instances/{instance_id}").json()["failure"]
    card = page.locator("[data-instance]")
    expect(card.locator(".problem")).to_contain_text(failure["code"])
    expect(card.locator(".problem")).to_contain_text(failure["message"][:60])
    expect(card.locator(".pairs div", has_text="Reserved").locator("dd")).to_have_text("released")
    page.get_by_role("button", name="Remove unloadable").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.locator("[data-instance]")).to_have_count(0)
