"""How commands speak: one document on stdout, progress and errors on stderr, and an exit code that means something."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console


class Exit(IntEnum):
    """Exit codes; ``docs/cli.md`` lists them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    REFUSED = 5
    CONFLICT = 6
    UNAUTHORIZED = 7
    INTERRUPTED = 130


class Format(StrEnum):
    """What stdout carries."""

    HUMAN = "human"
    JSON = "json"


Output = Annotated[
    Format,
    typer.Option("--output", "-o", help="human, or json: one document on stdout, progress on stderr"),
]


class CliError(Exception):
    """Something to tell the user, and the code to exit with."""

    def __init__(
        self, message: str, code: Exit = Exit.FAILED, document: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.document = document


def console(*, stderr: bool = False) -> Console:
    """A Rich console; on a pipe it neither colours nor cuts lines short."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 160
    return Console(file=stream, width=width, highlight=False, soft_wrap=not stream.isatty())


def emit(format_: Format, document: Any, human: Callable[[Console], None]) -> None:
    """Print the result: the document as JSON, or what ``human`` prints."""
    if format_ is Format.JSON:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        human(console())


def say(text: str) -> None:
    """A line of progress, on stderr."""
    console(stderr=True).print(text)


def fail(error: CliError) -> NoReturn:
    """Tell the error on stderr and exit."""
    console(stderr=True).print(f"[bold red]error:[/] {_escape(str(error))}")
    raise typer.Exit(error.code)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def size(size_bytes: int | None) -> str:
    """Bytes for people: ``1.3 GiB``; unmeasured is ``?``."""
    if size_bytes is None:
        return "?"
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
