"""How commands speak: one document on stdout, progress and errors on stderr, and an exit code that means something."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


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
    """Something to tell the user, and the code to exit with.

    ``document`` is the error as a JSON object, where the control plane gave one; ``result`` what the command found
    out before it failed.
    """

    def __init__(
        self, message: str, code: Exit = Exit.FAILED, document: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.document = document
        self.result: dict[str, Any] = {}
        self.status: int | None = None
        """HTTP status, of an answer that was a refusal."""

    def to_json(self) -> dict[str, Any]:
        """The one document on stdout: the result as far as there is one, and ``error``."""
        error = self.document or {"message": str(self), "code": self.code.name.lower()}
        return self.result | {"error": error}


def console(*, stderr: bool = False) -> Console:
    """A Rich console; on a pipe it neither colours nor cuts lines short.

    It prints text as it is: names, paths and messages come from others, and brackets or colons in them are no markup.
    Style goes through :func:`styled`.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 160
    return Console(
        file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=not stream.isatty()
    )


def styled(*parts: str | tuple[str, str]) -> Text:
    """A line of plain pieces and ``(text, style)`` pieces."""
    from rich.text import Text

    return Text.assemble(*parts)


def emit(
    format_: Format, document: Any, human: Callable[[Console], None], failure: CliError | None = None
) -> None:
    """Print the result: the document as JSON, or what ``human`` prints.

    Raises:
        CliError: ``failure``, if given: the result was bad news. As JSON, both become one document.
    """
    if format_ is Format.HUMAN:
        human(console())
    elif failure is not None:
        failure.result = document
    else:
        print_json(document)
    if failure is not None:
        raise failure


def print_json(document: Any) -> None:
    """The one document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def say(text: str | Text) -> None:
    """A line of progress, on stderr."""
    console(stderr=True).print(text)


def fail(error: CliError, format_: Format) -> None:
    """Tell the error: a paragraph on stderr, and the document on stdout where one was asked for."""
    if format_ is Format.JSON:
        print_json(error.to_json())
    say(styled(("error:", "bold red"), f" {error}"))


_OPTIONS = {"min_nodes": "--min-nodes", "context_tokens": "--context"}


def in_options(text: str) -> str:
    """A text of the planner with the request's fields called as the options that set them."""
    return re.sub(r"\b(min_nodes|context_tokens)\b", lambda field: _OPTIONS[field[0]], text)


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
