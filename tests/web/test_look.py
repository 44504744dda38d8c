"""How the dashboard looks and for whom: small screens, themes, roles, accessibility, sign-in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from support.server import DEMO_MODEL_ID, Server

AXE = Path(__file__).parent / "vendor" / "axe-4.14.1.min.js"


def background(page: Page) -> list[int]:
    """Red, green and blue of the page's ground, as drawn."""
    colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    return [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]


def violations(page: Page) -> list[str]:
    """Serious and critical findings of axe-core, each with the first element concerned."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document)")
    assert len(found["passes"]) > 15, "axe-core looked at too little to mean anything"
    return [
        f"{finding['id']}: {finding['nodes'][0]['target']} {finding['nodes'][0]['failureSummary']}"
        for finding in found["violations"]
        if finding["impact"] in ("serious", "critical")
    ]


def overflow_px(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def open_everything(page: Page) -> None:
    for summary in page.locator("summary").all():
        summary.click()


def test_a_visitor_without_a_session_gets_the_form(new_page: Callable[..., Page], server: Server) -> None:
    page = new_page(expected=("status of 401",))
    page.goto(server.url)
    assert page.url == f"{server.url}/login"
    expect(page.get_by_label("API key")).to_be_focused()
    expect(page.locator("pre")).to_have_text(f"cat {server.data_dir}/admin.key")
    page.get_by_label("API key").fill("wharf_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This key is unknown or revoked.")
    assert page.url == f"{server.url}/login", "the key must not be in the address"
    assert violations(page) == []


def test_sign_out(dashboard: Callable[..., Page], server: Server) -> None:
    page = dashboard()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login")
    page.goto(server.url)
    assert page.url == f"{server.url}/login"


def test_400_pixels_need_no_sideways_scrolling(dashboard: Callable[..., Page]) -> None:
    page = dashboard(viewport={"width": 400, "height": 800})
    open_everything(page)
    assert overflow_px(page) == 0
    page.get_by_label("Context window").fill("1000000")
    page.keyboard.press("Enter")
    expect(page.locator("#preview .refused").first).to_be_visible()
    assert overflow_px(page) == 0
    expect(page.get_by_role("button", name="Preview")).to_be_in_viewport()
    assert violations(page) == []


def panels(page: Page) -> dict[str, tuple[float, float]]:
    """Left and upper edge of every panel in pixels, by its title."""
    found = page.locator("main .panel").all()
    boxes = {panel.get_by_role("heading", level=2).inner_text(): panel.bounding_box() for panel in found}
    return {title.lower(): (box["x"], box["y"]) for title, box in boxes.items() if box is not None}


def test_on_a_small_screen_chat_comes_right_after_the_instances(dashboard: Callable[..., Page]) -> None:
    found = panels(dashboard(viewport={"width": 400, "height": 800}))
    from_the_top = sorted(found, key=lambda title: found[title][1])
    assert from_the_top == ["where can it run", "instances", "chat", "nodes", "operations"]


def test_on_a_wide_screen_there_are_two_columns(dashboard: Callable[..., Page]) -> None:
    found = panels(dashboard(viewport={"width": 1280, "height": 800}))
    by_column = sorted(found, key=found.__getitem__)
    assert by_column == ["where can it run", "instances", "operations", "nodes", "chat"]
    assert found["where can it run"][1] == found["nodes"][1]


def test_login_at_400_pixels(new_page: Callable[..., Page], server: Server) -> None:
    page = new_page(viewport={"width": 400, "height": 800})
    page.goto(server.url)
    assert overflow_px(page) == 0


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_theme_follows_the_system(dashboard: Callable[..., Page], scheme: str, dark: bool) -> None:
    page = dashboard(color_scheme=scheme)
    assert all((part < 64) is dark for part in background(page))
    toggle = page.get_by_role("button", name="Dark")
    expect(toggle).to_have_attribute("aria-pressed", str(dark).lower())
    open_everything(page)
    assert violations(page) == []


def test_theme_toggle_is_remembered(dashboard: Callable[..., Page]) -> None:
    page = dashboard(color_scheme="light")
    page.get_by_role("button", name="Dark").click()
    assert max(background(page)) < 64
    page.reload()
    assert max(background(page)) < 64
    expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Dark").click()
    page.reload()
    assert min(background(page)) > 200


def test_a_viewer_sees_everything_and_can_change_nothing(
    dashboard: Callable[..., Page], server: Server, viewer_key: str
) -> None:
    page = dashboard(viewer_key)
    expect(page.locator(".options tbody tr").first).to_contain_text("llama_cpp")
    assert page.get_by_role("button", name="Launch").count() == 0
    assert page.locator("dialog").count() == 0
    cookies = {cookie["name"]: cookie["value"] for cookie in page.context.cookies()}
    for path, form in (
        ("/ui/launch", {"model": DEMO_MODEL_ID, "sharding": "Pipeline", "meta": "MlxRing", "node_id": "x"}),
        ("/ui/stop", {"instance_id": "x"}),
    ):
        answer = page.request.post(server.url + path, form=form, headers={"Origin": server.url})
        assert answer.status == 403
        assert "operator" in answer.json()["error"]["message"]
    assert set(cookies) == {"wharf_session"}


def test_a_session_that_ends_leads_back_to_the_form(dashboard: Callable[..., Page], server: Server) -> None:
    with server.client() as client:
        made = client.post("/api/v1/keys", json={"name": "guest", "role": "operator"}).json()
    page = dashboard(
        made["key"], expected=("status of 401", "Response Status Error Code 401", "[object Event]")
    )
    with server.client() as client:
        assert client.delete(f"/api/v1/keys/{made['key_id']}").status_code == 200
    expect(page.locator("#live")).to_have_text("connection lost, trying again")
    page.get_by_role("button", name="Preview").click()
    page.wait_for_url("**/login")
