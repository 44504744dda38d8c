"""Names that callers send are of bounded length. That they are text, :mod:`wharfinger.api.intake` has seen to."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MAX_NAME_CHARACTERS = 200
"""As many as a model id may have; all other ids are shorter. Error messages repeat a name whole."""
MAX_NAMES = 1024
MAX_PATH_CHARACTERS = 4096
MAX_SHOWN_CHARACTERS = 200
"""Of other text that a caller sent, an error message repeats at most this much."""

Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]
"""An id or another short text."""

FilePath = Annotated[str, Field(max_length=MAX_PATH_CHARACTERS)]

Names = Annotated[list[Name], Field(max_length=MAX_NAMES)]


def shown(text: str) -> str:
    """A caller's text, cut to what an error message repeats of it."""
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 1] + "…"
