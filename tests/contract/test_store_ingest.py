"""The store contract: events are stored in order, all or none over a topic's shards, and a repeat is recognised."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from devkit.entries.entries import delivered
from remora.model.errors import (
    OnceConflict,
    QueueFull,
    ReservationExceeded,
    ReservationExpired,
    ReservationMismatch,
    ReservationUnknown,
    TopicClosed,
    TopicUnknown,
)
from remora.model.ingest import IdempotencyKey, PublishResult, ReservedRoom, RoutedEvent
from remora.model.topic import Topic
from remora.ports.store import ShardStore
from support.stores import Bench, by_shard, expire, own_topic, spread


def rooms(events: Sequence[RoutedEvent], slack: int = 100) -> list[ReservedRoom]:
    """Room for these events, with some bytes to spare in each."""
    return [ReservedRoom(event.shard, event.key, len(event.payload) + slack) for event in events]


async def reserved(bench: Bench, topic: Topic) -> list[int]:
    """Open reservations of each shard; where there are none, no bytes are reserved either."""
    found = [await bench.store.inspection.stats(shard) for shard in topic.all_shards()]
    assert not any(each.reserved_bytes for each in found if not each.reservations)
    return [each.reservations for each in found]


async def all_but(bench: Bench, topic: Topic, shard: int, left: int = 1_000) -> ReservedRoom:
    """As much room of one shard as leaves about this many bytes of it."""
    stats = await bench.store.inspection.stats(topic.shard(shard))
    return ReservedRoom(shard, b"bkt:large", stats.capacity_bytes - stats.used_bytes - stats.reserved_bytes - left)


# -------------------------------------------------------------------------------------------- publish


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_stored_in_order(bench: Bench) -> None:
    """Events are in their shards in the order that they were given in, byte for byte, request after request."""
    topic = await bench.topic()
    first, second = spread(topic, 100, "a"), spread(topic, 7, "b")

    assert await bench.store.ingest.publish(topic, first) == PublishResult(100)
    assert await bench.store.ingest.publish(topic, second) == PublishResult(7)
    await bench.store.ingest.publish(topic, [RoutedEvent(1, b"bkt:\xff", b"\x00\xff")])

    expected = by_shard(topic, first, second, [RoutedEvent(1, b"", b"\x00\xff")])
    assert await bench.pending(topic) == expected
    token = await bench.held(topic.shard(1))
    page = await bench.store.queue.read(token, b"", 1_000)
    assert page.entries == expected[1]
    await bench.store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))
    assert (await bench.store.inspection.stats(topic.shard(1))).used_bytes == 0


async def test_events_of_some_shards(bench: Bench) -> None:
    """A request may touch one shard or several; the others stay empty. One without events stores none."""
    topic = await bench.topic()

    assert await bench.store.ingest.publish(topic, []) == PublishResult(0)
    await bench.store.ingest.publish(topic, [RoutedEvent(2, b"bkt:k", b"one")])
    await bench.store.ingest.publish(topic, [RoutedEvent(2, b"bkt:k", b"two"), RoutedEvent(0, b"bkt:l", b"three")])

    assert await bench.pending(topic) == [[b"three"], [], [b"one", b"two"]]


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_side_by_side(bench: Bench) -> None:
    """Of requests that come together, over several workers, each is stored once and in its own order."""
    topic, other = await bench.topic(), await bench.another()

    async def caller(store: ShardStore, number: int) -> list[RoutedEvent]:
        mine = spread(topic, 60, f"{number}-")
        for i in range(0, 60, 6):
            await store.ingest.publish(topic, mine[i : i + 6])
        return mine

    requests = await asyncio.gather(*(caller(store, i) for i, store in enumerate((bench.store, other) * 4)))

    for pending, *sent in zip(await bench.pending(topic), *(by_shard(topic, each) for each in requests), strict=True):
        assert sorted(pending) == sorted(itertools.chain(*sent))
        for mine in sent:
            assert [each for each in pending if each in set(mine)] == mine


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_full_queue_refuses_the_whole_request(bench: Bench) -> None:
    """When one shard lacks room nothing is stored in any, and the same request passes when there is room again."""
    topic = await bench.topic()
    blocker = await bench.store.ingest.reserve(topic, [await all_but(bench, topic, 2)])
    events = [*spread(topic, 2), RoutedEvent(2, b"bkt:k", b"x" * 2_000)]
    once = IdempotencyKey("key", b"digest")

    for _ in range(2):
        with pytest.raises(QueueFull):
            await bench.store.ingest.publish(topic, events, once)
    assert await bench.pending(topic) == [[], [], []]
    assert await reserved(bench, topic) == [0, 0, 1]

    await bench.store.ingest.abort(topic, blocker)
    assert await bench.store.ingest.publish(topic, events, once) == PublishResult(3)
    assert await bench.pending(topic) == by_shard(topic, events)


async def test_another_topic_of_the_name(bench: Bench) -> None:
    """Events for a topic that was removed are refused, and so they are when another one has its name now."""
    topic = await bench.topic()
    await bench.store.ingest.publish(topic, spread(topic, 3))
    await bench.store.own_topics.remove(topic, discard=True)
    with pytest.raises(TopicUnknown):
        await bench.store.ingest.publish(topic, spread(topic, 3))
    new = await bench.store.own_topics.create(own_topic(topic.name))

    with pytest.raises(TopicUnknown):
        await bench.store.ingest.publish(topic, spread(topic, 3), IdempotencyKey("key", b"digest"))
    with pytest.raises(TopicUnknown):
        await bench.store.ingest.reserve(topic, rooms(spread(topic, 3)))

    assert await bench.pending(new) == [[], [], []]
    assert await reserved(bench, new) == [0, 0, 0]


async def test_never_made_topic(bench: Bench) -> None:
    """A topic that never was takes no events."""
    topic = replace(own_topic(f"t-{uuid.uuid4().hex[:8]}"), id="0" * 32)

    with pytest.raises(TopicUnknown):
        await bench.store.ingest.publish(topic, spread(topic, 3))


async def test_closed_topic(bench: Bench) -> None:
    """A closed topic takes nothing new, whatever the caller last knew, but what was promised; open again, it does."""
    topic = await bench.topic()
    early, once = spread(topic, 3, "early"), IdempotencyKey("key", b"digest")
    promised = await bench.store.ingest.reserve(topic, rooms(early))
    await bench.store.ingest.publish(topic, spread(topic, 3), once)
    await bench.store.own_topics.change(replace(topic, closed=True))

    with pytest.raises(TopicClosed):
        await bench.store.ingest.publish(topic, spread(topic, 3))
    with pytest.raises(TopicClosed):
        await bench.store.ingest.reserve(topic, rooms(spread(topic, 3)))
    assert await bench.store.ingest.publish(topic, spread(topic, 3), once) == PublishResult(3, repeated=True)
    assert await bench.store.ingest.commit(topic, promised, early, b"digest") == PublishResult(3)

    assert await bench.pending(topic) == by_shard(topic, spread(topic, 3), early)
    await bench.store.own_topics.change(topic)
    await bench.store.ingest.publish(topic, spread(topic, 3))


async def test_shards_that_the_topic_does_not_have(bench: Bench) -> None:
    """An event for a shard that is not there is a mistake of the caller; nothing of its request is stored."""
    topic = await bench.topic()

    for number in (-1, 3):
        events = [*spread(topic, 3), RoutedEvent(number, b"bkt:k", b"x")]
        with pytest.raises(ValueError, match="shard"):
            await bench.store.ingest.publish(topic, events)
        with pytest.raises(ValueError, match="shard"):
            await bench.store.ingest.reserve(topic, rooms(events))

    assert await bench.pending(topic) == [[], [], []]
    assert await reserved(bench, topic) == [0, 0, 0]


# -------------------------------------------------------------------------------------------- only once


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_repeat_is_recognised(bench: Bench) -> None:
    """The same request again stores nothing and is answered as the first time: here, elsewhere, after a restart."""
    topic, other = await bench.topic(), await bench.another()
    events, once = spread(topic, 9), IdempotencyKey("key", b"digest")
    assert await bench.store.ingest.publish(topic, events, once) == PublishResult(9)

    assert await bench.store.ingest.publish(topic, events, once) == PublishResult(9, repeated=True)
    assert await other.ingest.publish(topic, events, once) == PublishResult(9, repeated=True)
    store = await bench.reopened()
    assert await store.ingest.publish(topic, events, once) == PublishResult(9, repeated=True)

    assert await bench.pending(topic) == by_shard(topic, events)


async def test_key_used_for_something_else(bench: Bench) -> None:
    """Another request under a used key is refused, and the key still stands for the first one."""
    topic = await bench.topic()
    events = spread(topic, 3)
    await bench.store.ingest.publish(topic, events, IdempotencyKey("key", b"digest"))

    with pytest.raises(OnceConflict):
        await bench.store.ingest.publish(topic, spread(topic, 6), IdempotencyKey("key", b"other"))

    assert (await bench.store.ingest.publish(topic, events, IdempotencyKey("key", b"digest"))).repeated
    assert await bench.pending(topic) == by_shard(topic, events)


async def test_keys_are_apart(bench: Bench) -> None:
    """Other keys, and the same key for another topic or for a new topic of the name, are other requests."""
    topic, second = await bench.topic(), await bench.topic()
    events = spread(topic, 3)
    once = IdempotencyKey("key", b"digest")
    await bench.store.ingest.publish(topic, events, once)

    assert await bench.store.ingest.publish(topic, events, IdempotencyKey("key ", b"digest")) == PublishResult(3)
    assert await bench.store.ingest.publish(topic, events, IdempotencyKey("Key", b"digest")) == PublishResult(3)
    assert await bench.store.ingest.publish(second, events, once) == PublishResult(3)
    await bench.store.own_topics.remove(topic, discard=True)
    new = await bench.store.own_topics.create(own_topic(topic.name))
    assert await bench.store.ingest.publish(new, events, once) == PublishResult(3)

    assert await bench.pending(new) == by_shard(topic, events)
    assert await bench.pending(second) == by_shard(topic, events)


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_repeats_side_by_side(bench: Bench) -> None:
    """Of the same request made several times at once, over two workers, one stores and the others are repeats."""
    topic, other = await bench.topic(), await bench.another()
    events, once = spread(topic, 9), IdempotencyKey("key", b"digest")

    answers = await asyncio.gather(
        *(store.ingest.publish(topic, events, once) for store in (bench.store, other) for _ in range(4))
    )

    assert sorted(each.repeated for each in answers) == [False] + [True] * 7
    assert {each.events for each in answers} == {9}
    assert await bench.pending(topic) == by_shard(topic, events)


# -------------------------------------------------------------------------------------------- two phases


async def test_reservation_keeps_room_only(bench: Bench) -> None:
    """A reservation names its topic, counts in the shards that it touches, and is no entry."""
    topic = await bench.topic()

    reservation = await bench.store.ingest.reserve(topic, rooms(spread(topic, 2)))

    name, dot, rest = reservation.partition(".")
    assert (name, dot) == (topic.name, ".")
    assert rest.isalnum()
    assert await reserved(bench, topic) == [1, 1, 0]
    assert await bench.pending(topic) == [[], [], []]


async def test_commit_stores_and_ends(bench: Bench) -> None:
    """A commit stores its events in the order of commits and gives back all room that they did not need."""
    topic = await bench.topic()
    early, late = spread(topic, 7, "early"), spread(topic, 5, "late")
    one = await bench.store.ingest.reserve(topic, rooms(early))
    two = await bench.store.ingest.reserve(topic, rooms(late, slack=0))

    assert await bench.store.ingest.commit(topic, two, late, b"late") == PublishResult(5)
    assert await reserved(bench, topic) == [1, 1, 1]
    assert await bench.store.ingest.commit(topic, one, early, b"early") == PublishResult(7)

    assert await bench.pending(topic) == by_shard(topic, late, early)
    assert await reserved(bench, topic) == [0, 0, 0]


async def test_rooms_in_all_shards_or_in_none(bench: Bench) -> None:
    """When one shard lacks room, nothing is reserved in any; abort, commit and removal give room back."""
    topic = await bench.topic()
    large = await all_but(bench, topic, 1)
    blocker = await bench.store.ingest.reserve(topic, [large])
    wanted = [ReservedRoom(i, b"bkt:k%d" % i, 4_096) for i in range(3)]
    with pytest.raises(QueueFull):
        await bench.store.ingest.reserve(topic, wanted)
    assert await reserved(bench, topic) == [0, 1, 0]

    await bench.store.ingest.abort(topic, blocker)
    await bench.store.ingest.abort(topic, await bench.store.ingest.reserve(topic, wanted))
    blocker = await bench.store.ingest.reserve(topic, [large])
    with pytest.raises(QueueFull):
        await bench.store.ingest.reserve(topic, wanted)
    await bench.store.ingest.commit(topic, blocker, [RoutedEvent(1, large.key, b"small after all")], b"digest")

    reservation = await bench.store.ingest.reserve(topic, wanted)
    assert await reserved(bench, topic) == [1, 1, 1]
    await bench.store.ingest.abort(topic, reservation)


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_repeated_commit(bench: Bench) -> None:
    """The same commit again stores nothing and is answered as the first time: here, elsewhere, after a restart."""
    topic, other = await bench.topic(), await bench.another()
    events = spread(topic, 4)
    reservation = await bench.store.ingest.reserve(topic, rooms(events))
    assert await bench.store.ingest.commit(topic, reservation, events, b"digest") == PublishResult(4)

    assert await bench.store.ingest.commit(topic, reservation, events, b"digest") == PublishResult(4, repeated=True)
    assert await other.ingest.commit(topic, reservation, events, b"digest") == PublishResult(4, repeated=True)
    store = await bench.reopened()
    assert await store.ingest.commit(topic, reservation, events, b"digest") == PublishResult(4, repeated=True)

    assert await bench.pending(topic) == by_shard(topic, events)


async def test_commits_side_by_side(bench: Bench) -> None:
    """Of one commit made several times at once, over two workers, one stores and the others are repeats."""
    topic, other = await bench.topic(), await bench.another()
    events = spread(topic, 5)
    reservation = await bench.store.ingest.reserve(topic, rooms(events))

    answers = await asyncio.gather(
        *(store.ingest.commit(topic, reservation, events, b"d") for store in (bench.store, other) for _ in range(3))
    )

    assert sorted(each.repeated for each in answers) == [False] + [True] * 5
    assert await bench.pending(topic) == by_shard(topic, events)
    assert await reserved(bench, topic) == [0, 0, 0]


async def test_other_events_after_a_commit(bench: Bench) -> None:
    """A second commit of other events is refused, and so is an abort of what is stored."""
    topic = await bench.topic()
    events = spread(topic, 3)
    reservation = await bench.store.ingest.reserve(topic, rooms(events))
    await bench.store.ingest.commit(topic, reservation, events, b"digest")

    with pytest.raises(OnceConflict):
        await bench.store.ingest.commit(topic, reservation, spread(topic, 3, "other"), b"other")
    with pytest.raises(OnceConflict):
        await bench.store.ingest.abort(topic, reservation)

    assert await bench.pending(topic) == by_shard(topic, events)


async def test_events_that_no_room_was_reserved_for(bench: Bench) -> None:
    """More, fewer, others or another order are refused, and the reservation stays open for the right ones."""
    topic = await bench.topic()
    events = spread(topic, 3)
    reservation = await bench.store.ingest.reserve(topic, rooms(events))

    for wrong in (
        events[:2],
        [*events, events[0]],
        [],
        [events[1], events[0], events[2]],
        [*events[:2], events[2]._replace(key=b"bkt:other")],
        [*events[:2], events[2]._replace(shard=0)],
    ):
        with pytest.raises(ReservationMismatch):
            await bench.store.ingest.commit(topic, reservation, wrong, b"wrong")

    assert await bench.pending(topic) == [[], [], []]
    assert await bench.store.ingest.commit(topic, reservation, events, b"digest") == PublishResult(3)
    assert await bench.pending(topic) == by_shard(topic, events)


async def test_event_that_is_too_large(bench: Bench) -> None:
    """One event beyond its own room is refused although all rooms together would do; the reservation stays open."""
    topic = await bench.topic()
    events = [RoutedEvent(0, b"bkt:a", b"12345"), RoutedEvent(0, b"bkt:b", b"1")]
    reservation = await bench.store.ingest.reserve(
        topic, [ReservedRoom(0, b"bkt:a", 4), ReservedRoom(0, b"bkt:b", 100)]
    )

    with pytest.raises(ReservationExceeded):
        await bench.store.ingest.commit(topic, reservation, events, b"digest")
    assert await bench.pending(topic) == [[], [], []]

    fitting = [events[0]._replace(payload=b"1234"), events[1]]
    assert await bench.store.ingest.commit(topic, reservation, fitting, b"fitting") == PublishResult(2)
    assert await bench.pending(topic) == by_shard(topic, fitting)


async def test_abort(bench: Bench) -> None:
    """An abort gives all room back, may be made again, also after a restart, and no commit comes after it."""
    topic = await bench.topic()
    events = spread(topic, 3)
    reservation = await bench.store.ingest.reserve(topic, rooms(events))

    await bench.store.ingest.abort(topic, reservation)
    await bench.store.ingest.abort(topic, reservation)
    assert await reserved(bench, topic) == [0, 0, 0]
    with pytest.raises(ReservationExpired):
        await bench.store.ingest.commit(topic, reservation, events, b"digest")

    store = await bench.reopened()
    await store.ingest.abort(topic, reservation)
    assert await bench.pending(topic) == [[], [], []]


async def test_reservation_that_never_was(bench: Bench) -> None:
    """An unknown id, another topic's, and one of a removed topic of the name are reservations that never were."""
    topic, second = await bench.topic(), await bench.topic()
    events = spread(topic, 3)
    reservation = await bench.store.ingest.reserve(topic, rooms(events))
    never = f"{topic.name}.{'0' * len(reservation.partition('.')[2])}"

    for of, wrong in ((topic, never), (topic, f"{topic.name}.nonsense"), (topic, ""), (second, reservation)):
        with pytest.raises(ReservationUnknown):
            await bench.store.ingest.commit(of, wrong, events, b"digest")
        with pytest.raises(ReservationUnknown):
            await bench.store.ingest.abort(of, wrong)

    await bench.store.own_topics.remove(topic, discard=True)
    with pytest.raises(TopicUnknown):
        await bench.store.ingest.commit(topic, reservation, events, b"digest")
    new = await bench.store.own_topics.create(own_topic(topic.name))
    with pytest.raises(ReservationUnknown):
        await bench.store.ingest.commit(new, reservation, events, b"digest")
    assert await bench.pending(new) == [[], [], []]


