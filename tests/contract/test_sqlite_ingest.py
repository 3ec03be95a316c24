"""Ingest on the embedded store: what requests that come together share, how long they are remembered, and a model."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.entries.entries import delivered
from devkit.waits import PATIENT_S, until
from remora.config import SqliteSettings
from remora.model.errors import (
    OnceConflict,
    QueueFull,
    RemoraError,
    ReservationExceeded,
    ReservationExpired,
    ReservationMismatch,
    ReservationUnknown,
    StoreUnavailable,
    TopicUnknown,
)
from remora.model.ingest import IdempotencyKey, PublishResult, ReservedRoom, RoutedEvent
from remora.model.shard import LockToken
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.tables import write_batch
from remora.storage.sqlite.tables.clock import boot_id, now_ns
from remora.storage.sqlite.tables.schema import END_OF_QUEUE
from support.stores import QUIET_S, by_shard, expire, own_topic, spread

MINUTE_S = 60.0


@pytest.fixture
def configured(tmp_path: Path) -> SqliteSettings:
    """A store in one file."""
    return SqliteSettings(directory=str(tmp_path / "store"), files=1)


@pytest.fixture
async def store(configured: SqliteSettings) -> AsyncIterator[SqliteStore]:
    """An open store."""
    async with SqliteStore(configured) as store:
        yield store


@dataclass
class Clock:
    """The host's clock as requests see it: it stands still unless it is moved; or after another start of the host."""

    ahead_s: float = 0.0
    boot: str = field(default_factory=boot_id)
    began_ns: int = field(default_factory=now_ns)

    def now_ns(self) -> int:
        return self.began_ns + int(self.ahead_s * 1e9)

    def restart(self) -> None:
        """Start the host anew: the clock begins at 0."""
        self.boot += "'"
        self.began_ns, self.ahead_s = 0, 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the test moves."""
    clock = Clock()
    monkeypatch.setattr(write_batch, "now_ns", clock.now_ns)
    monkeypatch.setattr(write_batch, "boot_id", lambda: clock.boot)
    return clock


def rooms(events: Sequence[RoutedEvent]) -> list[ReservedRoom]:
    return [ReservedRoom(event.shard, event.key, len(event.payload)) for event in events]


async def pending(store: SqliteStore, topic: Topic) -> list[list[bytes]]:
    return [[entry async for _, entry in store.inspection.dump(shard)] for shard in topic.all_shards()]


def rows(configured: SqliteSettings, table: str) -> int:
    """How many rows a table of the only file has."""
    with closing(sqlite3.connect(Path(configured.directory) / "queues-000.db")) as connection:
        (found,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(found)


# -------------------------------------------------------------------------------------------- together


async def test_requests_that_come_together_share_a_sync(store: SqliteStore) -> None:
    """Requests made at one time, also for several topics, are one transaction, and each is answered by itself."""
    topics = [await store.own_topics.create(own_topic(f"t-{i}")) for i in range(4)]
    (before,) = [each.durable for each in store.writers.values()]

    answers = await asyncio.gather(
        *(store.ingest.publish(topics[i % 4], spread(topics[i % 4], i + 1)) for i in range(80))
    )

    assert answers == [PublishResult(i + 1) for i in range(80)]
    assert [each.durable - before for each in store.writers.values()] == [1]
    for number, topic in enumerate(topics):
        requests = [spread(topic, i + 1) for i in range(80) if i % 4 == number]
        assert await pending(store, topic) == by_shard(topic, *requests)


async def test_requests_without_a_coroutine_are_answered_as_others(store: SqliteStore) -> None:
    """In the order of the calls and in one transaction: what is stored, what is a repeat, and what is refused."""
    topic = await store.own_topics.create(own_topic("t"))
    gone = replace(topic, id="another")
    once = IdempotencyKey("k", b"d" * 16)
    events, more = spread(topic, 5), spread(topic, 3, "x")
    told: list[PublishResult | Exception] = []
    all_told = asyncio.Event()

    def done(outcome: PublishResult | Exception) -> None:
        told.append(outcome)
        if len(told) == 5:
            all_told.set()

    requests = [(topic, events, once), (topic, events, once), (gone, more, None), (topic, more, None)]
    for request in (*requests, (topic, events, IdempotencyKey("k", b"e" * 16))):
        store.ingest.publish_soon(*request, done)
    assert told == []
    async with asyncio.timeout(PATIENT_S):
        await all_told.wait()

    assert told[:2] == [PublishResult(5), PublishResult(5, repeated=True)]
    assert isinstance(told[2], TopicUnknown)
    assert told[3] == PublishResult(3)
    assert isinstance(told[4], OnceConflict)
    assert await pending(store, topic) == by_shard(topic, events, more)


async def test_refusals_are_each_ones_own(store: SqliteStore) -> None:
    """Of requests that come together some may be refused, each for its own reason, and the others are stored."""
    topic = await store.own_topics.create(own_topic("t"))
    capacity = (await store.inspection.stats(topic.first_shard)).capacity_bytes
    events = spread(topic, 9)

    answers = await asyncio.gather(
        store.ingest.publish(topic, events, IdempotencyKey("key", b"one")),
        store.ingest.publish(topic, spread(topic, 6), IdempotencyKey("key", b"two")),
        store.ingest.publish(replace(topic, id="other"), events),
        store.ingest.reserve(topic, [ReservedRoom(0, b"bkt:k", capacity)]),
        store.ingest.commit(topic, "t.none", events, b""),
        store.ingest.publish(topic, events, IdempotencyKey("key", b"one")),
        store.ingest.publish(topic, events, IdempotencyKey("other", b"one")),
        return_exceptions=True,
    )

    refused = [OnceConflict, TopicUnknown, QueueFull, ReservationUnknown]
    assert [type(each) for each in answers[1:5]] == refused
    assert [answers[0], *answers[5:]] == [PublishResult(9), PublishResult(9, repeated=True), PublishResult(9)]
    assert await pending(store, topic) == by_shard(topic, events, events)


async def test_more_than_one_transaction_takes(store: SqliteStore) -> None:
    """Requests that are too large or too many for one transaction are all stored, in order."""
    topic = await store.own_topics.create(own_topic("t", 1))
    large = [[RoutedEvent(0, b"bkt:k", b"%03d" % i * (1 << 18))] for i in range(30)]
    small = [[RoutedEvent(0, b"bkt:k", b"%06d" % i)] for i in range(2_500)]

    await asyncio.gather(*(store.ingest.publish(topic, events) for events in large + small))

    assert await pending(store, topic) == by_shard(topic, *large, *small)


async def test_whoever_stops_waiting_takes_nobody_along(store: SqliteStore) -> None:
    """A caller that is cancelled undoes nothing for those whose requests came with its own."""
    topic = await store.own_topics.create(own_topic("t"))
    callers = [asyncio.create_task(store.ingest.publish(topic, spread(topic, 3, f"{i}-"))) for i in range(5)]
    await asyncio.sleep(0)
    callers[0].cancel()

    answers = await asyncio.gather(*callers, return_exceptions=True)

    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [PublishResult(3)] * 4
    assert await pending(store, topic) == by_shard(topic, *(spread(topic, 3, f"{i}-") for i in range(5)))


async def test_what_is_stored_is_let_go(store: SqliteStore) -> None:
    """Once a request is answered, nothing holds its events in memory any more."""
    topic = await store.own_topics.create(own_topic("t"))
    event = RoutedEvent(0, b"bkt:k", bytes(100))
    before = sys.getrefcount(event.payload)

    await store.ingest.publish(topic, [event])

    async def is_let_go() -> bool:  # the writer's thread may be a step behind the answer
        return sys.getrefcount(event.payload) == before

    await until(is_let_go)


async def test_closed_store(configured: SqliteSettings) -> None:
    """Requests that were made before the store is closed are answered; later ones are refused."""
    async with SqliteStore(configured) as store:
        topic = await store.own_topics.create(own_topic("t"))
        asked = asyncio.create_task(store.ingest.publish(topic, spread(topic, 3)))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asked), 0.001)

    assert await asked == PublishResult(3)
    with pytest.raises(StoreUnavailable):
        await store.ingest.publish(topic, spread(topic, 3))


async def test_1024_shards(store: SqliteStore) -> None:
    """A request may touch any of the most shards that a topic can have."""
    topic = await store.own_topics.create(own_topic("t", 1024))
    events = spread(topic, 2048)

    await store.ingest.publish(topic, [RoutedEvent(1000, b"bkt:k", b"first")])
    reservation = await store.ingest.reserve(topic, rooms(events))
    await store.ingest.commit(topic, reservation, events, b"digest")

    expected = by_shard(topic, [RoutedEvent(1000, b"bkt:k", b"first")], events)
    assert await pending(store, topic) == expected
    assert {(await store.inspection.stats(shard)).reservations for shard in topic.all_shards()} == {0}


@pytest.mark.parametrize("shards", [64, 1024])
async def test_a_transaction_reads_the_queues_that_it_appends_to(store: SqliteStore, shards: int) -> None:
    """Requests that share a transaction have the rows of all their queues read by one statement, and no other rows."""
    topic = await store.own_topics.create(own_topic("t", shards))
    statements: list[str] = []
    await store._files.file_of("t").write(lambda connection: connection.set_trace_callback(statements.append))

    requests = [[RoutedEvent(number, b"bkt:k", b"x")] for number in (3, 40, 3, 63)]
    await asyncio.gather(*(store.ingest.publish(topic, each) for each in requests))

    (read,) = (each for each in statements if "json_group_array" in each)
    (numbers,) = re.findall(r"json_each\('\[(.*)\]'\)", read)
    assert {int(each) for each in numbers.split(",")} == {3, 40, 63}


async def test_positions_run_out(store: SqliteStore, configured: SqliteSettings) -> None:
    """Where a queue has no positions left it is full, before its entries could be taken for another queue's."""
    topic = await store.own_topics.create(own_topic("t"))
    with closing(sqlite3.connect(Path(configured.directory) / "queues-000.db")) as connection, connection:
        connection.execute("UPDATE queues SET head = :n, tail = :n WHERE number = 1", {"n": END_OF_QUEUE - 3})
    event = RoutedEvent(1, b"bkt:k", b"x")

    with pytest.raises(QueueFull):
        await store.ingest.publish(topic, [event] * 4)
    reservation = await store.ingest.reserve(topic, rooms([event]))
    with pytest.raises(QueueFull):
        await store.ingest.publish(topic, [event] * 3)
    await store.ingest.publish(topic, [event] * 2)
    await store.ingest.commit(topic, reservation, [event], b"digest")

    assert await pending(store, topic) == [[], [b"x"] * 3, []]


