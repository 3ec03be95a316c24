"""What the store contract needs around a store: queues that come and go, and further workers on the same ones."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from remora.config import SqliteSettings
from remora.model.fan_out import TopicCopies, TopicRooms
from remora.model.ingest import ReservedRoom, RoutedEvent
from remora.model.ledger import Tally
from remora.model.shard import LockToken, Origin, Shard
from remora.model.topic import Target, Topic
from remora.ports.delivery import DeliveryStore
from remora.ports.store import ShardStore
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import directory, file, writer
from remora.storage.sqlite.tables import recent

T = TypeVar("T")

QUIET_S = 90.0
"""A lease that no test outlives."""

UNHURRIED_S = 300.0


class Yard(Protocol):
    """Where one kind of store keeps its queues."""

    @property
    def origin(self) -> Origin:
        """Who makes its queues."""
        ...

    def worker(self) -> AbstractAsyncContextManager[ShardStore]:
        """A store as another worker opens it: with a holder's identity of its own."""
        ...

    async def make(self, queue: str, ring_bytes: int) -> None:
        """Create a queue and register it."""
        ...

    async def register(self, count: int) -> list[str]:
        """Have at least this many queues found, with all kinds of names; the names."""
        ...

    async def delete(self, queue: str) -> None:
        """Delete a queue with all it holds."""
        ...

    async def exists(self, queue: str) -> bool:
        """Whether there is anything under this name."""
        ...


class RadosYard:
    """Queues in a namespace of a real cluster, made by an independent client."""

    origin = Origin.RADOSGW

    def __init__(self, settings: Any, gateway: Any) -> None:
        self._settings = settings
        self._gateway = gateway

    def worker(self) -> AbstractAsyncContextManager[ShardStore]:
        from devkit.clusters.ceph import reached  # needs Debian's binding, which a host without Ceph does not have

        return reached(self._settings)

    async def make(self, queue: str, ring_bytes: int) -> None:
        self._gateway.make_queue(queue, ring_bytes)

    async def register(self, count: int) -> list[str]:
        names = [f"q{i:05}" for i in range(count)] + [":t", "tenant:t", "t.3", "ünïcode"]
        self._gateway.register(*names)
        return names

    async def delete(self, queue: str) -> None:
        self._gateway.delete_queue(queue)

    async def exists(self, queue: str) -> bool:
        found: bool = self._gateway.exists(queue)
        return found


