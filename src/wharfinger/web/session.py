"""Signing in to the dashboard, and out of it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from wharfinger.access.authenticator import SESSION_COOKIE
from wharfinger.access.callers import Auth, Viewer
from wharfinger.access.keys import ADMIN_KEY_FILE
from wharfinger.access.rules import is_local
from wharfinger.access.sessions import SESSION_LIFETIME_S
from wharfinger.settings import is_loopback
from wharfinger.web.rendering import page
from wharfinger.workflows.control import ControlPlane
from wharfinger.workflows.serving import Control

router = APIRouter(include_in_schema=False)


@router.head("/login")
@router.get("/login")
async def login_form(request: Request, control: Control, auth: Auth) -> Response:
    """The form; who is signed in already goes on to the dashboard."""
    if auth.authenticate(request.scope["headers"]) is not None:
        return RedirectResponse("/", status_code=303)
    return _login_page(request, control)


@router.post("/login")
async def login(request: Request, control: Control, auth: Auth) -> Response:
    """Exchange a key for a session cookie. The key is read from the body only and is never repeated."""
    key = (await request.form()).get("key", "")
    principal = auth.keys.check(key.strip()) if isinstance(key, str) else None
    if principal is None:
        return _login_page(request, control, error="This key is unknown or revoked.", status_code=401)
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        SESSION_COOKIE,
        auth.sessions.begin(principal.key_id),
        max_age=SESSION_LIFETIME_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
async def logout(viewer: Viewer, auth: Auth) -> Response:
    """End the session, everywhere its cookie may have got to."""
    if viewer.session is not None:
        await auth.sessions.end(viewer.session)
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response


def _login_page(
    request: Request, control: ControlPlane, error: str | None = None, status_code: int = 200
) -> Response:
    """Where the key file lies is told in full only to this machine's own users."""
    settings = control.settings
    ours = is_loopback(settings.host) and is_local(request.scope["headers"])
    key_file = settings.data_dir.absolute() / ADMIN_KEY_FILE if ours else None
    return page("login.html", {"key_file": key_file, "error": error}, status_code)
