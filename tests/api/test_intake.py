"""Bodies and addresses that nobody can work with are refused before a route sees them, on both databases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest

from support.postgres import fresh_database_url
from support.server import Server

LIMIT = 4 << 20
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A control plane on each database: what SQLite stores, PostgreSQL may refuse."""
    folder = tmp_path_factory.mktemp(request.param)
    url = str(asyncio.run(fresh_database_url(request.param, folder)))
    running = Server(folder / "data", environment={"WHARF_DATABASE_URL": url}).start()
    yield running
    running.kill()


@pytest.fixture
def client(either: Server) -> Iterator[httpx.Client]:
    with either.client() as client:
        yield client


@pytest.mark.parametrize("text", [r"a\ud800", r"\udfff", r"\ud800\ud800", r"\u0000", "\x00", "\ud800"])
@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/place_instance", '{"model_id": "%s"}'),
        ("/place_instance", '{"model_id": "m", "node_ids": ["%s"]}'),
        ("/place_instance", '{"%s": 1}'),
        ("/instance", '{"instance": {"%s": {}}}'),
        ("/instance", '{"instance": {"MlxRingInstance": {"instanceId": "%s"}}}'),
        ("/api/v1/models", '{"path": "%s"}'),
        ("/api/v1/keys", '{"name": "%s"}'),
    ],
)
def test_text_that_cannot_be_written(client: httpx.Client, path: str, shape: str, text: str) -> None:
    body = (shape % text).encode(errors="surrogatepass")
    answer = client.post(path, content=body, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (400, "invalid_text")


def test_escapes_that_are_text(client: httpx.Client) -> None:
    """A whole pair, and a backslash before the letters of an escape."""
    for text in (r"\ud83d\ude00", r"\\ud800", r"\\u0000"):
        answer = client.post("/place_instance", content=f'{{"model_id": "{text}"}}', headers=JSON)
        assert answer.status_code == 404
        assert json.loads(f'"{text}"') in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "path", ["/instance/%00", "/state%00", "/instance/previews?model_id=%00", "/api/v1/operations?kind=a%00"]
)
def test_an_address_with_nul(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (400, "invalid_text")


def test_a_form_with_nul(client: httpx.Client) -> None:
    answer = client.post("/ui/stop", content="instance_id=%00", headers=FORM)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (400, "invalid_text")


@pytest.mark.parametrize(
    "path", ["/place_instance", "/api/v1/models", "/ui/launch", "/logout", "/no/such/path"]
)
def test_a_body_is_of_bounded_size(client: httpx.Client, path: str) -> None:
    for content in (b" " * (LIMIT + 1), iter([b" " * LIMIT, b" "])):
        answer = client.post(path, content=content, headers=JSON)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (413, "body_too_large")
    assert client.post(path, content=b" " * LIMIT, headers=JSON).status_code != 413


def test_nobody_without_a_key_is_read_from(client: httpx.Client, either: Server) -> None:
    assert httpx.post(either.url + "/place_instance", content=b" " * (LIMIT + 1)).status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[" * 100_000,
        b'{"model_id": ' + b"9" * 5000 + b"}",
        b'{"min_nodes": 1e999}',
        b"\xff",
    ],
)
@pytest.mark.parametrize("path", ["/place_instance", "/instance", "/api/v1/models", "/api/v1/keys"])
def test_what_is_no_document_is_said(client: httpx.Client, path: str, body: bytes) -> None:
    answer = client.post(path, content=body, headers=JSON)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"].keys() >= {"message", "type", "param", "code", "reason"}


@pytest.mark.parametrize("content_type", ["text/plain", "application/json", ""])
def test_a_login_of_another_kind_holds_no_key(either: Server, content_type: str) -> None:
    body = f"key={either.key}".encode()
    answer = httpx.post(either.url + "/login", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 401


@pytest.mark.parametrize("charset", ["utf-8", "unicode_escape", "utf-7", "undefined"])
@pytest.mark.parametrize("path", ["/login", "/ui/stop"])
def test_a_form_says_in_no_encoding_of_its_own_what_it_holds(
    client: httpx.Client, path: str, charset: str
) -> None:
    """Only multipart forms can, and none of our pages sends one."""
    body = b'--x\r\nContent-Disposition: form-data; name="key"\r\n\r\n\\ud800 +2AA-\r\n--x--\r\n'
    body = body.replace(b"key", b"instance_id") if path == "/ui/stop" else body
    kind = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
    answer = client.post(path, content=body, headers=kind)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (415, "unsupported_media_type")
    wanted = "send JSON, or what a page's form sends: application/x-www-form-urlencoded"
    assert answer.json()["error"]["message"].endswith(f" is not taken; {wanted}")
