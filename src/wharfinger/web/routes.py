"""The dashboard: one page over the control plane, and the actions its buttons ask for."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Response
from pydantic import Field

from wharfinger.access.callers import Auth, Operator, Viewer
from wharfinger.access.principals import Principal, Role
from wharfinger.catalog.library import UnknownModel
from wharfinger.fleet.agent import AgentError
from wharfinger.operations.model import Conflict
from wharfinger.placement.memory import MAX_CONTEXT_TOKENS, MIN_CONTEXT_TOKENS
from wharfinger.placement.types import PlanRequest
from wharfinger.web import events, session, static_files
from wharfinger.web.board import node_names, read_board
from wharfinger.web.events import panel_values
from wharfinger.web.plans import Preview, launch_request, preview_of
from wharfinger.web.rendering import page
from wharfinger.workflows.admission import PlacementRefused
from wharfinger.workflows.control import ControlPlane, UnknownInstance
from wharfinger.workflows.serving import Control

LOG_TAIL_BYTES = 16 << 10
MAX_FIELD_CHARACTERS = 200
"""As many as a model id may have. Notices repeat a field whole."""

router = APIRouter(include_in_schema=False)
router.include_router(static_files.router)
router.include_router(session.router)
router.include_router(events.router)

Text = Annotated[str, Field(max_length=MAX_FIELD_CHARACTERS)]
Wish = Annotated[Text, Query(alias="context_tokens")]


@router.get("/")
async def dashboard(
    control: Control, auth: Auth, viewer: Viewer, model: Text = "", context_tokens: Wish = ""
) -> Response:
    """The whole page, complete without scripts; ``model`` and ``context_tokens`` choose the preview."""
    board = await read_board(control)
    models = [entry.card.model_id for entry in await control.catalog.list()]
    chosen = model or (models[0] if models else "")
    values = {
        **panel_values(board, viewer),
        **await _preview_values(control, viewer, chosen, context_tokens),
        "models": models,
        "chosen": chosen,
        "viewer": viewer,
        "signed_in": not auth.disabled,
        "drain_s": control.settings.drain_timeout_s,
    }
    return page("dashboard.html", values)


@router.get("/ui/preview")
async def preview(control: Control, viewer: Viewer, model: Text = "", context_tokens: Wish = "") -> Response:
    """Where a model could run now."""
    return page("_preview.html", await _preview_values(control, viewer, model, context_tokens))


@router.post("/ui/launch")
async def launch(
    control: Control,
    _: Operator,
    model: Annotated[Text, Form()],
    sharding: Annotated[Text, Form()],
    meta: Annotated[Text, Form()],
    node_id: Annotated[list[Text], Form()],
    backend: Annotated[Text, Form()] = "",
    context_tokens: Annotated[Text, Form()] = "",
) -> Response:
    """Launch a model exactly as a row of the preview says; a refusal comes with its reasons."""
    try:
        request = launch_request(node_id, sharding, meta, backend, parse_wish(context_tokens))
    except ValueError as error:
        return _problem(f"{model} was not launched: {error}", error)
    try:
        admitted = await control.place(model, request)
    except PlacementRefused as refused:
        return page("_launched.html", {"model": model, "refusal": refused.refusal}, 400)
    except (UnknownModel, Conflict) as error:
        return _problem(f"{model} was not launched: {error}", error)
    names = node_names(control)
    where = ", ".join(names.get(node, node) for node in admitted.plan.node_ids)
    return page(
        "_launched.html", {"model": model, "refusal": None, "where": where, "id": admitted.instance_id}
    )


@router.post("/ui/stop")
async def stop(control: Control, _: Operator, instance_id: Annotated[Text, Form()]) -> Response:
    """Begin to stop an instance."""
    try:
        await control.stop(instance_id)
    except (UnknownInstance, Conflict) as error:
        return _problem(f"{instance_id} was not stopped: {error}", error)
    return page(
        "_notice.html", {"tone": "ok", "text": f"Stopping {instance_id}.", "instance_id": instance_id}
    )


@router.get("/ui/instances/{instance_id}/log")
async def log_tail(control: Control, _: Viewer, instance_id: Text) -> Response:
    """The end of the log of an instance's first runner."""
    try:
        chunk = await control.read_log(instance_id, -LOG_TAIL_BYTES, LOG_TAIL_BYTES)
    except (UnknownInstance, AgentError) as error:
        return page("_log.html", {"text": str(error)})
    return page("_log.html", {"text": chunk.text or "Nothing logged yet."})


def parse_wish(text: str) -> int | None:
    """A context window typed into the form; empty leaves it to the planner.

    Raises:
        ValueError: not a number, or outside what a request may ask for.
    """
    plain = text.strip().replace(",", "")
    if not plain:
        return None
    if not plain.isdecimal() or not MIN_CONTEXT_TOKENS <= int(plain) <= MAX_CONTEXT_TOKENS:
        raise ValueError(
            f"context window {text.strip()!r} is not accepted; give {MIN_CONTEXT_TOKENS:,} to "
            f"{MAX_CONTEXT_TOKENS:,} tokens or leave it empty"
        )
    return int(plain)


async def _preview_values(
    control: ControlPlane, viewer: Principal, model: str, wish_text: str
) -> dict[str, Any]:
    found: Preview | None = None
    problem: str | None = None
    if model:
        try:
            wish = parse_wish(wish_text)
            possible = await control.previews(model, PlanRequest(context_tokens=wish))
            card, rows = possible.card, possible.answer.rows
            found = preview_of(card, rows, wish, node_names(control))
        except (UnknownModel, ValueError) as error:
            problem = str(error)
    return {
        "preview": found,
        "problem": problem,
        "wish_text": wish_text.strip(),
        "may_operate": viewer.role >= Role.OPERATOR,
    }


def _problem(text: str, error: Exception) -> Response:
    status = (
        404
        if isinstance(error, UnknownModel | UnknownInstance)
        else 409
        if isinstance(error, Conflict)
        else 400
    )
    return page("_notice.html", {"tone": "error", "text": text}, status)
