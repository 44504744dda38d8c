"""The dashboard's own scripts and styles, read once and served under an address that names their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, HTTPException, Response

FOLDER = Path(__file__).parent / "static"
CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
FOREVER = "public, max-age=31536000, immutable"

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file with the start of its SHA-256, which is part of its address."""

    content: bytes
    content_type: str
    digest: str


@cache
def files() -> dict[str, StaticFile]:
    """Every served file by its path below ``static/``."""
    return {
        str(path.relative_to(FOLDER)): _read(path)
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in CONTENT_TYPES
    }


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    return StaticFile(content, CONTENT_TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:12])


def static_url(name: str) -> str:
    """The address of a file; it changes whenever the content does.

    Raises:
        KeyError: there is no such file.
    """
    return f"/static/{files()[name].digest}/{name}"


@router.get("/static/{digest}/{name:path}")
async def static_file(digest: str, name: str) -> Response:
    """A file, to be kept for good; a page of another version gets the present content and may not keep it."""
    found = files().get(name)
    if found is None:
        raise HTTPException(404, f"there is no static file {name!r}")
    return Response(
        found.content,
        media_type=found.content_type,
        headers={
            "Cache-Control": FOREVER if digest == found.digest else "no-cache",
            "X-Content-Type-Options": "nosniff",
        },
    )
