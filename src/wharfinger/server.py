"""Composition: one process with control plane, local node, API, dashboard and gateway behind one port."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from wharfinger.access.authenticator import Authenticator
from wharfinger.access.keys import KeyStore
from wharfinger.access.secrets import InstallationSecret, write_private
from wharfinger.api.app import create_app
from wharfinger.api.guard import Guard
from wharfinger.catalog.library import CatalogLibrary
from wharfinger.fleet.local import LocalAgent
from wharfinger.operations.worker import new_owner
from wharfinger.routing.gateway import Gateway
from wharfinger.routing.targets import RouteTable
from wharfinger.settings import Settings, is_loopback
from wharfinger.store.database import Database
from wharfinger.store.migrate import upgrade
from wharfinger.web.routes import router as web_router
from wharfinger.workflows.control import ControlPlane

KEY_REFRESH_S = 1.0
MAX_OPEN_FILES = 65536

log = structlog.get_logger(__name__)


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
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise StartError(
                f"another control plane (process {holder}) already runs on the data directory {path}. Use it "
                "(`wharf status`), stop it, or name another directory with --data-dir."
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        os.close(descriptor)


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
    except OSError as error:
        listener.close()
        raise StartError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}). Stop what uses the port, or choose "
            "another with --port (0 takes any free one)."
        ) from error
    return listener


@asynccontextmanager
async def running(
    settings: Settings, listener: socket.socket, stop: Callable[[], None] = lambda: None
) -> AsyncIterator[Started]:
    """Everything up and ready behind ``listener``; everything down again at the end.

    Raises:
        StartError, wharfinger.store.errors.StoreError.
    """
    database = Database.open(settings.effective_database_url)
    try:
        await upgrade(database)
        secret = InstallationSecret.load_or_create(settings.secret_file)
        keys = KeyStore(database)
        first_key = await keys.ensure_admin(settings.data_dir)
        authenticator = Authenticator(keys, secret, disabled=settings.no_auth)
        agent = LocalAgent(settings.data_dir, node_name=settings.node_name)
        await agent.start()
        table = RouteTable()
        owner = new_owner(agent.node_id)
        control = ControlPlane(
            settings, database, CatalogLibrary(database), {agent.node_id: agent}, table, secret, owner
        )
        gateway = Gateway(table, authenticator.authenticate)
        if database.is_sqlite:
            await control.operations.release_leases_of_previous_owner(f"{agent.node_id}:")
        await gateway.startup()
        await control.start()
        refresher = asyncio.create_task(_refresh_keys(keys))
        try:
            app = Guard(create_app(control, authenticator, web_router), authenticator)
            async with _served(_dispatch(gateway, app), listener, control.stopping.set):
                host, port = listener.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                yield Started(f"http://{shown}:{port}", control, first_key, stop)
        finally:
            refresher.cancel()
            await control.close()
            await gateway.shutdown()
    finally:
        await database.close()


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


async def _refresh_keys(keys: KeyStore) -> None:
    while True:
        await asyncio.sleep(KEY_REFRESH_S)
        try:
            await keys.refresh()
        except Exception as error:
            log.warning("API keys not refreshed, keeping the last ones", reason=type(error).__name__)


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
    raise_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    async with data_directory(settings):
        listener = listen(settings)
        async with running(settings, listener, stop.set) as started:
            write_endpoint(settings.data_dir, started.url)
            stopped = asyncio.create_task(stop.wait())
            announced = on_started(started)
            if announced is not None:
                follow_up = asyncio.ensure_future(announced)
                await asyncio.wait({follow_up, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not follow_up.done():
                    follow_up.cancel()
            await stopped


def write_endpoint(data_dir: Path, url: str) -> None:
    """Tell the CLI where this data directory's control plane listens."""
    write_private(data_dir / "endpoint", url + "\n")
