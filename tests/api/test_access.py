"""Every route but the open ones wants a key; roles; revocation; the no-auth rule."""

from __future__ import annotations

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
    assert response.json()["error"].keys() >= {"message", "type", "param", "code"}


@pytest.mark.parametrize("header", ["Bearer wrong", "Basic YWRtaW46eA==", "Bearer", "wharf"])
def test_wrong_key_is_401(server: Server, header: str) -> None:
    assert httpx.get(server.url + "/state", headers={"Authorization": header}).status_code == 401


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/login"])
def test_open_paths(server: Server, path: str) -> None:
    assert httpx.get(server.url + path).status_code == 200


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


def test_a_foreign_origin_may_not_change_anything_by_cookie(server: Server) -> None:
    with httpx.Client(base_url=server.url) as browser:
        ours = {"Origin": server.url}
        signed_in = browser.post("/login", data={"key": server.key}, headers=ours, follow_redirects=False)
        assert signed_in.status_code == 303
        refused = browser.delete("/instance/inst_x", headers={"Origin": "http://evil.example"})
        assert refused.status_code == 403
        assert refused.json()["error"]["reason"] == "foreign_origin"
        assert browser.delete("/instance/inst_x", headers=ours).status_code == 404


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


def test_no_auth_on_loopback_is_open(fresh: Server) -> None:
    open_server = Server(fresh.data_dir, "--no-auth").start()
    try:
        assert httpx.get(open_server.url + "/state").status_code == 200
        assert httpx.get(open_server.url + "/v1/models").status_code == 200
    finally:
        open_server.kill()
