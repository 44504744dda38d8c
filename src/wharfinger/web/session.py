"""Who looks at the dashboard: the caller the guard let in, the role a route wants, and signing in and out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from starlette.datastructures import FormData

from wharfinger.access.authenticator import SESSION_COOKIE, Authenticator, same_origin
from wharfinger.access.keys import ADMIN_KEY_FILE
from wharfinger.access.principals import PRINCIPAL, Principal, Role
from wharfinger.access.secrets import SESSION_LIFETIME_S
from wharfinger.settings import is_loopback
from wharfinger.web.rendering import page
from wharfinger.workflows.control import ControlPlane

MAX_LOGIN_BYTES = 4096
"""A login form is a key and nothing else; this route is open to everybody, so it reads no more than that."""

router = APIRouter(include_in_schema=False)


def control_plane(request: Request) -> ControlPlane:
    """The control plane this application serves."""
    return request.app.state.control


def authenticator(request: Request) -> Authenticator:
    """Keys and sessions of this installation."""
    return request.app.state.authenticator


def require_same_origin(request: Request) -> None:
    """Refuse a state-changing request that carries no key of its own and was not made by one of our pages.

    Browsers send ``Origin`` with every POST, so its absence is a refusal as well.

    Raises:
        HTTPException: 403.
    """
    if request.method in ("GET", "HEAD") or "authorization" in request.headers:
        return
    origin = request.headers.get("origin")
    if not same_origin(origin, request.headers.get("host")):
        raise HTTPException(403, f"requests from {origin or 'an unknown origin'} are not accepted here")


def _caller(request: Request) -> Principal:
    require_same_origin(request)
    return request.scope[PRINCIPAL]


def _require(role: Role) -> Callable[[Principal], Principal]:
    def check(principal: Annotated[Principal, Depends(_caller)]) -> Principal:
        if principal.role < role:
            raise HTTPException(
                403, f"this needs the role {role.name.lower()}; yours is {principal.role.name.lower()}"
            )
        return principal

    return check


Control = Annotated[ControlPlane, Depends(control_plane)]
Auth = Annotated[Authenticator, Depends(authenticator)]
Viewer = Annotated[Principal, Depends(_require(Role.VIEWER))]
Operator = Annotated[Principal, Depends(_require(Role.OPERATOR))]


@router.get("/login")
async def login_form(request: Request, control: Control, auth: Auth) -> Response:
    """The form; who is signed in already goes on to the dashboard."""
    if auth.authenticate(request.scope["headers"]) is not None:
        return RedirectResponse("/", status_code=303)
    return _login_page(control)


@router.post("/login", dependencies=[Depends(require_same_origin)])
async def login(request: Request, control: Control, auth: Auth) -> Response:
    """Exchange a key for a session cookie. The key is read from the body only and is never repeated."""
    key = (await _small_form(request)).get("key", "")
    principal = auth.keys.check(key.strip()) if isinstance(key, str) else None
    if principal is None:
        return _login_page(control, error="This key is unknown or revoked.", status_code=401)
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        SESSION_COOKIE,
        auth.secret.session_token(principal.key_id),
        max_age=SESSION_LIFETIME_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
async def logout(_: Viewer) -> Response:
    """Forget the session in this browser."""
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response


async def _small_form(request: Request) -> FormData:
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > MAX_LOGIN_BYTES:
        raise HTTPException(413, f"a login has a Content-Length of at most {MAX_LOGIN_BYTES} bytes")
    return await request.form()


def _login_page(control: ControlPlane, error: str | None = None, status_code: int = 200) -> Response:
    """Where the key file lies is told in full only where nobody but this machine's users can read it."""
    settings = control.settings
    key_file = settings.data_dir.absolute() / ADMIN_KEY_FILE if is_loopback(settings.host) else None
    return page("login.html", {"key_file": key_file, "error": error}, status_code)
