"""Topics of the embedded store that number their events: the order of commits, over all shards and without holes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.entries.entries import delivered, raw_entry
from remora.codec.sequence import NUMBER_BYTES, number_of, without_number
from remora.config import SqliteSettings
from remora.model.errors import QueueFull, ReservationExpired, TopicNotSequenced, TopicRefused, TopicUnknown
from remora.model.ingest import IdempotencyKey, ReservedRoom, RoutedEvent
from remora.model.ledger import Tally
from remora.model.record import DeadLetter, Redrive
from remora.model.topic import SequenceState, Topic
from remora.storage.sqlite import SqliteStore
from support.sqlite import append
from support.stores import change, expire, held, own_topic

SHARDS = 3
OVERHEAD = 10


def sequenced(name: str = "t", shards: int = SHARDS) -> Topic:
    return replace(own_topic(name, shards), is_sequenced=True)


def events(shards: Sequence[int], mark: int = 0) -> list[RoutedEvent]:
    """One event for each of these shards, in order; no two have the same entry."""
    return [RoutedEvent(shard, b"bkt:k", raw_entry(f"{mark}-{i}", i)) for i, shard in enumerate(shards)]


def rooms(some: Sequence[RoutedEvent]) -> list[ReservedRoom]:
    return [ReservedRoom(each.shard, each.key, len(each.payload)) for each in some]


async def numbered(store: SqliteStore, topic: Topic) -> dict[int, tuple[int, bytes]]:
    """The shard and entry of each number that waits. No number is there twice, and in a shard they increase."""
    found: dict[int, tuple[int, bytes]] = {}
    for number, shard in enumerate(topic.all_shards()):
        numbers: list[int] = []
        async for _, entry in store.inspection.dump(shard):
            at = number_of(entry)
            assert at is not None
            assert at not in found
            found[at] = number, without_number(entry)
            numbers.append(at)
        assert numbers == sorted(numbers)
    return found


def as_found(*requests: Sequence[RoutedEvent]) -> dict[int, tuple[int, bytes]]:
    """These requests' events, numbered from 1 in their order."""
    return dict(enumerate(((each.shard, each.payload) for some in requests for each in some), 1))


@pytest.mark.guarantee("order-over-all-shards")
async def test_a_request_is_numbered_in_the_order_of_its_records(store: SqliteStore) -> None:
    """The numbers of a request follow its records from shard to shard, from 1, in publishing and in committing."""
    topic = await store.own_topics.create(sequenced())
    first, second = events([2, 0, 2, 1, 0]), events([1, 1, 2], 1)

    await store.ingest.publish(topic, first)
    await store.ingest.commit(topic, await store.ingest.reserve(topic, rooms(second)), second, b"d")

    assert await numbered(store, topic) == as_found(first, second)
    assert await store.own_topics.sequence(topic) == SequenceState(tail=8, delivered=0)


async def test_requests_of_a_round_are_numbered_in_their_order(store: SqliteStore) -> None:
    """Requests that share a transaction get numbers in the order of their arrival; those that are refused get none."""
    topic = await store.own_topics.create(sequenced())
    some = [events([i % SHARDS, (i + 1) % SHARDS], i) for i in range(100)]
    large = [RoutedEvent(0, b"bkt:k", bytes(store._files.settings.queue_bytes))]
    requests = [store.ingest.publish(topic, each) for each in some]
    requests.insert(50, store.ingest.publish(topic, large))
    before = store.writers["queues-000.db"].transactions

    outcomes = await asyncio.gather(*requests, return_exceptions=True)

    assert [i for i, each in enumerate(outcomes) if isinstance(each, BaseException)] == [50]
    assert isinstance(outcomes[50], QueueFull)
    assert await numbered(store, topic) == as_found(*some)
    assert store.writers["queues-000.db"].transactions - before < len(some), "requests shared no transaction"


@pytest.mark.guarantee("order-over-all-shards")
async def test_what_was_answered_has_smaller_numbers(configured: SqliteSettings) -> None:
    """Of several processes' stores: a request that is sent after another one was answered gets larger numbers."""
    async with SqliteStore(configured) as one, SqliteStore(configured) as other:
        topic = await one.own_topics.create(sequenced())
        some = [events([i % SHARDS] * 2, i) for i in range(40)]

        for i, each in enumerate(some):
            await (one, other)[i % 2].ingest.publish(topic, each)

        assert await numbered(one, topic) == as_found(*some)


async def test_a_repetition_takes_no_numbers(store: SqliteStore) -> None:
    """A request that is recognised is answered as before, and the next number is that of the next event."""
    topic = await store.own_topics.create(sequenced())
    once, some = IdempotencyKey("key", b"digest"), events([0, 1])

    for _ in range(3):
        await store.ingest.publish(topic, some, once)

    assert (await store.own_topics.sequence(topic)).tail == 2


