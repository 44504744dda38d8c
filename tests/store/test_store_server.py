"""The PostgreSQL that the tests bring along: it finds a port, and a run that is told to end leaves none of it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import asyncpg

from support.postgres import PostgresServer

TESTS = Path(__file__).parents[1]
TERMINATED = """
import os, signal
from support.postgres import server

def test_it():
    print("SERVER IN", server().directory, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""


async def test_a_port_that_was_taken_meanwhile_is_replaced_and_kept_from_then_on() -> None:
    postgres = PostgresServer()
    try:
        with socket.create_server(("127.0.0.1", 0)) as other:
            postgres.port = other.getsockname()[1]
            postgres.start()
            kept = postgres.port
            assert kept != other.getsockname()[1]
        postgres.stop()
        postgres.start()
        assert postgres.port == kept
        connection = await asyncpg.connect(user="postgres", host="127.0.0.1", port=kept, database="postgres")
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
    finally:
        postgres.remove()


def test_a_run_that_is_told_to_end_leaves_no_server(tmp_path: Path) -> None:
    test_file = tmp_path / "test_terminated.py"
    test_file.write_text(TERMINATED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-p", "conftest", "--rootdir", str(tmp_path), str(test_file)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "KeyboardInterrupt" in done.stdout, done.stdout + done.stderr
    (directory,) = re.findall(r"SERVER IN (\S+)", done.stdout)
    assert not Path(directory).exists()