class SqliteYard:
    """Topics of a single queue each, in a directory of the test's own."""

    origin = Origin.REMORA

    def __init__(self, directory: Path, files: int = 4) -> None:
        self.settings = SqliteSettings(directory=str(directory), files=files)

    def worker(self) -> AbstractAsyncContextManager[ShardStore]:
        return SqliteStore(self.settings)

    async def make(self, queue: str, ring_bytes: int) -> None:
        async with SqliteStore(replace(self.settings, queue_bytes=ring_bytes)) as store:
            await store.own_topics.create(own_topic(queue, 1))

    async def register(self, count: int) -> list[str]:
        topics = [own_topic(f"t-{i}", 500) for i in range(count // 500)] + [own_topic("T_x"), own_topic("t", 11)]
        async with SqliteStore(self.settings) as store:
            await asyncio.gather(*map(store.own_topics.create, topics))
        return [shard.queue for topic in topics for shard in topic.all_shards()]

    async def delete(self, queue: str) -> None:
        async with SqliteStore(self.settings) as store:
            topic = await store.own_topics.find(queue)
            assert topic is not None
            await store.own_topics.remove(topic, discard=True)

    async def exists(self, queue: str) -> bool:
        return any(queue in _queues_in(path) for path in self.paths)

    @property
    def paths(self) -> list[Path]:
        """The files, in the order of their numbers."""
        return sorted(Path(self.settings.directory).glob("*.db"))


def _queues_in(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM queues")}


class Bench:
    """The store under test with helpers that make a test read as its story."""

    def __init__(self, yard: Yard, store: ShardStore, stack: AsyncExitStack) -> None:
        self.yard = yard
        self.store = store
        self._stack = stack

    async def another(self) -> ShardStore:
        """A further worker's store, closed at the end of the test."""
        return await self._stack.enter_async_context(self.yard.worker())

    async def reopened(self) -> ShardStore:
        """The store after a restart: every one of this test is closed, then one is opened."""
        await self._stack.aclose()
        self.store = await self.another()
        return self.store

    async def topic(self, shards: int = 3, name: str = "t") -> Topic:
        """A new topic of remora's own, with empty queues."""
        return await self.store.own_topics.create(own_topic(f"{name}-{uuid.uuid4().hex[:8]}", shards))

    async def pending(self, topic: Topic) -> list[list[bytes]]:
        """All pending entries of each of a topic's shards."""
        return [await self.contents(shard) for shard in topic.all_shards()]

    async def queue(self, ring_bytes: int = 1 << 20, name: str = "q") -> Shard:
        """A new, empty queue."""
        queue = f"{name}-{uuid.uuid4().hex[:8]}"
        await self.yard.make(queue, ring_bytes)
        return Shard(queue, self.yard.origin)

    async def held(self, shard: Shard, cookie: str = "w1", lease_s: float = QUIET_S) -> LockToken:
        """A lock that must be there for the taking."""
        answer = await self.store.locks.acquire(shard, cookie, lease_s)
        assert isinstance(answer, LockToken), answer
        return answer

    async def commit(self, shard: Shard, *payloads: bytes) -> None:
        """Reserve and commit, as a gateway does."""
        reservation = await self.store.two_phase.reserve(shard, len(payloads), sum(map(len, payloads)))
        await self.store.two_phase.commit(shard, reservation, payloads)

    async def contents(self, shard: Shard) -> list[bytes]:
        """All pending entries."""
        return [entry async for _, entry in self.store.inspection.dump(shard)]


def own_topic(name: str, shards: int = 3) -> Topic:
    """A topic as somebody may ask for it, before it has an id."""
    return Topic(name, "", name, Target("kafka://127.0.0.1:9092", "", name), shards=shards, origin=Origin.REMORA)


def settle_all(connection: sqlite3.Connection) -> None:
    """Within a transaction, have everything in the log of an embedded file settle."""
    recent.settle(connection, 1 << 62)


def change(settings: SqliteSettings, *statements: str) -> None:
    """Change the first file of an embedded store as no remora would; `unhexed` undoes SQLite's `hex`.

    Where a statement is about entries that have settled, all have by then.
    """
    with closing(sqlite3.connect(Path(settings.directory) / "queues-000.db")) as connection:
        if any(" settled" in statement for statement in statements):
            settle_all(connection)
        connection.create_function("unhexed", 1, bytes.fromhex)
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def spread(topic: Topic, count: int, mark: str = "") -> list[RoutedEvent]:
    """This many events, one after the other over the shards; their payloads are their numbers behind the mark."""
    return [RoutedEvent(i % topic.shards, b"bkt:k%d" % i, b"%s%06d" % (mark.encode(), i)) for i in range(count)]


def copies_for(topics: Sequence[Topic], count: int = 30) -> list[TopicCopies]:
    """The copies of a request for several topics: each topic's own events."""
    return [TopicCopies(topic, spread(topic, count, f"{topic.name} ")) for topic in topics]


def rooms_for(copies: Sequence[TopicCopies], spare_bytes: int = 100) -> list[TopicRooms]:
    """The room that copies take, with some bytes to spare."""
    return [
        TopicRooms(each.topic, [ReservedRoom(shard, key, len(raw) + spare_bytes) for shard, key, raw in each.events])
        for each in copies
    ]


def by_shard(topic: Topic, *requests: Sequence[RoutedEvent]) -> list[list[bytes]]:
    """The payloads of these requests, in order, as each shard is to have them."""
    found: list[list[bytes]] = [[] for _ in range(topic.shards)]
    for event in itertools.chain(*requests):
        found[event.shard].append(event.payload)
    return found


def unhurried(patch: Callable[[Any, str, float], None] = setattr) -> None:
    """Have embedded stores wait for their disk, and for other processes, as long as a busy machine may take."""
    for module, limit in (
        (writer, "ANSWER_WITHIN_S"), (writer, "_BUSY_FOR_S"), (file, "_BUSY_FOR_S"), (directory, "_BUSY_FOR_S"),
        (directory, "_LOCK_WITHIN_S"),
    ):  # fmt: skip
        patch(module, limit, UNHURRIED_S)


@pytest.fixture(autouse=True)
def unhurried_stores() -> Iterator[None]:
    """Embedded stores give nothing up, unless the test sets limits of its own."""
    with pytest.MonkeyPatch.context() as patch:
        unhurried(patch.setattr)
        yield


@pytest.fixture(params=["sqlite", pytest.param("rados", marks=pytest.mark.ceph)])
def yard(request: pytest.FixtureRequest) -> Yard:
    """Every store that keeps the contract, one after the other."""
    if request.param == "sqlite":
        return SqliteYard(request.getfixturevalue("tmp_path") / "store")
    return RadosYard(request.getfixturevalue("settings"), request.getfixturevalue("gateway"))


@pytest.fixture
async def bench(yard: Yard) -> AsyncIterator[Bench]:
    """An open store."""
    async with AsyncExitStack() as stack:
        yield Bench(yard, await stack.enter_async_context(yard.worker()), stack)


async def held(store: DeliveryStore, shard: Shard) -> LockToken:
    """The lock of a shard, for as long as a test takes."""
    token = await store.locks.acquire(shard, "w", QUIET_S)
    assert isinstance(token, LockToken)
    return token


async def deliver_all(store: DeliveryStore, shard: Shard) -> list[bytes]:
    """Read and remove all that the owner of a shard is shown; what that was."""
    token = await held(store, shard)
    page = await store.queue.read(token, b"", 1024)
    if page.entries:
        await store.queue.remove(token, page.positions[-1], len(page.entries), Tally(delivered=len(page.entries)))
    return page.entries


async def renew(store: DeliveryStore, token: LockToken, lease_s: float) -> None:
    """Renew one lock; raises its error."""
    (error,) = await store.locks.renew_all([token], lease_s)
    if error is not None:
        raise error


async def expire(store: DeliveryStore, token: LockToken, older_than_s: float) -> None:
    """Expire the reservations of one queue; raises its error."""
    (error,) = await store.queue.expire_all([token], older_than_s)
    if error is not None:
        raise error
