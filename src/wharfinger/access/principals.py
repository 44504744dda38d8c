"""Roles and the identity a request acts as."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

PRINCIPAL = "wharfinger.principal"
"""Key of the authenticated caller in the ASGI scope; the guard in front of every route sets it."""


class Role(IntEnum):
    """Each role may do everything the ones below it may."""

    VIEWER = 1
    """Reads state and uses running models."""
    OPERATOR = 2
    """Launches and stops instances, adds models, cancels operations."""
    ADMIN = 3
    """Manages keys as well."""

    @classmethod
    def parse(cls, text: str) -> Role:
        """Role by its lower-case name.

        Raises:
            ValueError: naming the accepted roles.
        """
        try:
            return cls[text.upper()]
        except KeyError:
            raise ValueError(f"role {text!r} is unknown; accepted: viewer, operator, admin") from None


@dataclass(frozen=True, slots=True)
class Session:
    """One signing-in to the dashboard."""

    session_id: str
    key_id: str
    expires_s: int
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller."""

    key_id: str
    name: str
    role: Role
    session: Session | None = None
    """What the caller came in by, if it was no key."""


ANONYMOUS_ADMIN = Principal(key_id="none", name="no-auth", role=Role.ADMIN)
"""Everybody, when authentication is switched off on a loopback address."""
