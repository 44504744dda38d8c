"""Every route but the open ones wants a key; roles; revocation; the no-auth rule."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from support.server import DEMO_MODEL_ID, Server, wharf

CLOSED = [
    "/",
    "/docs",
    "/openapi.json",
    "/state",
    "/models",
    "/instance",
    "/metrics",
    "/api/v1/nodes",
    "/api/v1/operations",
    "/api/v1/keys",
    "/v1/models",
    "/no/such/path",
]


@pytest.mark.parametrize("path", CLOSED)
def test_no_key_is_401(server: Server, path: str) -> None:
    response = httpx.get(server.url + path)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    error = response.json()["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    assert "an API key: send" in error["message"]


@pytest.mark.parametrize("path", ["/state", "/v1/models"])
def test_a_key_that_is_not_known_is_said_to_be_so(server: Server, path: str) -> None:
    wrong = httpx.get(server.url + path, headers={"Authorization": "Bearer wharf_wrong"})
    assert (wrong.status_code, wrong.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "API key is unknown or revoked" in wrong.json()["error"]["message"]


@pytest.mark.parametrize("header", ["Bearer wrong", "Basic YWRtaW46eA==", "Bearer", "wharf"])
def test_wrong_key_is_401(server: Server, header: str) -> None:
    assert httpx.get(server.url + "/state", headers={"Authorization": header}).status_code == 401


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/login"])
def test_open_paths(server: Server, path: str) -> None:
    answer = httpx.get(server.url + path)
    assert answer.status_code == 200
    head = httpx.head(server.url + path)  # what load balancers ask
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Length"] == str(len(answer.content))


def test_roles(server: Server) -> None:
    keys = {}
    with server.client() as admin:
        for role in ("viewer", "operator"):
            made = admin.post("/api/v1/keys", json={"name": role, "role": role})
            assert made.status_code == 201
            keys[role] = made.json()
    with server.client(keys["viewer"]["key"]) as viewer:
        assert viewer.get("/state").status_code == 200
        assert viewer.get("/v1/models").status_code == 200
        for denied in (
            viewer.post("/place_instance", json={"model_id": DEMO_MODEL_ID}),
            viewer.delete("/instance/inst_x"),
            viewer.post("/api/v1/operations/op_x/cancel"),
            viewer.get("/api/v1/keys"),
        ):
            assert denied.status_code == 403
            assert denied.json()["error"]["reason"] == "forbidden"
    with server.client(keys["operator"]["key"]) as operator:
        assert operator.delete("/instance/inst_x").status_code == 404
        assert operator.post("/api/v1/keys", json={"name": "x"}).status_code == 403
    with server.client() as admin:
        assert admin.delete(f"/api/v1/keys/{keys['viewer']['key_id']}").status_code == 200
        listed = admin.get("/api/v1/keys").json()["keys"]
    assert all("key" not in record and "secret_hash" not in record for record in listed)
    with server.client(keys["viewer"]["key"]) as viewer:
        assert viewer.get("/state").status_code == 401
        assert viewer.get("/v1/models").status_code == 401


@pytest.fixture
def browser(server: Server) -> Iterator[httpx.Client]:
    """A client with the admin's session."""
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        signed_in = client.post("/login", data={"key": server.key}, headers={"Origin": server.url})
        assert signed_in.status_code == 303
        yield client


def test_a_foreign_origin_may_not_change_anything_by_cookie(server: Server, browser: httpx.Client) -> None:
    refused = browser.delete("/instance/inst_x", headers={"Origin": "http://evil.example"})
    assert refused.status_code == 403
    assert refused.json()["error"]["reason"] == "foreign_origin"
    assert browser.delete("/instance/inst_x").status_code == 403
    assert browser.delete("/instance/inst_x", headers={"Origin": server.url}).status_code == 404


@pytest.mark.parametrize("path", ["/state", "/v1/models", "/ui/preview"])
def test_a_foreign_origin_may_not_read_anything_by_cookie(
    server: Server, browser: httpx.Client, path: str
) -> None:
    assert browser.get(path, headers={"Origin": "http://evil.example"}).status_code == 401
    assert browser.get(path, headers={"Origin": server.url}).status_code == 200


def test_a_foreign_origin_may_not_ask_a_model_by_cookie(server: Server, browser: httpx.Client) -> None:
    body = json.dumps({"model": "none", "messages": [{"role": "user", "content": "x"}]})
    plain = {"Content-Type": "text/plain"}  # what a page may send anywhere without asking first
    answers = [
        browser.post("/v1/chat/completions", content=body, headers={**plain, "Origin": origin})
        for origin in ("http://evil.example", server.url)
    ]
    assert [answer.status_code for answer in answers] == [401, 404]


