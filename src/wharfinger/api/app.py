"""The control API as one FastAPI application."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

from wharfinger import __version__
from wharfinger.access.authenticator import Authenticator
from wharfinger.api import docs, errors, exact, health, instances, keys, models, operations, state
from wharfinger.api.intake import Intake
from wharfinger.workflows.control import ControlPlane

DESCRIPTION = """Where can a model run, what does it take, is it really running there, and what is left behind.

Send `Authorization: Bearer KEY` with every request but `/livez` and `/readyz`."""


def create_app(control: ControlPlane, authenticator: Authenticator, *extra_routers: APIRouter) -> FastAPI:
    """The API over a control plane. ``extra_routers`` are other front ends of the same process."""
    app = FastAPI(
        title="Wharfinger", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None
    )
    app.state.control = control
    app.state.authenticator = authenticator
    app.add_middleware(Intake)
    errors.install(app)
    docs.install(app)
    for router in (
        health.router,
        instances.router,
        exact.router,
        models.router,
        state.router,
        operations.router,
        keys.router,
        *extra_routers,
    ):
        app.include_router(router)
    return app
