"""``/openapi.json`` and ``/docs``: the API described, with a page to try it that loads nothing from elsewhere."""

from __future__ import annotations

from importlib import resources
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from wharfinger.access.callers import SCHEME
from wharfinger.routing.forward import TASK_OF_ROUTE
from wharfinger.routing.gateway import MODELS

ASSETS = "/docs/assets"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""As the dashboard's, but for the pictures that Swagger UI has in its style sheet."""

PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Wharfinger: the HTTP API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{ASSETS}/swagger-ui.css">
<script src="{ASSETS}/swagger-ui-bundle.js" defer></script>
<script src="/docs/start.js" defer></script>
</head>
<body><div id="swagger-ui"></div></body>
</html>
"""
START = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null, // a service on the internet that would be sent the document
});
"""

_TEXT_OR_NULL = {"type": ["string", "null"]}
_OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _TEXT_OR_NULL,
                "code": _TEXT_OR_NULL,
            },
            "additionalProperties": False,
        }
    },
    "additionalProperties": False,
}

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs_page() -> HTMLResponse:
    """Swagger UI over the OpenAPI document."""
    return HTMLResponse(PAGE, headers=HEADERS)


@router.get("/docs/start.js")
async def start_script() -> Response:
    """What the page runs: a file, because nothing inline may."""
    return Response(START, media_type="text/javascript; charset=utf-8", headers=HEADERS)


def install(app: FastAPI) -> None:
    """Serve the page and its parts, and describe the gateway's routes beside the application's own."""
    app.include_router(router)
    app.mount(ASSETS, StaticFiles(directory=str(resources.files("fastapi_offline") / "static")))

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            own = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            own["paths"] |= _gateway_paths()
            app.openapi_schema = own
        return app.openapi_schema

    app.openapi = document


def _gateway_paths() -> dict[str, Any]:
    common = {
        "tags": ["Inference"],
        "security": [{SCHEME: []}],
        "responses": {
            "200": {"description": "OpenAI's answer"},
            "default": {
                "description": "OpenAI's error; `code` is text here",
                "content": {"application/json": {"schema": _OPENAI_ERROR}},
            },
        },
    }
    model = {
        "type": "object",
        "required": ["model"],
        "properties": {"model": {"type": "string", "description": "The id of a running model"}},
        "additionalProperties": True,
    }
    body = {"required": True, "content": {"application/json": {"schema": model}}}
    described: dict[str, Any] = {
        MODELS: {"get": {**common, "summary": "Running models", "operationId": "running_models"}}
    }
    for route in TASK_OF_ROUTE:
        name = route.removeprefix("/v1/")
        described[route] = {
            "post": {
                **common,
                "summary": f"OpenAI's {name}",
                "description": "The body is OpenAI's and goes to the engine of the model.",
                "operationId": name.replace("/", "_"),
                "requestBody": body,
            }
        }
    return described
