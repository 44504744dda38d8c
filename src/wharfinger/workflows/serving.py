"""What a route of any front end asks for: the control plane it works on."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from wharfinger.workflows.control import ControlPlane


def _control_plane(request: Request) -> ControlPlane:
    return request.app.state.control


Control = Annotated[ControlPlane, Depends(_control_plane)]
"""The control plane that the application serves."""
