"""The node agent of the machine the control plane itself runs on, in process."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from wharfinger.engines.registry import engine_for
from wharfinger.fleet.agent import (
    AgentError,
    LogChunk,
    NodeReport,
    RunnerReport,
    RunnerSpec,
    RunnerState,
    StopDeadlines,
)
from wharfinger.fleet.blocking import OneAtATime
from wharfinger.fleet.identity import node_id
from wharfinger.fleet.leftovers import drop_old_logs, sweep
from wharfinger.fleet.runner_log import RunnerLog
from wharfinger.fleet.runner_memory import ModelProcess, with_resident_bytes
from wharfinger.fleet.supervisor import Supervisor
from wharfinger.fleet.telemetry import Telemetry

_RUNNER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""It names a directory."""
_MAX_READ_BYTES: Final = 4 * 1024 * 1024
_ANSWER_S: Final = 5.0
"""How long a driver or a disk may take to answer."""
_CLOSE: Final = StopDeadlines()
_log = structlog.get_logger(__name__)


class LocalAgent:
    """A :class:`~wharfinger.fleet.agent.NodeAgent` whose runners are children of this process.

    Runners never outlive it: see :mod:`wharfinger.fleet.supervisor`. One agent uses a data directory at a time.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        node_name: str | None = None,
        role: str = "full",
        memory_cap_bytes: int | None = None,
    ) -> None:
        """Read or make the node id; nothing runs before :meth:`start`.

        Args:
            memory_cap_bytes: reported as the most that models may take here; ``None`` sets no limit.

        Raises:
            AgentError: ``data_dir_unusable``, ``node_id_damaged``.
        """
        self._data_dir = data_dir.resolve()
        self._runners_dir = self._data_dir / "runners"
        self._node_id = node_id(self._data_dir)
        self._telemetry = Telemetry(
            self._node_id, node_name or socket.gethostname(), role, self._data_dir, memory_cap_bytes
        )
        self._supervisors: dict[str, Supervisor] = {}
        self._starting = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._lock_fd: int | None = None
        self._measurements = OneAtATime[NodeReport]("telemetry", _ANSWER_S)
        self._measuring: asyncio.Task[NodeReport] | None = None
        self._file_checks = OneAtATime[tuple[bool, ...]]("file-check", _ANSWER_S)
        self._closed = False

    @property
    def node_id(self) -> str:
        """Stable id, kept in the data directory."""
        return self._node_id

    async def start(self) -> tuple[str, ...]:
        """Take the data directory, end what an earlier process left behind, look for engines.

        Returns the ids of the runners that were ended, usually none.

        Raises:
            AgentError: ``data_dir_in_use`` when another agent has it, ``data_dir_unusable``.
        """
        self._take_directory()
        ended, _ = await asyncio.gather(
            asyncio.to_thread(sweep, self._runners_dir), asyncio.to_thread(self._telemetry.find_engines)
        )
        # Runners listen on loopback and are few: no pool limit, no proxy settings.
        self._session = aiohttp.ClientSession(trust_env=False)
        return ended

    async def report(self) -> NodeReport:
        """Measure the node now. Callers that ask at the same time share one measurement.

        Raises:
            AgentError: ``telemetry_timeout`` when it takes longer than 5 s, and no other is started while it hangs;
                ``telemetry_failed``.
        """
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._measure())
        return await asyncio.shield(self._measuring)

    async def _measure(self) -> NodeReport:
        living = tuple(
            ModelProcess(s.report.pid, s.spec.model_path)
            for s in self._supervisors.values()
            if s.report.pid is not None and not s.report.state.ended
        )
        try:
            return await self._measurements.run(lambda: self._telemetry.measure(living))
        except TimeoutError:
            raise AgentError(
                "telemetry_timeout",
                f"node {self._node_id} could not be measured within {_ANSWER_S:g} s: a driver or the disk of "
                f"{self._data_dir} hangs; look at the system's log, and restart the machine if it stays",
            ) from None
        except Exception as error:
            # A driver or a library did what nobody foresaw: this node's trouble, not that of whoever asks for all.
            _log.error("telemetry_failed", node_id=self._node_id, exc_info=error)
            raise AgentError(
                "telemetry_failed",
                f"node {self._node_id} could not be measured ({type(error).__name__}); its log has the details",
            ) from error

    async def has_files(self, paths: tuple[str, ...]) -> tuple[bool, ...]:
        """Whether each of ``paths`` is a file on this node now; one that cannot be looked at is not.

        Raises:
            AgentError: ``files_timeout`` when the disk does not answer within 5 s.
        """
        try:
            return await self._file_checks.run(lambda: tuple(os.path.isfile(path) for path in paths))
        except TimeoutError:
            raise AgentError(
                "files_timeout",
                f"node {self._node_id} could not look for {len(paths)} files within {_ANSWER_S:g} s: a disk hangs",
            ) from None

    async def start_runner(self, spec: RunnerSpec) -> RunnerReport:
        """Start a runner and return at once; a live one of the same id is adopted.

        Raises:
            AgentError: ``engine_missing``, ``unsupported``, ``invalid_spec``, ``spawn_failed``, ``data_dir_unusable``,
                ``agent_closed``.
        """
        async with self._starting:
            session = self._session
            if session is None or self._closed:
                raise AgentError(
                    "agent_closed", f"node {self._node_id} is not running: it has not started or is closing"
                )
            live = self._supervisors.get(spec.runner_id)
            if live is not None and not live.report.state.ended:
                return live.report
            _check(spec)
            directory = self._runners_dir / spec.runner_id
            try:
                directory.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise AgentError(
                    "data_dir_unusable", f"{directory} cannot be made: {error.strerror}"
                ) from error
            supervisor = Supervisor(spec, self._node_id, directory, session)
            await supervisor.start()
            self._supervisors[spec.runner_id] = supervisor
            return supervisor.report

    async def runners(self) -> tuple[RunnerReport, ...]:
        """All runners, live ones with their resident memory, sorted by id."""
        reports = [s.report for _, s in sorted(self._supervisors.items())]
        return await asyncio.to_thread(with_resident_bytes, reports)

    async def wait_runner(self, runner_id: str, since: RunnerReport | None, timeout_s: float) -> RunnerReport:
        """Return when the runner's report differs from ``since`` in state or progress, or at the timeout.

        Raises:
            AgentError: ``runner_unknown``.
        """
        return await self._supervisor(runner_id).wait_change(since, timeout_s)

    async def stop_runner(self, runner_id: str, deadlines: StopDeadlines) -> RunnerReport:
        """End a runner: ask, SIGTERM, SIGKILL. Returns when no process is left; an unknown id is a success.

        Raises:
            AgentError: ``runner_survived_kill``.
        """
        supervisor = self._supervisors.get(runner_id)
        if supervisor is None:
            return self._never_seen(runner_id)
        return await supervisor.stop(deadlines)

    async def forget_runner(self, runner_id: str) -> None:
        """Drop an ended runner's record; an unknown id is a success. The newest logs of forgotten runners stay, the
        others are deleted.

        Raises:
            AgentError: ``runner_live`` when it still runs.
        """
        # Not while one starts: it may be of an id whose old log is about to go.
        async with self._starting:
            supervisor = self._supervisors.get(runner_id)
            if supervisor is None:
                return
            if not supervisor.report.state.ended:
                raise AgentError(
                    "runner_live", f"runner {runner_id} still runs; stop it before forgetting it"
                )
            del self._supervisors[runner_id]
            await asyncio.to_thread(drop_old_logs, self._runners_dir, frozenset(self._supervisors))

    async def read_log(self, runner_id: str, offset: int, limit_bytes: int) -> LogChunk:
        """Read a log from ``offset``, negative from the end; also that of a runner of an earlier start.

        Only whole characters are returned while more can follow. Bytes that are no UTF-8 become U+FFFD.

        Raises:
            AgentError: ``runner_unknown`` when there is no such log.
        """
        supervisor = self._supervisors.get(runner_id)
        # Asked before reading: what a live runner writes meanwhile is then read next time.
        ended = supervisor is None or supervisor.report.state.ended
        directory = self._runners_dir / runner_id
        if not _RUNNER_ID.fullmatch(runner_id) or not await asyncio.to_thread(directory.is_dir):
            raise self._unknown(runner_id)
        log = supervisor.log if supervisor is not None else RunnerLog(directory)
        piece = await asyncio.to_thread(log.read, offset, max(1, min(limit_bytes, _MAX_READ_BYTES)))
        at_end = piece.next_offset >= piece.size_bytes
        data = piece.data if ended and at_end else whole_characters(piece.data)
        next_offset = piece.start + len(data)
        return LogChunk(
            runner_id=runner_id,
            text=data.decode(errors="replace"),
            next_offset=next_offset,
            ended=ended and next_offset >= piece.size_bytes,
        )

    async def close(self) -> None:
        """Stop every runner, all at once, and let go of the data directory.

        Never raises for a runner that survives: the process is ending, the log names the runner, and the next start
        looks for it.
        """
        async with self._starting:
            self._closed = True
        supervisors = tuple(self._supervisors.items())
        results = await asyncio.gather(
            *(supervisor.stop(_CLOSE) for _, supervisor in supervisors), return_exceptions=True
        )
        for (runner_id, supervisor), result in zip(supervisors, results, strict=True):
            if isinstance(result, BaseException):
                code = result.code if isinstance(result, AgentError) else type(result).__name__
                _log.error("runner_not_ended", runner_id=runner_id, pid=supervisor.report.pid, code=code)
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _take_directory(self) -> None:
        """Hold a file lock while the agent lives; the kernel drops it however this process ends.

        The control plane locks its directory, too, before it touches the database; this one is for agents without it.
        """
        path = self._data_dir / "agent.lock"
        try:
            self._runners_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise AgentError(
                "data_dir_unusable",
                f"{self._data_dir} cannot be written: {error.strerror}; give a data directory that can be written",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise AgentError(
                "data_dir_in_use",
                f"another wharf uses the data directory {self._data_dir}; stop it, or give another data directory",
            ) from error
        self._lock_fd = descriptor

    def _supervisor(self, runner_id: str) -> Supervisor:
        supervisor = self._supervisors.get(runner_id)
        if supervisor is None:
            raise self._unknown(runner_id)
        return supervisor

    def _unknown(self, runner_id: str) -> AgentError:
        known = ", ".join(sorted(self._supervisors)) or "none"
        return AgentError(
            "runner_unknown", f"node {self._node_id} knows no runner {runner_id!r}; it knows: {known}"
        )

    def _never_seen(self, runner_id: str) -> RunnerReport:
        now = datetime.now(UTC)
        return RunnerReport(
            runner_id=runner_id,
            instance_id="",
            node_id=self._node_id,
            model_id="",
            backend="",
            state=RunnerState.SHUTDOWN,
            state_since=now,
            started_at=now,
        )


def _check(spec: RunnerSpec) -> None:
    """Refuse what no runner here could do.

    Raises:
        AgentError: ``invalid_spec``, ``unsupported``, ``engine_missing``.
    """
    if not _RUNNER_ID.fullmatch(spec.runner_id):
        raise AgentError("invalid_spec", f"runner_id {spec.runner_id!r} must match {_RUNNER_ID.pattern}")
    if not Path(spec.model_path).is_absolute():
        raise AgentError(
            "invalid_spec", f"model_path {spec.model_path!r} must be an absolute path on this node"
        )
    if spec.context_tokens < 1 or spec.slots < 1:
        raise AgentError(
            "invalid_spec", f"context_tokens {spec.context_tokens} and slots {spec.slots} must be 1 or more"
        )
    engine = engine_for(spec.backend)
    if engine is None:
        raise AgentError(
            "engine_missing", f"backend {spec.backend!r} belongs to no engine this version can run"
        )
    if spec.world_size != 1:
        raise AgentError(
            "unsupported", f"{engine.name} here serves a model on one node, not on {spec.world_size}"
        )
    if not engine.installed():
        raise AgentError(
            "engine_missing",
            f"no engine for backend {spec.backend} is installed on this node: {engine.install_hint}",
        )


def whole_characters(data: bytes) -> bytes:
    """``data`` without a UTF-8 sequence that is cut off at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue  # inside a sequence: its first byte is further back
        length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return data[:-back] if length > back else data
    return data