async def test_expiry(bench: Bench) -> None:
    """Who holds a topic's shards ends old reservations: all room comes back and no commit is taken any more."""
    topic = await bench.topic()
    events, kept = spread(topic, 3), spread(topic, 3, "kept")
    done = await bench.store.ingest.reserve(topic, rooms(kept))
    await bench.store.ingest.commit(topic, done, kept, b"kept")
    reservation = await bench.store.ingest.reserve(topic, rooms(events))
    tokens = [await bench.held(shard) for shard in topic.all_shards()]

    for token in tokens:
        await expire(bench.store, token, 3600)
    assert await reserved(bench, topic) == [1, 1, 1]
    for token in tokens:
        await expire(bench.store, token, -60)

    assert await reserved(bench, topic) == [0, 0, 0]
    with pytest.raises(ReservationExpired):
        await bench.store.ingest.commit(topic, reservation, events, b"digest")
    await bench.store.ingest.abort(topic, reservation)
    assert await bench.store.ingest.commit(topic, done, kept, b"kept") == PublishResult(3, repeated=True)
    assert await bench.pending(topic) == by_shard(topic, kept)


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_reservation_outlives_a_restart(bench: Bench) -> None:
    """Room that was reserved before a restart is there after it, for another worker too."""
    topic = await bench.topic()
    events = spread(topic, 3)
    reservation = await bench.store.ingest.reserve(topic, rooms(events))

    store = await bench.reopened()

    assert await reserved(bench, topic) == [1, 1, 1]
    with pytest.raises(ReservationMismatch):
        await store.ingest.commit(topic, reservation, spread(topic, 2), b"digest")
    assert await store.ingest.commit(topic, reservation, events, b"digest") == PublishResult(3)
    assert await bench.pending(topic) == by_shard(topic, events)
    assert await reserved(bench, topic) == [0, 0, 0]


async def test_an_event_after_another_of_its_key(bench: Bench) -> None:
    """A reservation may have one key several times; its events come out in the order of the commit's."""
    topic = await bench.topic()
    events = [RoutedEvent(1, b"bkt:same", b"%d" % i) for i in range(5)]
    reservation = await bench.store.ingest.reserve(topic, rooms(events))

    await bench.store.ingest.commit(topic, reservation, events, b"digest")

    assert (await bench.pending(topic))[1] == [b"0", b"1", b"2", b"3", b"4"]