def test_signing_out_ends_the_session_itself(server: Server, browser: httpx.Client) -> None:
    cookie = {"Cookie": f"wharf_session={browser.cookies['wharf_session']}"}
    for path in ("/state", "/v1/models"):
        assert httpx.get(server.url + path, headers=cookie).status_code == 200
    with browser.stream("GET", "/ui/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: nodes"
        signed_out = httpx.post(server.url + "/logout", headers={**cookie, "Origin": server.url})
        assert signed_out.status_code == 303
        assert list(lines)[-1] == ""  # the page that was left open is told no more
    for path in ("/state", "/v1/models"):
        assert httpx.get(server.url + path, headers=cookie).status_code == 401
    again = {**cookie, "Origin": server.url, "Accept": "text/html"}
    assert httpx.post(server.url + "/logout", headers=again).headers["Location"] == "/login"


def test_the_dashboard_works_behind_a_proxy_that_passes_the_host_on(server: Server) -> None:
    """As docs/security.md says to set one up: ``Host`` as the browser named it, and the scheme."""
    passed_on = {"Host": "wharf.example", "X-Forwarded-Proto": "https"}
    ours = {"Origin": "https://wharf.example"}
    signed_in = httpx.post(server.url + "/login", data={"key": server.key}, headers={**passed_on, **ours})
    assert signed_in.status_code == 303
    assert "Secure" in signed_in.headers["Set-Cookie"].split("; ")
    cookie = {"Cookie": signed_in.headers["Set-Cookie"].split(";")[0]}
    stopped = httpx.delete(server.url + "/instance/inst_x", headers={**passed_on, **ours, **cookie})
    assert stopped.status_code == 404
    without = {"X-Forwarded-Proto": "https", **ours, **cookie}
    assert httpx.delete(server.url + "/instance/inst_x", headers=without).status_code == 403


@pytest.mark.parametrize(
    "path", ["/state", "/v1/models", "/v1", "/v1/", "/v1/nothing", "/mcp", "/api/v1/keys"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"])
def test_no_method_of_no_path_goes_around_the_key(server: Server, path: str, method: str) -> None:
    answer = httpx.request(method, server.url + path)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    if method != "HEAD":
        assert answer.json()["error"].keys() >= {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/state", {"Cookie": b'wharf_session="a.1.\xe9"'}, 401),
        ("GET", "/v1/models", {"Cookie": b'wharf_session="a.1.\xe9"'}, 401),
        ("POST", "/login", {"Origin": b"http://["}, 403),
        ("POST", "/place_instance", {"Origin": b"http://[", "Cookie": b"a=b"}, 403),
    ],
)
def test_broken_headers_are_refused(
    server: Server, method: str, path: str, headers: dict[str, bytes], status: int
) -> None:
    assert httpx.request(method, server.url + path, headers=headers).status_code == status  # type: ignore[arg-type]


def test_admin_key_file_is_private_and_the_database_holds_only_hashes(server: Server) -> None:
    assert (server.data_dir / "admin.key").stat().st_mode & 0o777 == 0o600
    assert (server.data_dir / "installation.secret").stat().st_mode & 0o777 == 0o600
    secret = server.key.encode()
    for path in server.data_dir.glob("wharfinger.db*"):
        assert secret not in path.read_bytes()


def test_no_auth_is_refused_beyond_loopback() -> None:
    result = wharf("up", "--host", "0.0.0.0", "--no-auth", "--port", "0")
    assert result.returncode == 1
    assert "--no-auth is only allowed on a loopback address" in result.stderr


def test_no_auth_on_loopback_is_open_to_this_machine_only(fresh: Server) -> None:
    open_server = Server(fresh.data_dir, "--no-auth").start()
    try:
        for path in ("/state", "/v1/models"):
            assert httpx.get(open_server.url + path).status_code == 200
            for passed_on in ({"X-Forwarded-For": "203.0.113.9"}, {"Host": "["}, {"Host": "evil.example"}):
                assert httpx.get(open_server.url + path, headers=passed_on).status_code == 401
        shown = httpx.get(open_server.url, headers={"Via": "1.1 proxy", "Accept": "text/html"})
        assert "none that passed a proxy" in shown.json()["error"]["message"]
    finally:
        open_server.kill()