# ----------------------------------------------------------------------------------------------- time


async def test_late_commit(store: SqliteStore, clock: Clock) -> None:
    """After 120 s a commit is refused although nobody has expired the reservation; just before, it is taken."""
    topic = await store.own_topics.create(own_topic("t"))
    events = spread(topic, 3)
    early, late = [await store.ingest.reserve(topic, rooms(events)) for _ in range(2)]

    clock.ahead_s = 100
    assert await store.ingest.commit(topic, early, events, b"digest") == PublishResult(3)
    clock.ahead_s = 121
    with pytest.raises(ReservationExpired):
        await store.ingest.commit(topic, late, events, b"digest")

    assert await pending(store, topic) == by_shard(topic, events)
    await store.ingest.abort(topic, late)
    assert (await store.inspection.stats(topic.first_shard)).reserved_bytes == 0


async def test_old_reservations_end_and_young_ones_stay(store: SqliteStore, clock: Clock) -> None:
    """Expiry by age ends a reservation of all shards through any of them, and leaves younger ones open."""
    topic = await store.own_topics.create(own_topic("t"))
    events = spread(topic, 3)
    old = await store.ingest.reserve(topic, rooms(events))
    clock.ahead_s = 100
    young = await store.ingest.reserve(topic, rooms(events))
    token = await store.locks.acquire(topic.shard(1), "w", QUIET_S)
    assert isinstance(token, LockToken)

    clock.ahead_s = 130
    await expire(store, token, 120)

    assert [(await store.inspection.stats(shard)).reservations for shard in topic.all_shards()] == [1, 1, 1]
    with pytest.raises(ReservationExpired):
        await store.ingest.commit(topic, old, events, b"digest")
    assert await store.ingest.commit(topic, young, events, b"digest") == PublishResult(3)


