"""The dashboard over plain HTTP: sessions, origins, headers, fragments and the event stream."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from support.server import DEMO_MODEL_ID, Server
from wharfinger.web.static_files import files, static_url

HTML = {"Accept": "text/html"}


@pytest.fixture
def visitor(server: Server) -> Iterator[httpx.Client]:
    """A browser's worth of client: no key, keeps cookies."""
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture
def signed_in(visitor: httpx.Client, server: Server) -> httpx.Client:
    """The visitor with the admin's session."""
    answer = visitor.post("/login", data={"key": server.key}, headers={"Origin": server.url})
    assert answer.status_code == 303
    return visitor


def test_a_browser_is_sent_to_the_form_and_a_program_is_told(visitor: httpx.Client) -> None:
    answer = visitor.get("/", headers=HTML)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    assert visitor.get("/ui/events").status_code == 401


def test_the_session_cookie_is_for_this_site_and_no_script(visitor: httpx.Client, server: Server) -> None:
    answer = visitor.post("/login", data={"key": f" {server.key}\n"}, headers={"Origin": server.url})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"} <= set(cookie.split("; "))
    assert server.key not in cookie
    assert visitor.get("/login").headers["Location"] == "/"


@pytest.mark.parametrize("key", ["", "wharf_unknown"])
def test_a_wrong_key_is_401_and_not_repeated(visitor: httpx.Client, server: Server, key: str) -> None:
    answer = visitor.post("/login", data={"key": key}, headers={"Origin": server.url})
    assert answer.status_code == 401
    assert "This key is unknown or revoked." in answer.text
    assert "Set-Cookie" not in answer.headers
    assert "wharf_unknown" not in answer.text
    assert "wharf_unknown" not in server.log.read_text()


def test_where_the_key_lies_is_told_to_nobody_beyond_a_proxy(visitor: httpx.Client, server: Server) -> None:
    assert str(server.data_dir) in visitor.get("/login").text
    for passed_on in ({"X-Forwarded-Proto": "https"}, {"Host": "wharf.example"}):
        assert str(server.data_dir) not in visitor.get("/login", headers=passed_on).text


def test_a_login_is_small(visitor: httpx.Client, server: Server) -> None:
    origin = {"Origin": server.url}
    assert visitor.post("/login", data={"key": "k" * 5000}, headers=origin).status_code == 413
    of_no_length = visitor.post("/login", content=iter([b"key=", b"k" * 5000]), headers=origin)
    assert of_no_length.status_code == 413


def test_signing_out_takes_the_cookie_away(signed_in: httpx.Client, server: Server) -> None:
    assert signed_in.get("/", headers=HTML).status_code == 200
    assert signed_in.post("/logout", headers={"Origin": server.url}).headers["Location"] == "/login"
    assert signed_in.get("/", headers=HTML).status_code == 303


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:1"])
@pytest.mark.parametrize("path", ["/ui/launch", "/ui/stop", "/logout"])
def test_another_site_cannot_act_for_us(signed_in: httpx.Client, path: str, origin: str | None) -> None:
    form = {
        "model": DEMO_MODEL_ID,
        "sharding": "Pipeline",
        "meta": "MlxRing",
        "node_id": "x",
        "instance_id": "x",
    }
    answer = signed_in.post(path, data=form, headers={"Origin": origin} if origin else {})
    assert answer.status_code == 403
    assert "are not accepted here" in answer.json()["error"]["message"]


