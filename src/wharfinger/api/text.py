"""Text that callers send: of bounded length, and such that it can be stored and sent back."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, Field

MAX_NAME_CHARACTERS = 512
MAX_NAMES = 1024
MAX_PATH_CHARACTERS = 4096
MAX_SHOWN_CHARACTERS = 200
"""Of what a caller sent, an error message repeats at most this much."""


def _storable(text: str) -> str:
    _check_unicode(text)
    if "\0" in text:
        raise ValueError("a zero character is not accepted")
    return text


def _all_unicode(document: dict[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(document, ensure_ascii=False)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check_unicode(text)
    return document


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair is not accepted: it is no character") from error


Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS), AfterValidator(_storable)]
"""An id or another short text."""

FilePath = Annotated[str, Field(max_length=MAX_PATH_CHARACTERS), AfterValidator(_storable)]

Names = Annotated[list[Name], Field(max_length=MAX_NAMES)]

Document = Annotated[dict[str, Any], AfterValidator(_all_unicode)]
"""A JSON object that is looked into later."""


def shown(text: str) -> str:
    """A caller's text, cut to what an error message repeats of it."""
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 1] + "…"