async def test_reservation_of_an_earlier_start_of_the_host(store: SqliteStore, clock: Clock) -> None:
    """After a restart of the host a reservation's age counts from there: it is open for 120 s, then it expires."""
    topic = await store.own_topics.create(own_topic("t"))
    events = spread(topic, 3)
    early, late = [await store.ingest.reserve(topic, rooms(events)) for _ in range(2)]
    token = await store.locks.acquire(topic.shard(1), "w", QUIET_S)
    assert isinstance(token, LockToken)

    clock.restart()
    clock.ahead_s = 60
    await expire(store, token, 120)
    assert await store.ingest.commit(topic, early, events, b"digest") == PublishResult(3)
    clock.ahead_s = 121
    with pytest.raises(ReservationExpired):
        await store.ingest.commit(topic, late, events, b"digest")
    await expire(store, token, 120)

    assert (await store.inspection.stats(topic.first_shard)).reservations == 0


async def test_requests_are_remembered_for_ten_minutes(
    store: SqliteStore, configured: SqliteSettings, clock: Clock
) -> None:
    """A repeat after ten minutes is recognised, however many requests came meanwhile; later they are forgotten."""
    topic = await store.own_topics.create(own_topic("t"))
    events, once = spread(topic, 3), IdempotencyKey("first", b"digest")
    await store.ingest.publish(topic, events, once)
    reservation = await store.ingest.reserve(topic, rooms(events))
    await store.ingest.commit(topic, reservation, events, b"digest")

    for minute in range(1, 11):
        clock.ahead_s = minute * MINUTE_S
        for i in range(20):
            await store.ingest.publish(topic, events, IdempotencyKey(f"{minute}-{i}", b"digest"))
            await store.ingest.abort(topic, await store.ingest.reserve(topic, rooms(events)))
    assert await store.ingest.publish(topic, events, once) == PublishResult(3, repeated=True)
    assert await store.ingest.commit(topic, reservation, events, b"digest") == PublishResult(3, repeated=True)
    assert (rows(configured, "once"), rows(configured, "reservations")) == (201, 201)

    clock.ahead_s = 30 * MINUTE_S
    for i in range(110):
        await store.ingest.publish(topic, events, IdempotencyKey(f"later-{i}", b"digest"))
        await store.ingest.abort(topic, await store.ingest.reserve(topic, rooms(events)))

    assert (rows(configured, "once"), rows(configured, "reservations")) == (110, 110)
    with pytest.raises(ReservationUnknown):
        await store.ingest.commit(topic, reservation, events, b"digest")


