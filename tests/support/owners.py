"""Owners of one shard, each with a store and an endpoint of its own, halted where a test wants to hurt them.

A halted owner stands for one that is frozen, process and host together, at that very step: all that it had checked
before stays checked in its eyes. Its lease is so long that nothing else of it notices that its lock has gone.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, cast

from devkit.chaos.reading import copy_of
from devkit.chaos.receivers import Arrivals
from devkit.clusters.kafka import Kafka, create_topic, read_topic, settled
from devkit.entries.entries import raw_entry
from devkit.verdicts.checker import judge
from devkit.verdicts.history import Balance, History, Kind, Letter, Round, Sent
from devkit.verdicts.history import Topic as Judged
from devkit.verdicts.verdict import Copy, Fate, Place
from devkit.waits import PATIENT_S, until
from remora.config import AmqpSettings, DeliverySettings, KafkaSettings, OwnershipSettings, Settings, SqliteSettings
from remora.endpoints.amqp import AmqpEndpoint
from remora.endpoints.http import HttpEndpoint
from remora.endpoints.kafka import KafkaEndpoint
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.errors import OwnershipLost, StoreUnavailable
from remora.model.ingest import RoutedEvent
from remora.model.ledger import Tally
from remora.model.position import Position
from remora.model.record import DeadLetter, Page
from remora.model.shard import LockToken, Origin, Shard
from remora.model.topic import Target, Topic
from remora.ports.delivery import DeliveryStore
from remora.ports.endpoint import Batch, Endpoint, ExactRoute
from remora.storage.sqlite import SqliteStore

PARTITIONS = 2
UNNOTICED = OwnershipSettings(lease_s=3600, renew_interval_s=1000, discovery_interval_s=0.2)
PATIENT = KafkaSettings(
    delivery_timeout_s=300, connect_timeout_s=30, transaction_timeout_s=600, compression="none", client_id="owner"
)
EAGER = DeliverySettings(retry_cap_s=0.2, retry_base_s=0.1)


class Gate:
    """A step at which each caller is halted until it is opened."""

    def __init__(self) -> None:
        self._came = asyncio.Event()
        self._open = asyncio.Event()

    async def halt(self) -> None:
        self._came.set()
        await self._open.wait()

    async def came(self) -> None:
        """Return when somebody stands before it."""
        async with asyncio.timeout(PATIENT_S):
            await self._came.wait()

    @property
    def has_come(self) -> bool:
        return self._came.is_set()

    def open(self) -> None:
        self._open.set()


class Owner:
    """A worker on real parts. `gates` are by step: "remove", "parked", "enter", "commit".

    With `parks_late` it is one that removes an entry before its dead letter is stored.
    """

    def __init__(self, name: str, store: SqliteStore, endpoint: Endpoint, *, parks_late: bool = False) -> None:
        self.cookie = f"remora/{name}/boot/{name}"
        self.store = store
        self.gates: dict[str, Gate] = {}
        self.removals = 0
        self.refused_removals = 0
        self.refused_reads = 0
        self.commits = 0
        self._halted = Steps(self, store, endpoint, parks_late=parks_late)
        self._worker: asyncio.Task[None] | None = None

    def gate(self, step: str) -> Gate:
        """Halt it at this step."""
        return self.gates.setdefault(step, Gate())

    def start(self) -> None:
        """Begin to deliver."""
        parts = cast(DeliveryStore, self._halted), [cast(Endpoint, self._halted)]
        worker = Worker(*parts, Telemetry(), WorkerSetup(self.cookie, UNNOTICED, EAGER), Random(3))
        self._worker = asyncio.create_task(worker.run(), name=self.cookie)

    async def goes_on(self, step: str) -> None:
        """Let it take this step if it stands before it, and return when it does so again, or has given way."""
        if self.gates[step].has_come:
            passed, self.gates[step] = self.gates[step], Gate()
            passed.open()
            await self.stands_or_gives_way(step)

    async def stands_or_gives_way(self, step: str) -> None:
        """Return when it stands before this step, was refused by the store, or has committed all."""
        await until(
            lambda: bool(self.gates[step].has_come or self.refused_reads or self.refused_removals or self.commits),
            f"{self.cookie} went on",
        )

    async def end(self) -> None:
        """Kill it, wherever it stands."""
        if self._worker is not None:
            self._worker.cancel()
            with suppress(asyncio.CancelledError):
                await self._worker


class Steps:
    """The store with its queue and letters, and the endpoint of an owner, with gates before or behind what matters."""

    def __init__(self, owner: Owner, store: SqliteStore, endpoint: Endpoint, *, parks_late: bool) -> None:
        self._owner = owner
        self._store = store
        self._endpoint = endpoint
        self._late: list[tuple[LockToken, DeadLetter]] | None = [] if parks_late else None
        self.queue = self.letters = self

    def __getattr__(self, name: str) -> Any:
        parts = (self._endpoint, self._store, self._store.queue, self._store.letters)
        for each in parts:
            if hasattr(each, name):
                return getattr(each, name)
        raise AttributeError(name)

    async def _at(self, step: str) -> None:
        if (gate := self._owner.gates.get(step)) is not None:
            await gate.halt()

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        try:
            return await self._store.queue.read(token, start, limit)
        except OwnershipLost:
            self._owner.refused_reads += 1
            raise

    async def remove(self, token: LockToken, upto: bytes, count: int, tally: Tally) -> None:
        if count:
            await self._at("remove")
        try:
            await self._store.queue.remove(token, upto, count, tally)
        except (OwnershipLost, StoreUnavailable):
            self._owner.refused_removals += 1
            raise
        self._owner.removals += bool(count)
        if any(Position.parse(letter.position) < Position.parse(upto.decode()) for _, letter in self._late or ()):
            await self._at("parked")  # and nobody lets it go on

    async def store(self, token: LockToken, *letters: DeadLetter) -> None:
        if self._late is not None:
            self._late += [(token, letter) for letter in letters]
            return
        await self._store.letters.store(token, *letters)
        await self._at("parked")

    @asynccontextmanager
    async def exact(self, shard: Shard, incarnation: str, target: Target) -> AsyncIterator[Any]:
        await self._at("enter")
        async with cast(KafkaEndpoint, self._endpoint).exact(shard, incarnation, target) as route:
            yield _Route(self, self._owner, route)

    async def before_commit(self) -> None:
        await self._at("commit")


class _Route:
    def __init__(self, steps: Steps, owner: Owner, route: ExactRoute) -> None:
        self._steps = steps
        self._owner = owner
        self._route = route

    def __getattr__(self, name: str) -> Any:
        return getattr(self._route, name)

    async def commit(self, batches: Sequence[Batch], upto: bytes, letters: Sequence[DeadLetter] = ()) -> None:
        await self._steps.before_commit()
        await self._route.commit(batches, upto, letters)
        self._owner.commits += 1


class Scene:
    """A topic of one shard in a real store, where it is delivered to, its owners, and the judgement in the end."""

    def __init__(
        self, stack: AsyncExitStack, to: Kafka | Arrivals, folder: Path, topic: Topic, outside: SqliteStore
    ) -> None:
        self._stack = stack
        self._to = to
        self._folder = folder
        self._outside = outside
        self._sent: list[Sent] = []
        self._began = time.time() - 60
        self.topic = topic
        (self.shard,) = topic.all_shards()

    async def owner(self, name: str, *, parks_late: bool = False) -> Owner:
        """Another owner, not started yet."""
        store = await self._stack.enter_async_context(SqliteStore(SqliteSettings(directory=str(self._folder), files=1)))
        endpoint = await self._stack.enter_async_context(_endpoint(self._to))
        owner = Owner(name, store, endpoint, parks_late=parks_late)
        self._stack.push_async_callback(owner.end)
        return owner

    async def store(self, count: int, *, junk: Sequence[int] = (), large: Sequence[int] = ()) -> None:
        """Commit events, in order; those of `junk` cannot be decoded, those of `large` have 30 KB."""
        placed = []
        for number in range(len(self._sent), len(self._sent) + count):
            key, padding = f"k{number % 5}", 30_000 if number in large else 0
            raw = b"junk" if number in junk else raw_entry(key, number, topic=self.topic.name, padding=padding)
            event_id = "junk" if number in junk else f"id-{number}"
            kind = Kind.BAD if number in (*junk, *large) else Kind.GOOD
            self._sent.append(Sent(event_id, key, number, Fate.STORED, f"request {number}", kind))
            placed.append(RoutedEvent(0, f"bkt:{key}".encode(), raw))
        await self._outside.ingest.publish(self.topic, placed)

    async def evict(self, owner: Owner) -> None:
        """What becomes of the lock of an owner that is silent for longer than its lease."""
        holder = (await self._outside.inspection.stats(self.shard)).holder
        assert holder is not None
        assert holder.cookie == owner.cookie
        await self._outside.locks.evict(self.shard, holder)

    async def pending(self) -> int:
        """How many entries wait."""
        return (await self._outside.ledger.balance(self.shard)).pending

    async def drained(self) -> None:
        """Return when the queue is empty."""
        deadline = time.monotonic() + PATIENT_S
        while await self.pending():
            assert time.monotonic() < deadline, f"{await self.pending()} entries wait"
            await asyncio.sleep(0.02)

    async def _seen(self, *, is_exact: bool, at_once: bool) -> Sequence[Copy]:
        if not isinstance(self._to, Kafka):
            return await self._to.read()
        address, isolation = self._to.address, "read_committed" if is_exact else "read_uncommitted"
        if not at_once:
            # A transaction that was spoilt on purpose may never end; then what can be read is read.
            await settled(address, self.topic.name)
        return [
            copy_of(each)
            for each in await read_topic(address, self.topic.name, committed=isolation == "read_committed")
        ]

    async def faults(self, *, is_exact: bool, at_once: bool = False) -> Mapping[str, list[str]]:
        """What the chaos runs' checker finds, by kind; with `at_once` while transactions are still open."""
        seen = await self._seen(is_exact=is_exact, at_once=at_once)
        balance = await self._outside.ledger.balance(self.shard)
        judged = Judged(
            self.topic.name,
            is_exact,
            1,
            self._sent,
            seen,
            [_letter(letter) async for letter in self._outside.letters.stored(self.shard.queue)],
            [
                Balance(
                    self.shard.queue,
                    balance.unaccounted,
                    balance.pending,
                    balance.removed.delivered,
                    balance.removed.dead_lettered,
                )
            ],
        )
        rounds = [Round("all", self._began, time.time() + 60, 3)]
        found: dict[str, list[str]] = {}
        for finding in judge(History([judged], rounds, 1 << 20)).findings:
            found.setdefault(finding.kind, []).append(finding.text)
        return found


