"""What a route says of its answers in the OpenAPI document."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from wharfinger.api.errors import PLACEMENT_FAILURE_HEADER
from wharfinger.api.schemas import Error, InvalidRequest

Responses = dict[int | str, dict[str, Any]]

_CODES = "no_valid_placement, placement_info_pending or model_card_identity_mismatch"
_PLACEMENT_HEADER = {
    PLACEMENT_FAILURE_HEADER: {
        "description": f"Set where the planner refused: {_CODES}",
        "schema": {"type": "string"},
    }
}
EVENT_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}
"""A second kind of content."""


def _error(status: int) -> dict[str, Any]:
    shape = InvalidRequest if status == 422 else Error
    return {"model": shape, "description": HTTPStatus(status).phrase}


EVERYWHERE: Responses = {status: _error(status) for status in (400, 401, 403, 422, 503)}
"""What no one can work with, no key, a role that may not, what does not match the schema, a database that is away."""


def answers(
    shape: type[BaseModel],
    *errors: int,
    status: int = 200,
    placement: bool = False,
    content: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Keyword arguments of a route's decorator: its answer, and its errors.

    The shape is documentation only: what the route returns is sent as it is.

    Args:
        errors: statuses beside those of :data:`EVERYWHERE`.
        placement: the planner may refuse, with 400 or 503 and a header that says which way.
        content: what else the answer may be, by media type.
    """
    responses: Responses = {status: {"model": shape, "content": content or {}}, **EVERYWHERE}
    responses |= {code: _error(code) for code in errors}
    if placement:
        responses |= {code: _error(code) | {"headers": _PLACEMENT_HEADER} for code in (400, 503)}
    # Any, because without a model FastAPI takes ten times as long to write a large answer.
    return {"status_code": status, "response_model": Any, "responses": responses}