async def test_numbers_count_in_the_room_of_a_queue_alone(configured: SqliteSettings) -> None:
    """A sender reserves what its events have; the queue keeps and gives back their numbers' room as well."""
    (one,) = events([0])
    each = len(one.payload) + NUMBER_BYTES + OVERHEAD
    async with SqliteStore(replace(configured, queue_bytes=2 * each)) as store:
        topic = await store.own_topics.create(sequenced())
        reservation = await store.ingest.reserve(topic, rooms([one]))
        await store.ingest.publish(topic, [one])

        with pytest.raises(QueueFull):
            await store.ingest.publish(topic, [one._replace(payload=b"")])
        await store.ingest.commit(topic, reservation, [one], b"d")

        stats = await store.inspection.stats(topic.shard(0))
        assert (stats.used_bytes, stats.reserved_bytes) == (2 * each, 0)
        await removed(store, topic, 0, 2)
        assert (await store.inspection.stats(topic.shard(0))).used_bytes == 0


async def removed(store: SqliteStore, topic: Topic, shard: int, count: int) -> None:
    """Remove this many entries from a shard's front, as delivered."""
    token = await held(store, topic.shard(shard))
    page = await store.queue.read(token, b"", count)
    await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))


async def test_every_kind_of_commit_numbers(store: SqliteStore) -> None:
    """Entries of a gateway's commit and re-driven letters get the next numbers, whatever stood behind them before."""
    topic = await store.own_topics.create(sequenced())
    (one, two) = events([0, 0])
    await append(store, topic.shard(0), one.payload, two.payload)
    token = await held(store, topic.shard(0))
    page = await store.queue.read(token, b"", 1)
    letter = DeadLetter(
        topic.shard(0).queue,
        token.incarnation,
        "0/0",
        "0/1",
        "expired",
        "",
        0,
        1.0,
        1.0,
        page.entries[0],
        f"{topic.id}:1",
    )
    await store.letters.store(token, letter)
    await store.queue.remove(token, page.positions[1], 1, Tally(expired=1))

    assert await store.letters.redrive(topic.shard(2), topic, [Redrive(letter, letter.raw)]) == 1

    assert await numbered(store, topic) == {2: (0, two.payload), 3: (2, one.payload)}
    assert [each.sequence async for each in store.letters.stored()] == []


async def test_how_far_is_a_matter_of_the_oldest_entries(store: SqliteStore) -> None:
    """`delivered` is the number before the oldest entry of all queues, and the tail where all are empty."""
    topic = await store.own_topics.create(sequenced())
    assert await store.own_topics.sequence(topic) == SequenceState(0, 0)
    await store.ingest.publish(topic, events([0, 1, 2, 0, 1]))  # 1 and 4 in shard 0, 2 and 5 in 1, 3 in 2

    seen = []
    for shard, count in ((1, 1), (0, 1), (2, 1), (0, 1), (1, 1)):
        await removed(store, topic, shard, count)
        seen.append((await store.own_topics.sequence(topic)).delivered)

    assert seen == [0, 2, 3, 4, 5]


async def test_a_corrupt_front_does_not_tell_how_far(store: SqliteStore, configured: SqliteSettings) -> None:
    """While the oldest entry of a queue is corrupt its number is not believed, and nothing counts as delivered."""
    topic = await store.own_topics.create(sequenced())
    await store.ingest.publish(topic, events([0, 1]))
    await removed(store, topic, 0, 1)
    assert (await store.own_topics.sequence(topic)).delivered == 1

    change(
        configured, "UPDATE settled SET data = CAST(substr(data, 1, length(data) - 8) || x'ffff000000000000' AS BLOB)"
    )

    assert await store.own_topics.sequence(topic) == SequenceState(2, 0)
    await removed(store, topic, 1, 1)
    assert await store.own_topics.sequence(topic) == SequenceState(2, 2)


async def test_topics_without_a_sequence(store: SqliteStore) -> None:
    """They store the very bytes that came, tell of no sequence, and no topic begins or ceases to number its events."""
    plain, other = await store.own_topics.create(own_topic("plain")), await store.own_topics.create(sequenced())
    some = events([0, 1])
    await store.ingest.publish(plain, some)

    assert [entry async for _, entry in store.inspection.dump(plain.shard(0))] == [some[0].payload]
    with pytest.raises(TopicNotSequenced):
        await store.own_topics.sequence(plain)
    for topic in (plain, other):
        with pytest.raises(TopicRefused, match="numbers"):
            await store.own_topics.change(replace(topic, is_sequenced=not topic.is_sequenced))
    with pytest.raises(TopicUnknown):
        await store.own_topics.sequence(replace(other, id="another"))
    assert await store.own_topics.find("t") == other
    assert set((await store.catalog.topics()).values()) == {plain, other}