def _endpoint(to: Kafka | Arrivals) -> AbstractAsyncContextManager[Endpoint]:
    if isinstance(to, Kafka):
        return KafkaEndpoint(PATIENT)
    return HttpEndpoint(Settings()) if to.uri.startswith("http:") else AmqpEndpoint(AmqpSettings(connect_timeout_s=30))


def _letter(letter: DeadLetter) -> Letter:
    found = re.search(rb"\bid-[0-9]+", letter.raw)
    ends = (f"{letter.incarnation}:{each}" for each in (letter.position, letter.next_position))
    place, end = (Place.read(letter.queue, each) for each in ends)
    return Letter(found[0].decode() if found else letter.raw.decode(), place, end, letter.cause)


@asynccontextmanager
async def a_scene(to: Kafka | Arrivals, folder: Path, *, exact: bool, **configs: Any) -> AsyncIterator[Scene]:
    """A `Scene`; in the end all owners are killed, and then their stores and endpoints closed."""
    if isinstance(to, Kafka):
        name = await create_topic(to.address, partitions=PARTITIONS, **configs)
        target = Target(f"kafka://{to.address}", "remora-delivery=exactly-once" if exact else "", name)
    else:
        name, target = "events", Target(to.uri, to.args, "events")
    topic = Topic(name, "", name, target, origin=Origin.REMORA, shards=1)
    async with AsyncExitStack() as stack:
        outside = await stack.enter_async_context(SqliteStore(SqliteSettings(directory=str(folder), files=1)))
        yield Scene(stack, to, folder, await outside.own_topics.create(topic), outside)