async def test_requests_of_an_earlier_start_of_the_host(store: SqliteStore, clock: Clock) -> None:
    """After a restart of the host a request is remembered for ten minutes more, and then forgotten."""
    topic = await store.own_topics.create(own_topic("t"))
    events = spread(topic, 3)
    await store.ingest.publish(topic, events, IdempotencyKey("first", b"digest"))

    clock.restart()
    clock.ahead_s = 10 * MINUTE_S
    await store.ingest.publish(topic, events, IdempotencyKey("second", b"digest"))
    assert (await store.ingest.publish(topic, events, IdempotencyKey("first", b"digest"))).repeated
    clock.ahead_s = 12 * MINUTE_S
    await store.ingest.publish(topic, events, IdempotencyKey("third", b"digest"))

    assert not (await store.ingest.publish(topic, events, IdempotencyKey("first", b"digest"))).repeated


async def test_open_reservations_are_not_forgotten(
    store: SqliteStore, configured: SqliteSettings, clock: Clock
) -> None:
    """However old it is, an open reservation keeps its room until it is expired or aborted."""
    topic = await store.own_topics.create(own_topic("t"))
    events = spread(topic, 3)
    reservation = await store.ingest.reserve(topic, rooms(events))

    clock.ahead_s = 60 * MINUTE_S
    for _ in range(20):
        await store.ingest.abort(topic, await store.ingest.reserve(topic, rooms(events)))

    assert (await store.inspection.stats(topic.first_shard)).reservations == 1
    await store.ingest.abort(topic, reservation)
    assert (await store.inspection.stats(topic.first_shard)).reservations == 0


