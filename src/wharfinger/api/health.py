"""``/livez`` (is the process alive), ``/readyz`` (can it work) and ``/metrics``."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from wharfinger import __version__
from wharfinger.access.callers import Viewer
from wharfinger.api.answers import EVERYWHERE, Responses
from wharfinger.api.schemas_own import Alive, NotReady, Ready
from wharfinger.store.errors import StoreUnavailable
from wharfinger.workflows.serving import Control

router = APIRouter(tags=["Health"])

DATABASE_CHECK_S = 2.0
_ALIVE: Responses = {200: {"model": Alive}}
_READY: Responses = {200: {"model": Ready}, 503: {"model": NotReady}}


@router.head("/livez", include_in_schema=False)
@router.get("/livez", response_model=None, responses=_ALIVE)
async def livez() -> dict[str, str]:
    """The process answers. Depends on nothing."""
    return {"status": "ok", "version": __version__}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", response_model=None, responses=_READY)
async def readyz(control: Control) -> JSONResponse:
    """The database answers within 2 s and every background loop runs; else 503 with what is wrong."""
    problems: list[str] = []
    try:
        async with asyncio.timeout(DATABASE_CHECK_S):
            async with control.database.read() as connection:
                await connection.execute(text("SELECT 1"))
    except (StoreUnavailable, SQLAlchemyError, OSError, TimeoutError) as error:
        problems.append(f"database: {type(error).__name__}")
    if control.failed_task is not None:
        problems.append(f"background work ended: {control.failed_task}")
    if problems:
        return JSONResponse({"status": "not ready", "problems": problems}, status_code=503)
    return JSONResponse({"status": "ok"})


@router.get("/metrics", response_class=PlainTextResponse, responses=EVERYWHERE)
async def metrics(control: Control, _: Viewer) -> Response:
    """Our own metrics in Prometheus' text format."""
    from wharfinger.api.metrics import update_gauges

    await update_gauges(control)
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)
