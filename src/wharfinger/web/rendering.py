"""Templates to HTML, and the headers every page carries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from wharfinger import __version__
from wharfinger.placement.units import gib
from wharfinger.web.static_files import static_url

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Nothing is loaded from another host, nothing inline runs, no other site may frame us."""


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals.update(static_url=static_url, version=__version__)
    environment.filters.update(gib=gib, tokens=tokens, ago=ago)
    return environment


def render(template: str, values: Mapping[str, Any]) -> str:
    """A template of ``templates/`` as HTML; every value is escaped."""
    return _environment().get_template(template).render(values)


def page(template: str, values: Mapping[str, Any], status_code: int = 200) -> HTMLResponse:
    """A rendered template as an answer."""
    return HTMLResponse(render(template, values), status_code, HEADERS)


def tokens(count: int | None) -> str:
    """A number of tokens for people."""
    return "not known" if count is None else f"{count:,}"


def ago(at: datetime, now: datetime | None = None) -> str:
    """How long ago something was, in its largest unit. ``app.js`` keeps the shown text going by the same rule."""
    passed_s = max(0, int(((now or datetime.now(UTC)) - at).total_seconds()))
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed_s >= length_s:
            return f"{passed_s // length_s} {unit}"
    return f"{passed_s} s"
