"""Composition: one process with control plane, local node, API, dashboard and gateway behind one port."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError

from wharfinger.access.authenticator import Authenticator
from wharfinger.access.keys import KeyStore
from wharfinger.access.secrets import InstallationSecret, SecretFileError, write_private
from wharfinger.access.sessions import SessionStore
from wharfinger.api.app import create_app
from wharfinger.api.guard import Guard
from wharfinger.catalog.library import CatalogLibrary
from wharfinger.fleet.agent import AgentError
from wharfinger.fleet.local import LocalAgent
from wharfinger.operations.worker import new_owner
from wharfinger.routing.gateway import Gateway
from wharfinger.routing.targets import RouteTable
from wharfinger.settings import Settings, is_loopback
from wharfinger.store.database import Database
from wharfinger.store.migrate import upgrade
from wharfinger.web.routes import router as web_router
from wharfinger.workflows.control import ControlPlane
from wharfinger.workflows.fleet_view import hosted_elsewhere
from wharfinger.workflows.loops import forever

ACCESS_REFRESH_S = 1.0
MAX_OPEN_FILES = 65536
BACKLOG = 2048
EXIT_IMPATIENT = 130
LOCK_TRIES = 5
LOCK_PAUSE_S = 0.05
DATABASE_DRIVERS = ("postgresql+asyncpg", "sqlite+aiosqlite")
PRIVATE_UMASK = 0o077
"""What this process and its engines write is for its user only, also in a data directory that others may enter."""
ENDPOINT_FILE = "endpoint"
"""In the data directory, while a control plane runs: where it listens, for the CLI."""


class StartError(Exception):
    """The control plane cannot start. The message is one paragraph that says what to do."""


@dataclass(frozen=True, slots=True)
class Started:
    """A running control plane, for whoever started it."""

    url: str
    control: ControlPlane
    first_admin_key: str | None
    """Set on the first start only."""
    stop: Callable[[], None]
    """Ends :func:`serve`."""


def check_exposure(settings: Settings) -> None:
    """Refuse to serve without authentication where other machines can reach it.

    Raises:
        StartError
    """
    if settings.no_auth and not is_loopback(settings.host):
        raise StartError(
            f"--no-auth is only allowed on a loopback address, and --host is {settings.host}: anybody on that network "
            "could launch and delete models. Drop --no-auth, or bind to 127.0.0.1."
        )


@asynccontextmanager
async def data_directory(settings: Settings) -> AsyncIterator[None]:
    """Make the data directory and hold its lock: one control plane for each.

    Raises:
        StartError: not writable, or another control plane holds it.
    """
    path = settings.data_dir
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StartError(
            f"the data directory {path} cannot be written ({error.strerror}). Make it writable for this user, or name "
            "another with --data-dir or WHARF_DATA_DIR."
        ) from error
    try:
        if not await _locked(descriptor):
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise StartError(
                f"another control plane (process {holder}) already runs on the data directory {path}. Use it "
                "(`wharf status`), stop it, or name another directory with --data-dir."
            )
        (path / ENDPOINT_FILE).unlink(missing_ok=True)  # of a control plane that was killed
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        os.close(descriptor)


async def _locked(descriptor: int) -> bool:
    """Take the lock; a moment's patience, because the CLI tests it too."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            await asyncio.sleep(LOCK_PAUSE_S)
        else:
            return True
    return False


