"""A deterministic simulation of workers that crash, pause and meet a failing store.

The worker, the attempts and the transition rules are the real ones. Simulated are time, the network between a
process and the store (late, lost before or after the write), the provider, and death: at any store call, before or
after it took effect. One seed makes one history; a violated invariant is raised with the whole history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from operations.invariants import Invariants, Violation, node_of
from operations.memory_store import MemoryStore
from operations.simulated_handler import LEASE_S, Scripted
from operations.virtual_time import Deadlock, run_virtually
from wharfinger.operations.attempt import AttemptSettings
from wharfinger.operations.backoff import Backoff
from wharfinger.operations.changes import Change, Rule
from wharfinger.operations.model import (
    Conflict,
    Lease,
    LeaseLost,
    NewOperation,
    Operation,
    OperationEvent,
    OperationStep,
)
from wharfinger.operations.port import ClaimRequest, WorkStore
from wharfinger.operations.signals import Signals
from wharfinger.operations.transitions import Heartbeat
from wharfinger.operations.worker import Worker
from wharfinger.store.errors import StoreUnavailable

_T = TypeVar("_T")
_START = datetime(2030, 1, 1, tzinfo=UTC)
KIND = "simulated"
GONE = "node-gone"
"""A machine that no process of the simulation is on: its work must be abandoned."""
FAULTY_S = 120.0
"""For so long there are faults; afterwards everything must come to an end."""
PATIENCE_S = 1200.0


@dataclass
class Dice:
    """How much goes wrong, drawn once per seed."""

    workers: int
    operations: int
    crash: float
    lost_before: float
    lost_after: float
    late: float
    pause: float
    cancel: float

    @classmethod
    def roll(cls, rng: random.Random) -> Dice:
        """Some seeds are calm in one respect and wild in another."""

        def chance(most: float) -> float:
            return rng.choice([0.0, rng.uniform(0, most)])

        return cls(
            workers=rng.randint(1, 3),
            operations=rng.randint(1, 4),
            crash=chance(0.03),
            lost_before=chance(0.15),
            lost_after=chance(0.15),
            late=chance(0.05),
            pause=chance(0.05),
            cancel=chance(0.6),
        )

    def calm(self) -> None:
        """From now on nothing goes wrong."""
        self.crash = self.lost_before = self.lost_after = self.late = self.pause = 0.0


@dataclass
class World:
    """Everything outside the processes, and what they did."""

    seed: int
    store_type: type[MemoryStore] = MemoryStore
    history: list[str] = field(default_factory=list)
    provider: dict[str, str] = field(default_factory=dict)
    """Resources that exist, by external key: the operation they belong to."""
    created: list[str] = field(default_factory=list)
    """Keys in the order in which resources came into being."""
    left: dict[str, dict[str, int]] = field(default_factory=dict)
    """What an operation's script still has to meet, by operation."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.dice = Dice.roll(self.rng)
        self.invariants = Invariants(self.provider, self.note, self.clock)
        self.store = self.store_type(self.clock, self.invariants.committed)

    def clock(self) -> datetime:
        """The store's clock."""
        return _START + timedelta(seconds=asyncio.get_running_loop().time())

    def note(self, text: str) -> None:
        """Add to the history."""
        self.history.append(f"{asyncio.get_running_loop().time():9.3f}  {text}")

    def hit(self, chance: float) -> bool:
        """True with this chance."""
        return self.rng.random() < chance