# ---------------------------------------------------------------------------------------------- a model

SHARDS, CAPACITY, OVERHEAD = 3, 600, 10

sizes = st.lists(st.tuples(st.integers(0, SHARDS - 1), st.integers(0, 120)), max_size=5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), sizes, st.sampled_from([None, None, "a", "b", "c"])),
        st.tuples(st.just("reserve"), sizes, st.none()),
        st.tuples(st.just("commit"), st.integers(0, 9), st.sampled_from(["whole", "smaller", "larger", "fewer"])),
        st.tuples(st.just("abort"), st.integers(0, 9), st.none()),
        st.tuples(st.just("remove"), st.integers(0, SHARDS - 1), st.integers(0, 6)),
        st.tuples(st.just("expire"), st.integers(0, SHARDS - 1), st.none()),
        st.tuples(st.just("restart"), st.none(), st.none()),
    ),
    min_size=15,
    max_size=30,
)


@dataclass
class Promised:
    """A reservation in the model."""

    rooms: list[ReservedRoom]
    state: str = "open"
    committed: list[RoutedEvent] = field(default_factory=list)


class Model:
    """What a topic holds, in plain words; each method answers or raises as the store should."""

    def __init__(self) -> None:
        self.entries: list[list[bytes]] = [[] for _ in range(SHARDS)]
        self.reserved: list[Promised] = []
        self.once: dict[str, list[RoutedEvent]] = {}

    def used(self, shard: int) -> int:
        return sum(len(entry) + OVERHEAD for entry in self.entries[shard])

    def promised(self, shard: int) -> list[ReservedRoom]:
        open_ = [each for each in self.reserved if each.state == "open"]
        return [room for each in open_ for room in each.rooms if room.shard == shard]

    def need_room(self, wanted: Sequence[tuple[int, int]]) -> None:
        need: dict[int, int] = defaultdict(int)
        for shard, nbytes in wanted:
            need[shard] += nbytes + OVERHEAD
        for shard, nbytes in need.items():
            taken = self.used(shard) + sum(room.nbytes + OVERHEAD for room in self.promised(shard))
            if taken + nbytes > CAPACITY:
                raise QueueFull

    def publish(self, events: list[RoutedEvent], key: str | None) -> PublishResult:
        if key is not None and key in self.once:
            if self.once[key] != events:
                raise OnceConflict
            return PublishResult(len(events), repeated=True)
        self.need_room([(event.shard, len(event.payload)) for event in events])
        self._append(events)
        if key is not None:
            self.once[key] = events
        return PublishResult(len(events))

    def reserve(self, rooms: list[ReservedRoom]) -> None:
        self.need_room([(room.shard, room.nbytes) for room in rooms])
        self.reserved.append(Promised(rooms))

    def commit(self, promise: Promised, events: list[RoutedEvent]) -> PublishResult:
        if promise.state == "committed":
            if promise.committed != events:
                raise OnceConflict
            return PublishResult(len(events), repeated=True)
        if promise.state != "open":
            raise ReservationExpired
        if len(events) != len(promise.rooms):
            raise ReservationMismatch
        if any(len(event.payload) > room.nbytes for event, room in zip(events, promise.rooms, strict=True)):
            raise ReservationExceeded
        promise.state, promise.committed = "committed", events
        self._append(events)
        return PublishResult(len(events))

    def abort(self, promise: Promised) -> None:
        if promise.state == "committed":
            raise OnceConflict
        promise.state = "ended"

    def expire(self) -> None:
        for each in self.reserved:
            if each.state == "open":
                each.state = "ended"

    def _append(self, events: list[RoutedEvent]) -> None:
        for event in events:
            self.entries[event.shard].append(event.payload)