def listen(settings: Settings) -> socket.socket:
    """Bind the port before anything else is started.

    Raises:
        StartError: in use, or not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}). {_listen_advice(error)}"
        ) from error
    return listener


def _listen_advice(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "--host must name an address of this machine: 127.0.0.1 for itself alone, 0.0.0.0 for every network."
    if error.errno == errno.EADDRINUSE:
        return "Stop what uses the port, or choose another with --port (0 takes any free one)."
    return "Choose another port with --port (0 takes any free one) or another address with --host."


@asynccontextmanager
async def running(
    settings: Settings, listener: socket.socket, stop: Callable[[], None] = lambda: None
) -> AsyncIterator[Started]:
    """Everything up and ready behind ``listener``; everything down again at the end.

    Raises:
        StartError, wharfinger.store.errors.StoreError.
    """
    async with AsyncExitStack() as stack:
        database = _open_database(settings)
        stack.push_async_callback(database.close)
        try:
            await upgrade(database)
            secret = InstallationSecret.load_or_create(settings.secret_file)
            keys = KeyStore(database)
            first_key = await keys.ensure_admin(settings.data_dir)
            agent = LocalAgent(
                settings.data_dir, node_name=settings.node_name, memory_cap_bytes=settings.node_memory_cap
            )
            await agent.start()
            await _check_sole_host(settings, database, agent)
        except (SecretFileError, AgentError) as error:
            raise StartError(str(error)) from error
        except DatabaseError as error:
            raise StartError(
                f"the database {database.engine.url.render_as_string()} cannot be used ({error.orig}). If the file is "
                "damaged, restore it from a backup or move it away to begin anew."
            ) from error
        authenticator = Authenticator(keys, SessionStore(database, secret), disabled=settings.no_auth)
        await authenticator.refresh()
        table = RouteTable()
        owner = new_owner(agent.node_id)
        control = ControlPlane(
            settings, database, CatalogLibrary(database), {agent.node_id: agent}, table, secret, owner
        )
        gateway = Gateway(table, authenticator.authenticate)
        # Whoever held them ran on this data directory, whose lock is ours now.
        await control.operations.release_leases_of_previous_owner(f"{agent.node_id}:")
        stack.push_async_callback(gateway.shutdown)
        await gateway.startup()
        stack.push_async_callback(control.close)
        await control.start()
        # At no longer pauses after failures: a key that was revoked meanwhile must not be good for half a minute more.
        access = forever("access", authenticator.refresh, ACCESS_REFRESH_S, max_pause_s=ACCESS_REFRESH_S)
        refresher = asyncio.create_task(access)
        stack.callback(refresher.cancel)
        app = Guard(create_app(control, authenticator, web_router), authenticator)
        async with _served(_dispatch(gateway, app), listener, control.stopping.set):
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            yield Started(f"http://{shown}:{port}", control, first_key, stop)


async def _check_sole_host(settings: Settings, database: Database, agent: LocalAgent) -> None:
    """Refuse to host a node that another replica hosts: each would end the other's work.

    Raises:
        StartError: this data directory is a copy of one in use.
    """
    if database.is_sqlite:
        return  # one file, of one control plane
    name = await hosted_elsewhere(database, agent.node_id)
    if name is not None:
        await agent.close()
        raise StartError(
            f"node {agent.node_id} is hosted by a control plane that runs on {name!r}, so the data directory "
            f"{settings.data_dir} is a copy of the one in use there. Delete {settings.data_dir / 'node_id'} to make "
            "this machine a node of its own, or stop the other."
        )


def _open_database(settings: Settings) -> Database:
    try:
        url = make_url(settings.effective_database_url)
        if url.drivername in DATABASE_DRIVERS:
            return Database.open(url)
    except (ArgumentError, ValueError):
        pass  # said below, without the URL: it may hold a password
    raise StartError(
        "WHARF_DATABASE_URL is not of an accepted kind: postgresql+asyncpg://USER@HOST/NAME or "
        "sqlite+aiosqlite:///FILE. Leave it unset for a SQLite file in the data directory."
    )


Scope = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Any, Any], Awaitable[None]]


def _dispatch(gateway: Gateway, app: AsgiApp) -> AsgiApp:
    """Inference goes straight to the gateway; everything else is the API."""

    async def dispatch(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and gateway.handles(scope["path"]):
            await gateway(scope, receive, send)
        else:
            await app(scope, receive, send)

    return dispatch


class _Server(uvicorn.Server):
    """A uvicorn server that leaves the signals to :func:`serve`, so that the order of going down is ours."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not touch the signal handlers."""
        yield


@asynccontextmanager
async def _served(app: AsgiApp, listener: socket.socket, on_stop: Callable[[], None]) -> AsyncIterator[None]:
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                await task
                raise StartError("the HTTP server ended while starting; see the log above")
            await asyncio.sleep(0.005)
        yield
    finally:
        on_stop()
        server.should_exit = True
        await task


def raise_file_limit() -> None:
    """Let this process open as many files as it may: a request in flight holds two sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve(settings: Settings, on_started: Callable[[Started], Awaitable[None] | None]) -> None:
    """Run until SIGINT or SIGTERM.

    Raises:
        StartError: with what to do.
    """
    check_exposure(settings)
    os.umask(PRIVATE_UMASK)
    raise_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked_to_stop() -> None:
        if stop.is_set():
            os._exit(
                EXIT_IMPATIENT
            )  # asked twice: runners end with this process, whatever it was waiting for
        stop.set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, asked_to_stop)
    async with data_directory(settings):
        listener = listen(settings)
        async with running(settings, listener, stop.set) as started:
            write_private(settings.data_dir / ENDPOINT_FILE, started.url + "\n")
            try:
                await _follow_up(on_started(started), stop)
            finally:
                (settings.data_dir / ENDPOINT_FILE).unlink(missing_ok=True)


async def _follow_up(work: Awaitable[None] | None, stop: asyncio.Event) -> None:
    """Until asked to stop, let ``work`` run beside; what it raises ends the server and is raised again."""
    stopped = asyncio.create_task(stop.wait())
    try:
        if work is not None:
            follow_up = asyncio.ensure_future(work)
            await asyncio.wait({follow_up, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not follow_up.done():
                follow_up.cancel()
            with suppress(asyncio.CancelledError):
                await follow_up
        await stopped
    finally:
        stopped.cancel()
