"""A real Chromium in front of a real server. What a page says on its console or asks of others fails its test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from support.server import Server

CHROMIUM = Path("/usr/bin/chromium")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SLOW_MS = 60_000
"""Waiting for something that a loaded machine may take its time for. Nothing measures this."""

SignIn = Callable[[str], Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium. Module-wide, because its loop may not overlap with that of asynchronous tests."""
    found = CHROMIUM if CHROMIUM.exists() else shutil.which("chromium")
    assert found, "the dashboard's tests need a Chromium; on Debian: apt-get install chromium"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=str(found), args=list(QUIET))
        yield running
        running.close()


@pytest.fixture
def new_page(browser: Browser, server: Server) -> Iterator[Callable[..., Page]]:
    """Makes pages of fresh contexts, and checks at the end that none complained or looked elsewhere.

    ``expected`` holds parts of console errors a test provokes: the browser logs every refused request as one.
    """
    watched: list[tuple[Page, list[str], tuple[str, ...]]] = []

    def make(*, expected: tuple[str, ...] = (), **context: object) -> Page:
        page = browser.new_context(**context).new_page()  # type: ignore[arg-type]
        page.set_default_timeout(SLOW_MS)
        complaints: list[str] = []

        def console(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                complaints.append(f"{message.type}: {message.text}")

        def requested(request: Request) -> None:
            if urlsplit(request.url).netloc != urlsplit(server.url).netloc:
                complaints.append(f"request to another host: {request.url}")

        page.on("console", console)
        page.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
        page.on("request", requested)
        watched.append((page, complaints, expected))
        return page

    expect.set_options(timeout=SLOW_MS)
    yield make
    for page, complaints, expected in watched:
        unexpected = [text for text in complaints if not any(part in text for part in expected)]
        page.context.close()
        assert unexpected == []


@pytest.fixture
def dashboard(new_page: Callable[..., Page], server: Server) -> Callable[..., Page]:
    """Signs in through the form and returns the live dashboard."""

    def open_it(key: str | None = None, **context: object) -> Page:
        page = new_page(**context)
        page.goto(server.url)
        page.get_by_label("API key").fill(key or server.key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#live")).to_have_text("live")
        return page

    return open_it


@pytest.fixture
def viewer_key(server: Server) -> str:
    """A key of the role viewer."""
    with server.client() as client:
        answer = client.post("/api/v1/keys", json={"name": "onlooker", "role": "viewer"})
    assert answer.status_code == 201, answer.text
    return answer.json()["key"]


@pytest.fixture
def nothing_runs(server: Server) -> Iterator[None]:
    """Removes afterwards what a test launched and did not stop."""
    yield
    with server.client() as client:
        for instance in client.get("/instance").json()["instances"]:
            client.delete(f"/instance/{instance['instance_id']}")
            server.wait_status(instance["instance_id"], "deleted")