def test_another_site_cannot_sign_us_in(visitor: httpx.Client, server: Server) -> None:
    answer = visitor.post("/login", data={"key": server.key}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert "Set-Cookie" not in answer.headers


def test_nothing_may_run_inline_or_come_from_elsewhere(signed_in: httpx.Client) -> None:
    for path in ("/", f"/ui/preview?model={DEMO_MODEL_ID}"):
        answer = signed_in.get(path)
        policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert answer.headers["Cache-Control"] == "no-store"
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", answer.text)
        assert not re.search(r"(src|href|action)=\"(https?:)?//", answer.text)


def test_the_page_is_complete_without_scripts(signed_in: httpx.Client, server: Server) -> None:
    with server.client() as client:
        node = client.get("/api/v1/nodes").json()["nodes"][0]
    text = signed_in.get("/").text
    assert f"<h3>{node['name']}</h3>" in text
    assert f"Launch {DEMO_MODEL_ID} on {node['name']} with llama_cpp-cpu" in text
    assert "Nothing runs." in text
    assert "no model is running" in text


def test_static_files_are_kept_for_good_under_their_content(visitor: httpx.Client) -> None:
    types = {"app.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"}
    for name, content_type in types.items():
        answer = visitor.get(static_url(name))
        assert answer.status_code == 200
        assert answer.content == files()[name].content
        assert answer.headers["Content-Type"].startswith(content_type)
        assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert visitor.get("/static/000000000000/app.js").headers["Cache-Control"] == "no-cache"
    for missing in ("no.js", "..%2froutes.py"):
        assert visitor.get(f"/static/000000000000/{missing}").status_code == 404


def test_vendored_scripts_carry_their_licences() -> None:
    vendored = {name for name in files() if name.startswith("vendor/")}
    assert vendored == {
        "vendor/htmx-2.0.11.min.js",
        "vendor/htmx.LICENSE",
        "vendor/htmx-ext-sse-2.2.4.min.js",
        "vendor/htmx-ext-sse.LICENSE",
    }


@pytest.mark.parametrize("wish", ["12", "many", "-1", "2000000"])
def test_a_window_that_cannot_be_asked_for_is_named(signed_in: httpx.Client, wish: str) -> None:
    text = signed_in.get("/ui/preview", params={"model": DEMO_MODEL_ID, "context_tokens": wish}).text
    assert f"context window &#39;{wish}&#39; is not accepted; give 256 to 1,048,576 tokens" in text


def test_a_preview_names_the_layers_each_pool_holds(signed_in: httpx.Client) -> None:
    text = signed_in.get("/ui/preview", params={"model": DEMO_MODEL_ID}).text
    assert "layers 0-17</dt>" in text


def test_a_plan_on_one_node_names_no_sharding_and_explains_itself_in_words(signed_in: httpx.Client) -> None:
    text = signed_in.get("/ui/preview", params={"model": DEMO_MODEL_ID}).text
    assert '<span class="facts">one node</span>' in text
    assert "· MlxRing" not in text
    assert "<dt>nodes taken</dt><dd>1 node</dd>" in text
    assert "-0" not in re.findall(r"<dd>(.*?)</dd>", text)


def test_a_refusal_of_one_node_names_no_sharding(signed_in: httpx.Client) -> None:
    text = signed_in.get("/ui/preview", params={"model": DEMO_MODEL_ID, "context_tokens": "1000000"}).text
    assert '<span class="facts">one node</span>' in text
    assert "· MlxRing" not in text


def test_an_empty_catalog_says_what_to_do(fresh: Server) -> None:
    with fresh.start().client() as client:
        text = client.get("/").text
    assert "then reload this page: the list of models does not follow live." in text


def test_an_unknown_model_names_the_closest(signed_in: httpx.Client) -> None:
    text = signed_in.get("/ui/preview", params={"model": "gemma-3-27b<i>"}).text
    assert DEMO_MODEL_ID in text
    assert "<i>" not in text


def test_a_launch_of_nonsense_is_refused(signed_in: httpx.Client, server: Server) -> None:
    form = {"model": DEMO_MODEL_ID, "sharding": "Sideways", "meta": "MlxRing", "node_id": "x"}
    answer = signed_in.post("/ui/launch", data=form, headers={"Origin": server.url})
    assert answer.status_code == 400
    assert "Sideways" in answer.text
    answer = signed_in.post(
        "/ui/launch", data=form | {"sharding": "Pipeline"}, headers={"Origin": server.url}
    )
    assert answer.status_code == 400
    assert "was not launched." in answer.text


@pytest.mark.parametrize("field", ["model", "sharding", "meta", "backend", "context_tokens", "node_id"])
def test_a_launch_does_not_repeat_a_field_of_any_length(
    signed_in: httpx.Client, server: Server, field: str
) -> None:
    form = {"model": DEMO_MODEL_ID, "sharding": "Pipeline", "meta": "MlxRing", "node_id": "x"}
    answer = signed_in.post("/ui/launch", data=form | {field: "y" * 100_000}, headers={"Origin": server.url})
    assert (answer.status_code, answer.json()["error"]["reason"]) == (422, "invalid_request")
    assert len(answer.content) < 1000


def test_what_a_page_is_asked_for_is_not_repeated_at_any_length(
    signed_in: httpx.Client, server: Server
) -> None:
    long = "y" * 5000
    for answer in (
        signed_in.post("/ui/stop", data={"instance_id": long}, headers={"Origin": server.url}),
        signed_in.get("/", params={"model": long}),
        signed_in.get("/ui/preview", params={"model": DEMO_MODEL_ID, "context_tokens": long}),
        signed_in.get(f"/ui/instances/{long}/log"),
    ):
        assert (answer.status_code, answer.json()["error"]["reason"]) == (422, "invalid_request")
        assert len(answer.content) < 1000


def test_stopping_what_is_not_there_is_404(signed_in: httpx.Client, server: Server) -> None:
    answer = signed_in.post("/ui/stop", data={"instance_id": "inst_none"}, headers={"Origin": server.url})
    assert answer.status_code == 404
    assert "inst_none" in answer.text


def test_a_new_stream_begins_with_every_panel(signed_in: httpx.Client) -> None:
    seen: list[str] = []
    with signed_in.stream("GET", "/ui/events") as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("event: "):
                seen.append(line.removeprefix("event: "))
            if len(seen) == 4:
                break
    assert seen == ["nodes", "instances", "operations", "chat-models"]


def test_a_revoked_key_ends_its_stream(visitor: httpx.Client, server: Server) -> None:
    with server.client() as client:
        made = client.post("/api/v1/keys", json={"name": "guest", "role": "viewer"}).json()
        with visitor.stream(
            "GET", "/ui/events", headers={"Authorization": f"Bearer {made['key']}"}
        ) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: nodes"
            assert client.delete(f"/api/v1/keys/{made['key_id']}").status_code == 200
            assert list(lines)[-1] == ""  # it ends, between two events
