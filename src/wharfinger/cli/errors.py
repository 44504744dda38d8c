"""What a refusal of the control plane means for whoever ran the command: a sentence and an exit code."""

from __future__ import annotations

from typing import Any

import httpx

from wharfinger.cli.output import CliError, Exit, in_options
from wharfinger.placement import codes

PLACEMENT_FAILURE_HEADER = "X-Skulk-Placement-Failure"

_EXIT_BY_STATUS = {
    400: Exit.USAGE,
    401: Exit.UNAUTHORIZED,
    403: Exit.UNAUTHORIZED,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    422: Exit.USAGE,
    503: Exit.UNREACHABLE,
}


def refused(response: httpx.Response) -> CliError:
    """The error of an answer that is none, with the server's own error object."""
    try:
        error = response.json()["error"]
        message = error["message"]
    except (ValueError, KeyError, TypeError):
        error, message = None, f"HTTP {response.status_code} from {response.url.path}"
    code = exit_code(response.status_code, error or {}, response.headers)
    if code is Exit.UNAUTHORIZED:
        message = (
            f"{message.removesuffix('.')}. The CLI sends WHARF_API_KEY; without that and WHARF_URL, admin.key of the "
            "data directory."
        )
    if code is Exit.REFUSED:
        message = in_options(message)
    told = CliError(message, code, document=error)
    told.status = response.status_code
    return told


def exit_code(status: int, error: dict[str, Any], headers: httpx.Headers) -> Exit:
    """The exit code of a refusal. Only the planner's own refusals are :attr:`Exit.REFUSED`.

    A fleet that is still being measured is refused with 503 and is a placement refusal all the same.
    """
    if PLACEMENT_FAILURE_HEADER in headers or error.get("reason") in codes.MEANINGS:
        return Exit.REFUSED
    return _EXIT_BY_STATUS.get(status, Exit.FAILED)