class Line:
    """The way from one process to the store: late, lost before or after the write."""

    def __init__(self, world: World, owner: str) -> None:
        self.world = world
        self.owner = owner
        self._paused_until = 0.0

    async def _may_die_here(self, where: str) -> None:
        """A process that dies does not return from this."""

    async def _may_go_on(self) -> None:
        """A process that is dead does not return from this."""

    async def _call(self, what: str, call: Callable[[], Awaitable[_T]]) -> _T:
        world, dice = self.world, self.world.dice
        await self._delay(world.rng.uniform(0.0, 0.02))
        await self._may_die_here(f"before {what}")
        if world.hit(dice.lost_before):
            world.note(f"{self.owner} {what}: lost before the write")
            raise StoreUnavailable("lost before the write")
        if world.hit(dice.late):
            # Under way for longer than a lease: it takes effect whether or not its process still waits, or lives.
            late = asyncio.create_task(self._late(what, call))
            late.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # perhaps nobody waits for it
            return await asyncio.shield(late)
        result = await self._effect(what, call)
        await self._may_die_here(f"after {what}")
        if world.hit(dice.lost_after):
            world.note(f"{self.owner} {what}: the answer was lost")
            raise StoreUnavailable("the answer was lost")
        return result

    async def _late(self, what: str, call: Callable[[], Awaitable[_T]]) -> _T:
        await asyncio.sleep(self.world.rng.uniform(0.0, 3 * LEASE_S))
        return await self._effect(f"{what} (late)", call)

    async def _effect(self, what: str, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            result = await call()
        except Exception as error:
            self.world.note(f"{self.owner} {what}: {error!r}")
            if not isinstance(error, (LeaseLost, Conflict)):
                self.world.invariants.broke(what, error)
            raise
        self.world.note(f"{self.owner} {what}")
        return result

    async def _delay(self, delay_s: float) -> None:
        if self.world.hit(self.world.dice.pause):
            loop = asyncio.get_running_loop()
            self._paused_until = loop.time() + self.world.rng.uniform(0.0, 3 * LEASE_S)
            self.world.note(f"{self.owner} pauses until {self._paused_until:.3f}")
        await asyncio.sleep(max(delay_s, self._paused_until - asyncio.get_running_loop().time()))
        await self._may_go_on()


class Client(Line):
    """Somebody who submits and cancels, and repeats what was not answered."""

    async def submit(self, new: NewOperation) -> Operation:
        """Under one key until it is answered, and then perhaps once more; waits while the resource is busy."""
        operation = await self._insist("submit", lambda: self.world.store.submit(new))
        if self.world.hit(0.3):
            again = await self._insist("submit again", lambda: self.world.store.submit(new))
            self.world.invariants.same_submission(operation[0], again)
        return operation[0]

    async def cancel(self, operation_id: str) -> None:
        """Ask until it is answered."""
        await self._insist(f"cancel {operation_id}", lambda: self.world.store.request_cancel(operation_id))

    async def abandon(self, operation: Operation) -> None:
        """Give up the machine that the operation is bound to."""
        await self._insist(
            f"abandon {operation.operation_id}",
            lambda: self.world.store.abandon(operation.resource_type, operation.resource_name),
        )

    async def _insist(self, what: str, call: Callable[[], Awaitable[_T]]) -> _T:
        while True:
            try:
                return await self._call(what, call)
            except (StoreUnavailable, Conflict):
                await asyncio.sleep(self.world.rng.uniform(0.5, 5.0))


class Process(Line):
    """One worker process; when it dies, nothing it does has an effect any more. It is the store its worker sees."""

    def __init__(self, world: World, number: int, serial: int) -> None:
        owner = f"w{number}.{serial}"
        super().__init__(world, owner)
        # A cancel in the same process is noticed at once, one from elsewhere at the next heartbeat.
        self.signals = world.store.signals if world.hit(0.5) else Signals()
        self.death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drift = world.rng.uniform(0.98, 1.02)
        """Seconds of the store's clock in a second of its own: it believes in leases that are as much longer."""
        settings = AttemptSettings(
            lease_s=LEASE_S, backoff=Backoff(jitter=lambda: world.rng.uniform(0.75, 1.25)), cancel_grace_s=3.0
        )
        handlers = {KIND: Scripted(self)}
        self.worker = WatchedWorker(
            *(world, self, handlers),
            owner=owner,
            affinities=[node_of(owner)],
            concurrency=world.rng.randint(1, 3),
            settings=settings,
        )

    async def submit(self, new: NewOperation) -> tuple[Operation, bool]:
        return await self._call("submit", lambda: self.world.store.submit(new))

    async def get(self, operation_id: str) -> Operation:
        return await self._call("get", lambda: self.world.store.get(operation_id))

    async def steps(self, operation_id: str) -> Sequence[OperationStep]:
        return await self._call("steps", lambda: self.world.store.steps(operation_id))

    async def events(
        self, operation_id: str, after_sequence: int = 0, limit: int = 100
    ) -> Sequence[OperationEvent]:
        return await self._call(
            "events", lambda: self.world.store.events(operation_id, after_sequence, limit)
        )

    async def request_cancel(self, operation_id: str) -> Operation:
        return await self._call("cancel", lambda: self.world.store.request_cancel(operation_id))

    async def claim(self, request: ClaimRequest) -> Sequence[Operation]:
        drifted = replace(request, lease_s=request.lease_s * self._drift)
        return await self._call("claim", lambda: self.world.store.claim(drifted))

    async def apply(self, lease: Lease, rule: Rule) -> Change:
        name = f"{rule.__class__.__name__} {lease.operation_id} g{lease.generation}"
        return await self._call(name, lambda: self._fenced(lease, rule))

    async def reap(self, limit: int = 100) -> int:
        return await self._call("reap", lambda: self.world.store.reap(limit))

    async def prune(self, retention_s: float, limit: int = 1000) -> int:
        return await self._call("prune", lambda: self.world.store.prune(retention_s, limit))

    async def now(self) -> datetime:
        return self.world.clock()

    async def outside(self, what: str) -> None:
        """A call to the provider: takes time, and the process may die before it has an effect."""
        await self._delay(self.world.rng.uniform(0.0, 0.5))
        await self._may_die_here(f"before {what}")

    async def _fenced(self, lease: Lease, rule: Rule) -> Change:
        if isinstance(rule, Heartbeat):
            rule = Heartbeat(rule.lease_s * self._drift)
        before = self.world.store.records[lease.operation_id].operation
        change = await self.world.store.apply(lease, rule)
        self.world.invariants.written_under(lease, before, self.world.clock())
        return change

    async def _may_die_here(self, where: str) -> None:
        if not self.death.done() and self.world.hit(self.world.dice.crash):
            self.world.note(f"{self.owner} dies {where}")
            self.die()
        await self._may_go_on()

    async def _may_go_on(self) -> None:
        if self.death.done():
            await asyncio.get_running_loop().create_future()

    def die(self) -> None:
        """From now on nothing that this process does has an effect."""
        if not self.death.done():
            self.death.set_result(None)


class WatchedWorker(Worker):
    """Whatever else than a lost lease ends an attempt is a mistake, which the worker only logs."""

    def __init__(self, world: World, store: WorkStore, *arguments: Any, **options: Any) -> None:
        super().__init__(store, *arguments, **options)
        self._world = world

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.invariants.broke(f"the attempt at {task.get_name()}", error)
        super()._ended(task)


class Simulation:
    """One history from one seed."""

    def __init__(self, seed: int, store_type: type[MemoryStore] = MemoryStore) -> None:
        self.world = World(seed, store_type)
        self._serial = 0

    async def play(self) -> World:
        """Play to the end; raises Violation."""
        world = self.world
        world.note(", ".join(f"{f.name}={getattr(world.dice, f.name):.3g}" for f in fields(world.dice)))
        loop = asyncio.get_running_loop()
        loop.call_later(FAULTY_S, world.dice.calm)
        async with asyncio.TaskGroup() as group:
            hosts = [group.create_task(self._host(number)) for number in range(world.dice.workers)]
            try:
                async with asyncio.timeout(FAULTY_S + PATIENCE_S):
                    await self._use()
            except TimeoutError:
                raise Violation("somebody waits for a resource that never becomes free") from None
            self._check_submissions()
            while any(not record.operation.state.terminal for record in world.store.records.values()):
                self._raise_violation()
                if loop.time() > FAULTY_S + PATIENCE_S:
                    raise Violation("not every operation came to an end")
                await asyncio.sleep(1.0)
            for host in hosts:
                host.cancel()
        world.invariants.at_the_end(world.store.records.values(), world.created)
        self._raise_violation()
        return world

    def _check_submissions(self) -> None:
        keys = [record.operation.idempotency_key for record in self.world.store.records.values()]
        if sorted(map(str, keys)) != [f"key-{number}" for number in range(self.world.dice.operations)]:
            raise Violation(f"{self.world.dice.operations} submissions made operations of the keys {keys}")

    def _raise_violation(self) -> None:
        if self.world.invariants.violation is not None:
            raise self.world.invariants.violation

    async def _host(self, number: int) -> None:
        """A machine that starts a process again when it has died, and sometimes stops it in good order."""
        rng = self.world.rng
        while True:
            self._serial += 1
            process = Process(self.world, number, self._serial)
            running = asyncio.create_task(process.worker.run())
            try:
                _, alive = await asyncio.wait([running, process.death], timeout=rng.uniform(20, 200))
                if running in alive and process.death in alive:
                    self.world.note(f"{process.owner} is stopped")
                    stopping = asyncio.create_task(process.worker.stop())
                    await asyncio.wait([stopping], timeout=15)
                    stopping.cancel()
                if running.done():
                    running.result()
            finally:
                process.die()
                running.cancel()
            await asyncio.sleep(rng.uniform(0.1, 5.0))

    async def _use(self) -> None:
        """Some people submit operations on the same few resources and change their mind about some."""
        async with asyncio.TaskGroup() as group:
            for number in range(self.world.dice.operations):
                group.create_task(self._use_one(number))

    async def _use_one(self, number: int) -> None:
        world, rng = self.world, self.world.rng
        script = {
            "waits": rng.choice([0, 0, 2]),
            "errors": rng.choice([0, 0, 1, 5]),
            "bugs": rng.choice([0, 0, 1]),
            "refusals": rng.choice([0, 0, 1]),
            "cleanup_errors": rng.choice([0, 1, 3]),
        }
        new = NewOperation(
            *(KIND, "thing", f"thing-{number % 3}", {"steps": rng.randint(1, 3), "script": script}),
            idempotency_key=f"key-{number}",
            max_attempts=rng.randint(1, 4),
            wait_deadline_s=rng.choice([None, 15.0]),
            affinity=rng.choice([None, None, f"node-{rng.randrange(world.dice.workers)}", GONE]),
            cleanup_if_unstarted=rng.choice([False, True]),
            delay_s=rng.choice([0.0, 0.0, rng.uniform(0, 60)]),
        )
        await asyncio.sleep(rng.uniform(0, 60))
        client = Client(world, f"client {number}")
        operation = await client.submit(new)
        world.note(f"submitted {operation.operation_id} {script} {new.max_attempts} attempts")
        if world.hit(world.dice.cancel):
            await asyncio.sleep(rng.uniform(0, 60))
            await client.cancel(operation.operation_id)
        if new.affinity == GONE or (new.affinity and world.hit(0.1)):
            await asyncio.sleep(rng.uniform(0, 60))
            await client.abandon(operation)


def simulate(seed: int, store_type: type[MemoryStore] = MemoryStore) -> World:
    """Play one seed. A violation, a deadlock or an unexpected error is raised with the history in its text."""
    simulation = Simulation(seed, store_type)
    try:
        return run_virtually(simulation.play())
    except (Exception, Deadlock) as error:
        cause = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        history = "\n".join(simulation.world.history)
        raise Violation(f"seed {seed}: {cause!r}\n{history}\nreplay: SIMULATION_SEED={seed}") from error
