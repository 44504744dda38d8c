"""What a route of any front end asks for: a caller of sufficient role, and the keys and sessions of them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from wharfinger.access.authenticator import Authenticator
from wharfinger.access.principals import PRINCIPAL, Principal, Role
from wharfinger.access.rules import require_role

SCHEME = "api_key"
"""Name of the way in, in the OpenAPI document."""

_bearer = HTTPBearer(scheme_name=SCHEME, bearerFormat="wharf_…", auto_error=False)
"""For the OpenAPI document; the guard in front of every route has checked the key already."""


def _require(role: Role) -> Callable[..., Principal]:
    def check(request: Request, _: Annotated[object, Depends(_bearer)]) -> Principal:
        principal: Principal = request.scope[PRINCIPAL]
        require_role(principal, role)
        return principal

    return check


def _authenticator(request: Request) -> Authenticator:
    return request.app.state.authenticator


Auth = Annotated[Authenticator, Depends(_authenticator)]
"""Keys and sessions of this installation."""
Viewer = Annotated[Principal, Depends(_require(Role.VIEWER))]
Operator = Annotated[Principal, Depends(_require(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(_require(Role.ADMIN))]
