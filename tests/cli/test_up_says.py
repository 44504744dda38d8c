"""What ``wharf up`` tells a new user to do next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.server import wharf
from support.tiny_gguf import write_tiny_gguf


def test_the_next_step_is_one_that_can_be_taken(tmp_path: Path) -> None:
    environment = {**os.environ, "WHARF_DATA_DIR": str(tmp_path / "data"), "PYTHONUNBUFFERED": "1"}
    model = write_tiny_gguf(tmp_path, "llama").path
    for told in ("wharf models add FILE.gguf (the catalog is empty)", "wharf models list · wharf plan MODEL"):
        with subprocess.Popen(
            [sys.executable, "-m", "wharfinger.cli", "up", "--port", "0"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as up:
            assert up.stdout
            said = ""
            while "  stop " not in said:
                line = up.stdout.readline()
                assert line, f"it ended: {said}"
                said += line
            assert told in said
            added = wharf("models", "add", str(model), "--id", "tiny", environment=environment)
            up.terminate()
        if "empty" in told:
            assert added.returncode == 0, added.stderr
