"""The page that documents the API works in a real browser with what this server has, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from playwright.sync_api import Page, expect

from support.server import Server


def test_the_page_lists_every_operation_and_asks_no_other_host(
    dashboard: Callable[..., Page], server: Server
) -> None:
    """``dashboard`` fails the test for any complaint on the console, a blocked script among them."""
    with server.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    page = dashboard()
    page.goto(server.url + "/docs")
    expect(page.locator(".opblock")).to_have_count(sum(len(methods) for methods in paths.values()))
    page.locator("#operations-Access-who_am_i_api_v1_whoami_get").get_by_role("button").first.click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table tbody .response-col_status")).to_contain_text("200")


def test_a_key_given_to_the_page_is_what_it_asks_with(
    dashboard: Callable[..., Page], server: Server, viewer_key: str
) -> None:
    page = dashboard()
    page.goto(server.url + "/docs")
    page.get_by_role("button", name="Authorize").click()
    page.locator("#auth-bearer-value").fill(viewer_key)
    page.locator(".auth-container").get_by_role("button", name="Apply credentials").click()
    page.get_by_role("button", name="Close").click()
    page.locator("#operations-Access-who_am_i_api_v1_whoami_get").get_by_role("button").first.click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table tbody .response-col_description")).to_contain_text("onlooker")


def test_the_page_wants_a_key_like_everything_else(server: Server) -> None:
    parts = ("/docs", "/docs/start.js", "/docs/assets/swagger-ui.css", "/docs/assets/swagger-ui-bundle.js")
    with server.client() as client:
        for path in parts:
            assert httpx.get(server.url + path).status_code == 401
            assert client.get(path).status_code == 200
        assert client.get("/redoc").status_code == 404
        policy = client.get("/docs").headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "connect-src 'self';" in policy
