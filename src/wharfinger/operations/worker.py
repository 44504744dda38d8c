"""Claims due operations and runs their handlers, several at a time."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Collection, Mapping

import structlog

from wharfinger.operations.attempt import Attempt, AttemptSettings
from wharfinger.operations.handler import Handler
from wharfinger.operations.model import Operation
from wharfinger.operations.port import ClaimRequest, WorkStore
from wharfinger.operations.signals import WORK, wait_for
from wharfinger.store.errors import StoreUnavailable

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def new_owner(prefix: str) -> str:
    """A lease owner's name for one process: ``prefix`` says which installation or replica it belongs to."""
    return f"{prefix}:{os.getpid()}:{secrets.token_hex(4)}"


class Worker:
    """Works until :meth:`stop`. Several may share one store, in one process or many."""

    def __init__(
        self,
        store: WorkStore,
        handlers: Mapping[str, Handler],
        *,
        owner: str,
        affinities: Collection[str] = (),
        concurrency: int = 8,
        poll_s: float = 1.0,
        settings: AttemptSettings | None = None,
    ) -> None:
        """Operations of kinds that ``handlers`` does not name are left to workers that know them.

        Args:
            store: where the operations are.
            handlers: what runs each kind.
            owner: a name that no other worker has, not even an earlier process of this one (:func:`new_owner`).
            affinities: operations that ask for one of these are taken too, beside those that ask for none.
            concurrency: how many operations run at a time.
            poll_s: longest time until work of other processes is seen.
            settings: lease, backoff and grace.
        """
        self.owner = owner
        self._store = store
        self._handlers = handlers
        self._affinities = affinities
        self._concurrency = concurrency
        self._poll_s = poll_s
        self._settings = settings or AttemptSettings()
        self._attempts: dict[asyncio.Task[None], Attempt] = {}
        self._stopping = False

    async def run(self) -> None:
        """Work until :meth:`stop` is called. Cancelling this instead leaves the leases to run out, like a crash."""
        with self._store.signals.listen(WORK) as work:
            reaping = asyncio.create_task(self._reap())
            try:
                while not self._stopping:
                    if await self._take():
                        continue
                    await wait_for(work, self._poll_s)
                if self._attempts:
                    await asyncio.wait(self._attempts)
            finally:
                reaping.cancel()
                for task in self._attempts:
                    task.cancel()
                if self._attempts:
                    await asyncio.wait(self._attempts, timeout=self._settings.cancel_grace_s)

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Claim nothing more, end the handlers and hand their operations back, so that others resume them at once.

        A handler that has not ended after ``timeout_s`` seconds keeps its lease until that runs out.
        """
        self._stopping = True
        self.wake()
        for attempt in self._attempts.values():
            attempt.stop()
        if self._attempts:
            _, unfinished = await asyncio.wait(self._attempts, timeout=timeout_s)
            for task in unfinished:
                task.cancel()

    def wake(self) -> None:
        """Look for work now."""
        self._store.signals.notify(WORK)

    async def _take(self) -> bool:
        """Claim into the free slots; True when there may be more to claim at once."""
        free = self._concurrency - len(self._attempts)
        if free == 0:
            return False
        loop = asyncio.get_running_loop()
        before = loop.time()
        request = ClaimRequest(
            self.owner, tuple(self._handlers), self._affinities, free, self._settings.lease_s
        )
        try:
            claimed = await self._store.claim(request)
        except StoreUnavailable as error:
            _log.warning("store_unavailable", owner=self.owner, error=str(error))
            return False
        except Exception as error:  # a mistake of ours in one claim must not end all work of this process
            _log.error("claim_broke", owner=self.owner, exc_info=error)
            await asyncio.sleep(self._settings.store_retry_s)
            return False
        for operation in claimed:
            self._begin(operation, before + self._settings.lease_s)
        return len(claimed) == free

    async def _reap(self) -> None:
        """On a timer of its own, so that leases of the dead are freed also while every slot is taken."""
        while True:
            try:
                await self._store.reap()
            except StoreUnavailable as error:
                _log.warning("store_unavailable", owner=self.owner, error=str(error))
            except Exception as error:
                _log.error("reap_broke", owner=self.owner, exc_info=error)
            await asyncio.sleep(self._settings.heartbeat_s)

    def _begin(self, operation: Operation, valid_until: float) -> None:
        handler = self._handlers[operation.kind]
        attempt = Attempt(self._store, operation, handler, self._settings, valid_until)
        task = asyncio.create_task(attempt.run(), name=operation.operation_id)
        self._attempts[task] = attempt
        task.add_done_callback(self._ended)
        if self._stopping:
            attempt.stop()

    def _ended(self, task: asyncio.Task[None]) -> None:
        attempt = self._attempts.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("attempt_broke", operation_id=attempt.operation.operation_id, exc_info=error)
        due_at = attempt.outcome.next_attempt_at
        if due_at is not None:
            delay_s = max(0.0, (due_at - attempt.outcome.updated_at).total_seconds())
            task.get_loop().call_later(delay_s, self.wake)
        self.wake()
