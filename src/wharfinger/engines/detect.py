"""Find the engines of this node.

Detection loads native libraries (drivers included), so it runs in a process of its own: ``python -m
wharfinger.engines.detect`` prints one JSON document. A library that crashes there takes nothing with it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict

from wharfinger.engines.base import EngineFound
from wharfinger.engines.environment import engine_environment
from wharfinger.engines.registry import ENGINES

_TIMEOUT_S = 60.0


def detect_engines() -> tuple[tuple[EngineFound, ...], dict[str, str]]:
    """Engines found, and for each other one the reason it is not. Blocks while a child process looks."""
    missing = {e.name: f"not installed; {e.install_hint}" for e in ENGINES if not e.installed()}
    if len(missing) == len(ENGINES):
        return (), missing
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "wharfinger.engines.detect"],
            stdin=subprocess.DEVNULL,
            env=engine_environment(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        reason = f"did not answer the detection within {_TIMEOUT_S:.0f} s"
        return (), {e.name: missing.get(e.name, reason) for e in ENGINES}
    except (subprocess.CalledProcessError, IndexError, ValueError, OSError) as error:
        reason = f"the detection failed: {_last_line(error)}"
        return (), {e.name: missing.get(e.name, reason) for e in ENGINES}
    found = tuple(EngineFound(**(item | {"backends": tuple(item["backends"])})) for item in answer["found"])
    return found, missing | answer["failed"]


def _last_line(error: Exception) -> str:
    text = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else ""
    lines = text.strip().splitlines()
    return lines[-1] if lines else str(error)


def main() -> None:
    """Print what :func:`detect_engines` reads."""
    # The system itself ends this process, whatever lock a driver holds, and also when the parent has gone.
    signal.setitimer(signal.ITIMER_REAL, _TIMEOUT_S)
    found: list[dict[str, object]] = []
    failed: dict[str, str] = {}
    for engine in ENGINES:
        try:
            one = engine.detect()
        except (ImportError, OSError, RuntimeError) as error:
            failed[engine.name] = f"installed but does not load: {error}"
            continue
        if one is not None:
            found.append(asdict(one))
    sys.stdout.write(json.dumps({"found": found, "failed": failed}) + "\n")


if __name__ == "__main__":
    main()
