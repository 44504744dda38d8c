"""A runner process that speaks the protocol and behaves badly on purpose: MODE STATUS_FD RUNNER_ID.

``silent`` never reports; ``loading`` reports that it loads and never finishes; ``deaf`` does so ignoring every
signal that can be ignored; ``mute`` says it is loaded at a port where nobody listens; ``babbling`` reports no JSON;
``helper`` starts a child that ignores SIGTERM and then crashes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def main() -> None:
    mode, status_fd = sys.argv[1], int(sys.argv[2])

    def report(**status: object) -> None:
        os.write(status_fd, json.dumps(status).encode() + b"\n")

    if mode == "deaf":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    if mode == "helper":
        child = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        os.write(1, f"helper {child.pid}\n".encode())
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "babbling":
        os.write(status_fd, b"loading, please wait\n")
    elif mode != "silent":
        report(state="loading")
    if mode == "mute":
        report(state="loaded", port=1, engine_load_s=0.0)
    time.sleep(600)


if __name__ == "__main__":
    main()
