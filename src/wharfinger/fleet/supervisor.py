"""One runner: its process, its states, its deadlines, its end.

**Runners never outlive their control plane.** A runner learns of its control plane's death from the pipe on its
standard input (see :mod:`wharfinger.fleet.runner_guard`) and ends its whole process group at once; whatever that
misses, the next start removes (see :mod:`wharfinger.fleet.leftovers`). A model is loaded again after a restart;
in return no memory is ever held by something nobody supervises.

A report says ``RunnerShutdown`` or ``RunnerFailed`` only once no process is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import structlog

from wharfinger.engines.base import EngineLaunch
from wharfinger.engines.environment import engine_environment
from wharfinger.engines.ports import LOOPBACK
from wharfinger.fleet.agent import AgentError, RunnerReport, RunnerSpec, RunnerState, StopDeadlines
from wharfinger.fleet.failure import Failure, explained
from wharfinger.fleet.process_group import ProcessIdentity, group_members, reap_group, signal_group
from wharfinger.fleet.readiness import NotServing, prove
from wharfinger.fleet.runner_log import LogPump, RunnerLog

RUNNER_COMMAND: Final = (sys.executable, "-P", "-m", "wharfinger.fleet.runner_main")
IDENTITY_FILE: Final = "process.json"
_LOAD_BYTES_PER_S: Final = 50_000_000
"""Slowest disk we wait for: a load may take as long as reading the file at this speed, however short its deadline."""
_STRAY_GRACE_S: Final = 0.5
_STRAY_POLL_S: Final = 0.01
_STRAY_GIVE_UP_S: Final = 5.0
_log = structlog.get_logger(__name__)


class Supervisor:
    """Runs and watches the process of one runner. All methods belong to one event loop."""

    def __init__(
        self,
        spec: RunnerSpec,
        node_id: str,
        directory: Path,
        session: aiohttp.ClientSession,
        command: Sequence[str] = RUNNER_COMMAND,
    ) -> None:
        """Prepare; nothing runs before :meth:`start`. ``directory`` holds the runner's log and identity."""
        now = datetime.now(UTC)
        self.log = RunnerLog(directory)
        self.spec = spec
        self._directory = directory
        self._session = session
        self._command = command
        self._process: Process | None = None
        self._identity: ProcessIdentity | None = None
        self._failure: Failure | None = None
        self._stopping = False
        self._stop_task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._first_status = asyncio.Event()
        self._loaded = asyncio.Event()
        self._log_ended = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._report = RunnerReport(
            runner_id=spec.runner_id,
            instance_id=spec.instance_id,
            node_id=node_id,
            model_id=spec.model_id,
            backend=spec.backend,
            state=RunnerState.IDLE,
            state_since=now,
            started_at=now,
            total_layers=spec.end_layer - spec.start_layer,
        )

    @property
    def report(self) -> RunnerReport:
        """The runner as it is now; ``resident_bytes`` is not measured here."""
        return self._report

    async def start(self) -> None:
        """Start the process; returns as soon as it exists.

        Raises:
            AgentError: ``spawn_failed`` when the system refuses another process, thread or descriptor.
        """
        loop = asyncio.get_running_loop()
        try:
            (status_read, status_write), (log_read, log_write) = _two_pipes()
        except OSError as error:
            raise _not_spawned(error) from error
        try:
            # First, because it takes a thread: without one, nobody would empty a living runner's log pipe.
            LogPump(log_read, self.log, lambda: _from_thread(loop, self._log_ended))
        except RuntimeError as error:
            for descriptor in (status_read, status_write, log_read, log_write):
                os.close(descriptor)
            raise _not_spawned(error) from error
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                str(status_write),
                self.spec.runner_id,
                stdin=PIPE,
                stdout=log_write,
                stderr=log_write,
                pass_fds=(status_write,),
                cwd=self._directory,
                env=engine_environment(),
                start_new_session=True,
            )
        except BaseException as error:  # a cancelled start, too, must not keep the pipe
            os.close(status_read)
            if isinstance(error, OSError):
                raise _not_spawned(error) from error
            raise
        finally:
            os.close(status_write)
            os.close(log_write)
        self._update(pid=self._process.pid)
        status = asyncio.create_task(self._follow_status(self._process, status_read))
        drive = asyncio.create_task(self._drive(self._process))
        self._tasks = [status, drive, asyncio.create_task(self._watch(self._process, status, drive))]
        self._record(self._process.pid)

    async def wait_change(self, since: RunnerReport | None, timeout_s: float) -> RunnerReport:
        """The report once it differs from ``since`` in state or progress, or at the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while since is not None and _progress(self._report) == _progress(since):
                    await self._changed.wait()
        return self._report

    async def stop(self, deadlines: StopDeadlines) -> RunnerReport:
        """Ask (once it serves), SIGTERM, SIGKILL; returns when no process is left. A second call joins the first.

        Raises:
            AgentError: ``runner_survived_kill`` when the kernel does not end the process within the deadlines.
        """
        if self._stop_task is None or _broke(self._stop_task):
            self._stop_task = asyncio.create_task(self._stop(deadlines))
        # Shielded: a caller that gives up must not leave a runner half stopped.
        await asyncio.shield(self._stop_task)
        return self._report

    async def _stop(self, deadlines: StopDeadlines) -> None:
        if self._report.state.ended or self._process is None:
            return
        serving = self._report.state in (RunnerState.READY, RunnerState.RUNNING)
        self._stopping = True
        self._update(state=RunnerState.SHUTTING_DOWN)
        if serving and await self._ask() and await self._ends_within(deadlines.ask_s):
            return
        for number, seconds in ((signal.SIGTERM, deadlines.terminate_s), (signal.SIGKILL, deadlines.kill_s)):
            signal_group(self._process.pid, number)
            if await self._ends_within(seconds):
                return
        raise AgentError(
            "runner_survived_kill",
            f"process {self._process.pid} of runner {self.spec.runner_id} is still there {deadlines.kill_s:g} s after "
            "SIGKILL: it hangs in the kernel (a driver or a dead disk); stop again later, or restart the machine",
        )

    async def _ask(self) -> bool:
        process = self._process
        if process is None or process.stdin is None:
            return False
        try:
            process.stdin.write(b'{"command":"shutdown"}\n')
            await process.stdin.drain()
        except (ConnectionError, RuntimeError):
            return False
        return True

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def _record(self, pid: int) -> None:
        """Record the process for the next start; one that cannot be recorded must not run."""
        try:
            self._identity = ProcessIdentity.of(pid)
            if self._identity is not None:
                (self._directory / IDENTITY_FILE).write_text(self._identity.model_dump_json())
        except (OSError, psutil.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self._failure = Failure(
                "spawn_failed", f"the process cannot be recorded in {self._directory}: {reason}"
            )
            signal_group(pid, signal.SIGKILL)

    def _give_up(self, process: Process, what: str, error: Exception) -> None:
        """An error of ours ends the runner: nobody would follow it any further. Its text may hold anything, the key
        too, so only its type and place are told."""
        kind = type(error).__name__
        place = traceback.extract_tb(error.__traceback__)[-1]
        _log.error(
            "runner_supervision_broke",
            runner_id=self.spec.runner_id,
            doing=what,
            error=kind,
            place=f"{place.filename}:{place.lineno}",
        )
        self._failure = self._failure or Failure(
            "internal_error", f"the control plane's own {what} broke ({kind})"
        )
        signal_group(process.pid, signal.SIGKILL)

    async def _follow_status(self, process: Process, status_fd: int) -> None:
        try:
            await self._read_status(status_fd)
        except Exception as error:
            self._give_up(process, "reading of its status", error)

    async def _read_status(self, status_fd: int) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(status_fd, "rb", buffering=0)
        )
        try:
            while line := await reader.readline():
                self._take_status(json.loads(line))
        finally:
            transport.close()

    def _take_status(self, status: dict[str, Any]) -> None:
        self._first_status.set()
        match status["state"]:
            case "loading":
                self._enter(RunnerState.LOADING)
            case "loaded":
                self._enter(
                    RunnerState.LOADED,
                    endpoint=f"http://{LOOPBACK}:{status['port']}",
                    engine_load_s=status["engine_load_s"],
                    layers_loaded=self._report.total_layers,
                )
                self._loaded.set()
            case _:
                self._failure = self._failure or Failure(status["error_code"], status["error_message"])

    async def _drive(self, process: Process) -> None:
        """Take the runner to ready; a deadline that passes, or a wrong answer, ends it."""
        try:
            await self._send_launch(process)
            await self._reach(
                self._first_status, self.spec.first_status_timeout_s, "did not report that it lives"
            )
            load_s = await asyncio.to_thread(_load_deadline_s, self.spec)
            await self._reach(self._loaded, load_s, "did not finish loading the model")
            await self._warm_up()
        except NotServing as error:
            self._failure = self._failure or Failure(error.code, str(error))
            signal_group(process.pid, signal.SIGKILL)
        except Exception as error:
            self._give_up(process, "driving of the runner", error)

    async def _send_launch(self, process: Process) -> None:
        assert process.stdin is not None
        # A runner that is already dead is reported by the watcher, with its exit status.
        with contextlib.suppress(ConnectionError):
            process.stdin.write(_launch_line(self.spec))
            await process.stdin.drain()

    async def _reach(self, event: asyncio.Event, seconds: float, what: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            raise NotServing(
                "runner_unresponsive", f"the runner {what} within {seconds:g} s and was ended"
            ) from None

    async def _warm_up(self) -> None:
        endpoint = self._report.endpoint
        assert endpoint is not None
        self._enter(RunnerState.WARMING_UP)
        await prove(self._session, endpoint, self.spec, self.spec.warmup_timeout_s)
        self._enter(RunnerState.READY)

    async def _watch(self, process: Process, status: asyncio.Task[None], drive: asyncio.Task[None]) -> None:
        try:
            exit_code = await process.wait()
            drive.cancel()
            await self._end_strays()
            # The pipe's other ends are gone, so what is left in it can be read to the end.
            await asyncio.wait({status, drive}, timeout=_STRAY_GRACE_S)
            if process.stdin is not None:
                process.stdin.close()
            # Should it stay, the next start finds nothing under this identity and drops it.
            with contextlib.suppress(OSError):
                (self._directory / IDENTITY_FILE).unlink()
            await self._finish(exit_code)
        except Exception as error:
            self._give_up(process, "watching of the runner", error)
            self._end(process.returncode, self._failure, ())
        finally:
            drive.cancel()
            status.cancel()
            self._ended.set()

    async def _end_strays(self) -> None:
        """Return when nothing of the runner's session is left: helpers hold memory, too, until they are gone.

        The log pipe ends with the last process that inherited it, so it is waited for before anybody is looked for.
        """
        identity = self._identity
        deadline = asyncio.get_running_loop().time() + _STRAY_GIVE_UP_S
        while identity is not None and asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STRAY_GRACE_S):
                    await self._log_ended.wait()
            if await asyncio.to_thread(group_members, identity):
                signal_group(identity.pid, signal.SIGKILL)
                await asyncio.sleep(_STRAY_POLL_S)
            elif self._log_ended.is_set():
                reap_group(identity.pid)
                return

    async def _finish(self, exit_code: int) -> None:
        if self._stopping:
            self._end(exit_code, None, ())
            return
        tail = await asyncio.to_thread(self.log.tail)
        self._end(exit_code, explained(self.spec.backend, self._failure, exit_code, tail), tail)

    def _end(self, exit_code: int | None, failure: Failure | None, tail: tuple[str, ...]) -> None:
        if self._stopping or failure is None:
            self._update(state=RunnerState.SHUTDOWN, exit_code=exit_code, endpoint=None)
            return
        self._update(
            state=RunnerState.FAILED,
            exit_code=exit_code,
            endpoint=None,
            error_code=failure.code,
            error_message=failure.message,
            log_tail=tail,
        )

    def _enter(self, state: RunnerState, **values: Any) -> None:
        """Go on to a state, unless the runner is being stopped."""
        self._update(**values, **({} if self._stopping else {"state": state}))

    def _update(self, **values: Any) -> None:
        if values.get("state", self._report.state) is not self._report.state:
            values["state_since"] = datetime.now(UTC)
        self._report = self._report.model_copy(update=values)
        self._changed.set()
        self._changed = asyncio.Event()


def _two_pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Both or none.

    Raises:
        OSError: no descriptors are left.
    """
    first = os.pipe()
    try:
        return first, os.pipe()
    except OSError:
        for descriptor in first:
            os.close(descriptor)
        raise


def _not_spawned(error: OSError | RuntimeError) -> AgentError:
    return AgentError("spawn_failed", f"the runner's process could not be started: {error}")


def _broke(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _progress(report: RunnerReport) -> tuple[object, ...]:
    return (report.state, report.pid, report.layers_loaded, report.state_since)


def _from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    # The loop may be closed already when the process ends after its control plane's loop.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


def _load_deadline_s(spec: RunnerSpec) -> float:
    try:
        size_bytes = os.stat(spec.model_path).st_size
    except OSError:
        size_bytes = 0
    return max(spec.load_timeout_s, size_bytes / _LOAD_BYTES_PER_S)


def _launch_line(spec: RunnerSpec) -> bytes:
    launch = {field.name: getattr(spec, field.name) for field in dataclasses.fields(EngineLaunch)}
    launch |= {"api_key": spec.api_key.get_secret_value(), "control_plane_pid": os.getpid()}
    return json.dumps(launch).encode() + b"\n"
