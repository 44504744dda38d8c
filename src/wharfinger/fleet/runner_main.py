"""The runner process: loads one model into an engine and serves it until it is told to end.

``python -m wharfinger.fleet.runner_main STATUS_FD RUNNER_ID``, as a session leader. Standard input carries one JSON
line, the launch (secrets included, so they are in no argument and no environment), then commands; its end means the
control plane is gone. Status goes out as JSON lines on ``STATUS_FD``; whatever the engine prints is the log.

Keep the imports light: start-up time is paid at each launch, and a runner holds nothing of the control plane.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

from wharfinger.engines.base import EngineError, EngineLaunch
from wharfinger.engines.registry import engine_for
from wharfinger.fleet.runner_guard import fork_guard

EXIT_FAILED = 70
"""Exit status of a runner that could not load or serve (``EX_SOFTWARE``); the reason is on the status pipe."""


def main() -> None:
    """Read the launch, serve, end."""
    if os.getpgrp() != os.getpid():
        sys.exit("runner_main is started by the node agent, in a session of its own; use: wharf launch MODEL")
    status_fd = int(sys.argv[1])
    line = _read_line()
    if line is None:
        os._exit(EXIT_FAILED)
    message = json.loads(line)
    parent_pid = int(message.pop("control_plane_pid"))
    if os.getppid() != parent_pid:
        os._exit(EXIT_FAILED)
    requests = fork_guard(parent_pid)
    _die_first()
    launch = EngineLaunch(**message)
    engine = engine_for(launch.backend)
    if engine is None:
        _fail(status_fd, "engine_missing", f"no engine serves backend {launch.backend!r}")
    _status(status_fd, state="loading")
    try:
        serving = engine.load(launch)
    except EngineError as error:
        _fail(status_fd, error.code, str(error))
    _status(status_fd, state="loaded", port=serving.port, engine_load_s=serving.load_s)
    os.read(requests, 1)
    serving.close()
    # Native threads of an engine must not be able to hold up the end.
    os._exit(0)


def _die_first() -> None:
    """When memory runs out the kernel shall end this process, which can be started again, and not its control plane."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        return  # no such file outside Linux; nothing else depends on it


def _read_line() -> bytes | None:
    """The first line of standard input, read without taking a byte of what follows; ``None`` if it ends before."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        line += byte
    return bytes(line)


def _status(fd: int, **values: object) -> None:
    os.write(fd, json.dumps(values).encode() + b"\n")


def _fail(fd: int, code: str, message: str) -> NoReturn:
    _status(fd, state="failed", error_code=code, error_message=message)
    sys.stderr.write(f"runner: {message}\n")
    sys.stderr.flush()
    os._exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