class Pair:
    """The store beside its model: each step is taken by both, and both must come to the same."""

    def __init__(self, configured: SqliteSettings) -> None:
        self.configured = configured
        self.model = Model()
        self.ids: list[str] = []
        self.store = SqliteStore(configured)
        self.topic: Topic

    async def play(self, taken: Sequence[tuple[str, object, object]]) -> None:
        await self.store.__aenter__()
        try:
            self.topic = await self.store.own_topics.create(own_topic("t", SHARDS))
            for number, (kind, *arguments) in enumerate(taken):
                await getattr(self, kind)(number, *arguments)
                await self.compare()
        finally:
            await self.store.__aexit__()

    async def compare(self) -> None:
        assert await pending(self.store, self.topic) == self.model.entries
        for number, shard in enumerate(self.topic.all_shards()):
            stats = await self.store.inspection.stats(shard)
            promised = self.model.promised(number)
            assert stats.used_bytes == self.model.used(number)
            assert stats.reserved_bytes == sum(room.nbytes for room in promised)

    async def publish(self, number: int, sized: list[tuple[int, int]], key: str | None) -> None:
        mark = key or str(number)
        events = [RoutedEvent(shard, b"bkt:k", mark.encode().ljust(size, b".")) for shard, size in sized]
        once = IdempotencyKey(key, repr(events).encode()) if key else None
        expected = _tried(lambda: self.model.publish(events, key))
        assert await self._done(self.store.ingest.publish(self.topic, events, once)) == expected

    async def reserve(self, number: int, sized: list[tuple[int, int]], _: None) -> None:
        rooms = [ReservedRoom(shard, b"bkt:%d" % i, size) for i, (shard, size) in enumerate(sized)]
        expected = _tried(lambda: self.model.reserve(rooms))
        answer = await self._done(self.store.ingest.reserve(self.topic, rooms))
        if expected is None:
            self.ids.append(str(answer))
        else:
            assert answer == expected

    async def commit(self, number: int, which: int, how: str) -> None:
        if not self.ids:
            return
        promise = self.model.reserved[which % len(self.ids)]
        change = {"whole": 0, "smaller": -1, "larger": 1, "fewer": 0}[how]
        events = [RoutedEvent(each.shard, each.key, bytes(max(0, each.nbytes + change))) for each in promise.rooms]
        events = events[1:] if how == "fewer" else events
        expected = _tried(lambda: self.model.commit(promise, events))
        reservation = self.ids[which % len(self.ids)]
        answer = self.store.ingest.commit(self.topic, reservation, events, repr(events).encode())
        assert await self._done(answer) == expected

    async def abort(self, number: int, which: int, _: None) -> None:
        if self.ids:
            promise = self.model.reserved[which % len(self.ids)]
            expected = _tried(lambda: self.model.abort(promise))
            assert await self._done(self.store.ingest.abort(self.topic, self.ids[which % len(self.ids)])) == expected

    async def remove(self, number: int, shard: int, count: int) -> None:
        token = await self._hold(shard)
        page = await self.store.queue.read(token, b"", count)
        await self.store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))
        del self.model.entries[shard][:count]

    async def expire(self, number: int, shard: int, _: None) -> None:
        for each in range(SHARDS):  # a store may pass over queues that have no reservation
            await expire(self.store, await self._hold(each), -1)
        self.model.expire()

    async def restart(self, number: int, _: None, __: None) -> None:
        await self.store.__aexit__()
        self.store = await SqliteStore(self.configured).__aenter__()

    async def _hold(self, shard: int) -> LockToken:
        token = await self.store.locks.acquire(self.topic.shard(shard), "w", QUIET_S)
        assert isinstance(token, LockToken)
        return token

    async def _done(self, answer: object) -> object:
        try:
            return await answer  # type: ignore[misc]  # each request has its own kind of answer
        except RemoraError as exc:
            return type(exc)


def _tried(attempt: object) -> object:
    try:
        return attempt()  # type: ignore[operator]
    except RemoraError as exc:
        return type(exc)


@settings(max_examples=30)
@given(steps)
def test_as_the_model(taken: list[tuple[str, object, object]]) -> None:
    """Whatever is published, reserved, committed, aborted, expired and removed, the store is as the plain model."""
    with tempfile.TemporaryDirectory() as directory:
        configured = SqliteSettings(directory=f"{directory}/store", files=1, queue_bytes=CAPACITY)
        asyncio.run(Pair(configured).play(taken))