async def test_a_topic_made_anew_begins_at_one(store: SqliteStore) -> None:
    """Its id, which stands before each number, is another one."""
    topic = await store.own_topics.create(sequenced())
    await store.ingest.publish(topic, events([0, 1]))
    await store.own_topics.remove(topic, discard=True)

    again = await store.own_topics.create(sequenced())

    assert await store.own_topics.sequence(again) == SequenceState(0, 0)
    assert again.id != topic.id


async def test_attributes_that_cannot_be_read_stop_a_sequenced_topic(
    store: SqliteStore, configured: SqliteSettings
) -> None:
    """Its queues are not there to be delivered, since their records would lack their numbers; another topic's are."""
    await store.own_topics.create(sequenced())
    plain = await store.own_topics.create(own_topic("plain"))

    change(
        configured, "UPDATE topics SET attributes = x'7b'", "UPDATE meta SET value = value + 1 WHERE key = 'catalogue'"
    )

    assert list(await store.catalog.shards()) == list(plain.all_shards())


# ------------------------------------------------------------------------------------------------- a model

some_shards = st.lists(st.integers(0, SHARDS - 1), min_size=1, max_size=4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(some_shards, min_size=1, max_size=4)),
        st.tuples(st.just("reserve"), some_shards),
        st.tuples(st.just("commit"), st.integers(0, 9)),
        st.tuples(st.just("expire"), st.none()),
        st.tuples(st.just("remove"), st.tuples(st.integers(0, SHARDS - 1), st.integers(1, 4))),
        st.tuples(st.just("reopen"), st.none()),
    ),
    min_size=10,
    max_size=25,
)


@dataclass
class Model:
    """What was committed, in order, and how many entries of each shard were removed."""

    committed: list[RoutedEvent]
    gone: list[int]

    def waiting(self) -> dict[int, tuple[int, bytes]]:
        """What waits, by its number."""
        left, found = list(self.gone), {}
        for number, event in enumerate(self.committed, 1):
            if left[event.shard]:
                left[event.shard] -= 1
            else:
                found[number] = event.shard, event.payload
        return found

    def state(self) -> SequenceState:
        tail = len(self.committed)
        return SequenceState(tail, min(self.waiting(), default=tail + 1) - 1)


@settings(max_examples=40, deadline=None)
@given(steps)
@pytest.mark.guarantee("order-over-all-shards")
def test_numbers_are_dense_whatever_happens(taken: list[tuple[str, Any]]) -> None:
    """Whatever is published, reserved, committed, expired, removed and reopened, in any order: numbers are those of the
    order of commits, from 1 without a hole, and `delivered` is the number before the oldest one that waits."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(SqliteSettings(directory=str(Path(folder) / "store"), files=1), taken))


async def play(configured: SqliteSettings, taken: Sequence[tuple[str, Any]]) -> None:
    pair = Pair(configured)
    await pair.store.__aenter__()
    try:
        pair.topic = await pair.store.own_topics.create(sequenced())
        for number, (kind, argument) in enumerate(taken):
            await getattr(pair, kind)(number, argument)
            assert await numbered(pair.store, pair.topic) == pair.model.waiting()
            assert await pair.store.own_topics.sequence(pair.topic) == pair.model.state()
        await pair.expire(0, None)
        assert not any([(await pair.store.inspection.stats(each)).reserved_bytes for each in pair.topic.all_shards()])
    finally:
        await pair.store.__aexit__()


class Pair:
    """A store beside its model; each step is taken by both."""

    topic: Topic

    def __init__(self, configured: SqliteSettings) -> None:
        self.configured, self.store = configured, SqliteStore(configured)
        self.model = Model([], [0] * SHARDS)
        self.promised: list[tuple[str, list[RoutedEvent]]] = []

    async def publish(self, number: int, requests: Sequence[Sequence[int]]) -> None:
        some = [events(each, number) for each in requests]
        await asyncio.gather(*(self.store.ingest.publish(self.topic, each) for each in some))
        self.model.committed += [event for each in some for event in each]

    async def reserve(self, number: int, shards: Sequence[int]) -> None:
        wanted = events(shards, number)
        self.promised.append((await self.store.ingest.reserve(self.topic, rooms(wanted)), wanted))

    async def commit(self, number: int, which: int) -> None:
        if self.promised:
            reservation, wanted = self.promised.pop(which % len(self.promised))
            with suppress(ReservationExpired):
                await self.store.ingest.commit(self.topic, reservation, wanted, b"d")
                self.model.committed += wanted

    async def expire(self, number: int, _: None) -> None:
        for shard in self.topic.all_shards():
            await expire(self.store, await held(self.store, shard), -1)

    async def remove(self, number: int, part: tuple[int, int]) -> None:
        shard, count = part
        if waiting := sum(each == shard for each, _ in self.model.waiting().values()):
            await removed(self.store, self.topic, shard, count)
            self.model.gone[shard] += min(count, waiting)

    async def reopen(self, number: int, _: None) -> None:
        await self.store.__aexit__()
        self.store = await SqliteStore(self.configured).__aenter__()
