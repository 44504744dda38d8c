"""One error envelope for every route: ``{"error": {"message", "type", "param", "code"}}``.

``type`` is the HTTP reason phrase and ``code`` the status number, as the instances contract has it; ``reason`` is our
stable reason code and ``details`` the structured rest (a refusal, the operation in the way).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from wharfinger.access.rules import Forbidden
from wharfinger.api.text import shown
from wharfinger.catalog.library import UnknownModel
from wharfinger.fleet.agent import AgentError
from wharfinger.operations.model import Conflict
from wharfinger.placement.serial import refusal_to_json
from wharfinger.store.errors import StoreUnavailable
from wharfinger.workflows.admission import PlacementRefused
from wharfinger.workflows.control import INFO_PENDING, UnknownInstance

log = structlog.get_logger(__name__)

MAX_PROBLEMS = 100
"""Of a request that is wrong in more places, the answer lists this many."""
PLACEMENT_FAILURE_HEADER = "X-Skulk-Placement-Failure"


class ApiError(Exception):
    """A refused request: the status, our stable reason, and what to do about it."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        param: str | None = None,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.param = param
        self.details = details
        self.headers = headers


def envelope(error: ApiError) -> dict[str, Any]:
    """The JSON body of an error."""
    body: dict[str, Any] = {
        "message": str(error),
        "type": HTTPStatus(error.status).phrase,
        "param": error.param,
        "code": error.status,
        "reason": error.reason,
    }
    if error.details is not None:
        body["details"] = error.details
    return {"error": body}


def respond(error: ApiError) -> JSONResponse:
    """The answer that an error is."""
    return JSONResponse(envelope(error), status_code=error.status, headers=error.headers)


def forbidden(refusal: Forbidden) -> JSONResponse:
    """The answer to a caller who may not."""
    return respond(ApiError(403, refusal.reason, str(refusal)))


def _forbidden(_: Request, refusal: Exception) -> JSONResponse:
    assert isinstance(refusal, Forbidden)
    return forbidden(refusal)


def _placement_refused(_: Request, refused: Exception) -> JSONResponse:
    assert isinstance(refused, PlacementRefused)
    category = refused.refusal.category
    status = 503 if category == INFO_PENDING else 400
    headers = {PLACEMENT_FAILURE_HEADER: category} | ({"Retry-After": "2"} if status == 503 else {})
    error = ApiError(
        status,
        refused.refusal.code,
        refused.refusal.message,
        details=refusal_to_json(refused.refusal),
        headers=headers,
    )
    return respond(error)


def _unknown_model(_: Request, unknown: Exception) -> JSONResponse:
    assert isinstance(unknown, UnknownModel)
    return respond(
        ApiError(
            404, "model_not_found", str(unknown), param="model_id", details={"closest": list(unknown.closest)}
        )
    )


def _unknown_instance(_: Request, unknown: Exception) -> JSONResponse:
    return respond(ApiError(404, "instance_not_found", str(unknown), param="instance_id"))


def _conflict(_: Request, conflict: Exception) -> JSONResponse:
    assert isinstance(conflict, Conflict)
    return respond(
        ApiError(409, conflict.code, str(conflict), details={"operation_id": conflict.operation_id})
    )


def _store_unavailable(_: Request, error: Exception) -> JSONResponse:
    return respond(ApiError(503, "store_unavailable", str(error), headers={"Retry-After": "2"}))


def _agent_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AgentError)
    return respond(ApiError(404 if error.code == "runner_unknown" else 503, error.code, str(error)))


def _invalid(_: Request, invalid: Exception) -> JSONResponse:
    assert isinstance(invalid, RequestValidationError)
    problems = [_problem(problem) for problem in invalid.errors()[:MAX_PROBLEMS]]
    first = problems[0] if problems else {"loc": ["body"], "msg": "invalid request", "type": ""}
    if first["type"] == "json_invalid":  # its place is a position in the text, no field
        error = ApiError(422, "invalid_request", f"the body is not valid JSON: {first['msg']}")
    else:
        field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        error = ApiError(422, "invalid_request", f"{field}: {first['msg']}", param=field)
    return JSONResponse(envelope(error) | {"detail": problems}, status_code=422)


def _problem(found: dict[str, Any]) -> dict[str, Any]:
    """One wrong part of a request. Names of unknown fields are the caller's own, of any length."""
    message = found["ctx"]["error"] if found["type"] == "json_invalid" else found["msg"]
    place = [shown(part) if isinstance(part, str) else part for part in found["loc"]]
    return {"loc": place, "msg": message, "type": found["type"]}


def _http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    reason = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    return respond(
        ApiError(error.status_code, reason, str(error.detail), headers=dict(error.headers or {}) or None)
    )


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    """Nobody planned for it: the log has the details, the answer names none of them."""
    log.error("request failed", method=request.method, path=request.url.path, exc_info=error)
    return respond(
        ApiError(500, "internal_error", "something broke in the control plane; its log has the details")
    )


def install(app: FastAPI) -> None:
    """Register the handlers."""
    app.add_exception_handler(ApiError, lambda _, error: respond(error))  # type: ignore[arg-type]
    app.add_exception_handler(Forbidden, _forbidden)
    app.add_exception_handler(PlacementRefused, _placement_refused)
    app.add_exception_handler(UnknownModel, _unknown_model)
    app.add_exception_handler(UnknownInstance, _unknown_instance)
    app.add_exception_handler(Conflict, _conflict)
    app.add_exception_handler(AgentError, _agent_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(StoreUnavailable, _store_unavailable)
    app.add_exception_handler(Exception, _unexpected)
