"""Why a runner failed, in one code and one sentence."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from wharfinger.engines.registry import engine_for


@dataclass(frozen=True, slots=True)
class Failure:
    """What goes into a report's ``error_code`` and ``error_message``."""

    code: str
    message: str


def explained(backend: str, failure: Failure | None, exit_code: int, tail: tuple[str, ...]) -> Failure:
    """Why a runner ended on its own: what it said, what its engine's log tells, or how its process ended."""
    if failure is not None and failure.code != "load_failed":
        return failure
    engine = engine_for(backend)
    told = engine.explain(tail) if engine is not None and failure is not None else None
    if told is not None:
        return Failure(told.code, str(told))
    if failure is not None:
        return failure
    if exit_code == -signal.SIGKILL:
        how = "was killed (signal 9), perhaps by the system for want of memory or by somebody"
    elif exit_code < 0:
        how = f"was ended by {signal.Signals(-exit_code).name}"
    else:
        how = f"exited with status {exit_code}"
    return Failure("runner_crashed", f"the runner's process {how}; its log tells more")
