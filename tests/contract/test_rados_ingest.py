"""Ingest on RADOS when its process, its cluster or its reservations go in the midst of a request."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import rados

from devkit.clusters.ceph import Ceph, Gateway, reached
from devkit.entries.entries import delivered
from devkit.waits import PATIENT_S, until
from remora.config import RadosSettings
from remora.model.errors import (
    OnceConflict,
    ReservationExpired,
    ShardGone,
    StoreFull,
    StoreMisconfigured,
    StoreUnavailable,
    TopicClosed,
    TopicRefused,
    TopicUnknown,
)
from remora.model.ingest import RESERVATION_AGE_S, IdempotencyKey, PublishResult, Removed, ReservedRoom, RoutedEvent
from remora.model.shard import LockToken, Shard
from remora.model.topic import Topic
from remora.storage.rados import RadosStore
from remora.storage.rados.ingest import finisher, intent_log
from remora.storage.rados.ingest.schedule import DueAction
from support.gone_layouts import pass_time
from support.rados_victim import DIGEST, EVENTS, ONCE, SHARDS, Victim, after_write, armed, rooms, victims
from support.store_traffic import CountedTraffic
from support.stores import by_shard, expire, own_topic, spread

pytestmark = pytest.mark.ceph

OSDS = ("osd.0", "osd.1")


@pytest.fixture
async def store(settings: RadosSettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RadosStore]:
    """An open store, which is not the one that anything happens to. It looks after others' requests often."""
    monkeypatch.setattr(finisher, "_EVERY_S", 0.3)
    async with reached(settings) as store:
        yield store


async def test_a_store_tells_how_many_bytes_it_commits(settings: RadosSettings) -> None:
    """Each commit of one step, of one under a key and of a reservation is told, with the bytes that it sends."""
    traffic = CountedTraffic()
    told = traffic.commits
    events = [RoutedEvent(0, b"k", b"e" * 1000), RoutedEvent(0, b"k", b"e" * 500)]
    async with reached(settings, traffic=traffic) as store:
        topic = await store.own_topics.create(own_topic(f"told-{uuid.uuid4().hex[:8]}", 2))
        await store.ingest.publish(topic, events)
        assert len(told) == 1
        await store.ingest.publish(topic, events, IdempotencyKey("once", b"d"))
        reservation = await store.ingest.reserve(topic, [ReservedRoom(0, b"k", 2000)])
        assert len(told) == 2
        await store.ingest.commit(topic, reservation, events[:1], DIGEST)

    assert [each // 100 for each in told] == [15, 15, 10]


async def pending(store: RadosStore, topic: Topic) -> list[list[bytes]]:
    """All pending entries of each of a topic's shards."""
    return [[entry async for _, entry in store.inspection.dump(shard)] for shard in topic.all_shards()]


async def reserved(store: RadosStore, topic: Topic) -> int:
    """Open reservations of all shards."""
    return sum([(await store.inspection.stats(shard)).reservations for shard in topic.all_shards()])


async def topic_of(store: RadosStore, victim: Victim) -> Topic:
    topic = await store.own_topics.find(victim.topic)
    assert topic is not None
    return topic


async def expire_topic(store: RadosStore, topic: Topic) -> None:
    """What the holder of each shard does to reservations that are too old, done to all of them."""
    for shard in topic.all_shards():
        token = await store.locks.acquire(shard, "w", 90)
        assert isinstance(token, LockToken)
        await expire(store, token, -60)
        await store.locks.release(token)


async def outcomes(store: RadosStore, left: Sequence[Victim]) -> list[bool]:
    """Whether each victim's events are stored, when all of them are or none, each once and in order, for good."""
    await until(lambda: is_settled(store))
    found = [await pending(store, await topic_of(store, victim)) for victim in left]
    expected = by_shard(own_topic("any", SHARDS), spread(own_topic("any", SHARDS), EVENTS))
    assert all(each in (expected, [[]] * SHARDS) for each in found)
    return [each == expected for each in found]


async def is_settled(store: RadosStore) -> bool:
    """Whether every request that was decided has been carried out."""
    open_entries = (await store._recovery._schedule.entries())[DueAction.COMPLETE]
    return not [entry for entry in open_entries if not await _was_never_made(store, entry.name)]


async def _was_never_made(store: RadosStore, name: str) -> bool:
    return await store._recovery._intents.load(name) is None


# ---------------------------------------------------------------------------------------- killed processes


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_killed_while_publishing(
    settings: RadosSettings, store: RadosStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever step a publisher is killed after, others store all of its events or none, and its repeat stores once."""
    monkeypatch.setattr(finisher, "_GRACE_S", 3600.0)  # however slow a publisher is, nobody takes a step from it
    left = await victims(settings, "publish")
    monkeypatch.setattr(finisher, "_GRACE_S", 0.0)

    stored = await outcomes(store, left)

    # Reservations, a note and the decision; commits, and two steps to remember it by.
    assert stored == [False] * (SHARDS + 1) + [True] * (SHARDS + 4)
    for victim, was_stored in zip(left, stored, strict=True):
        topic = await topic_of(store, victim)
        assert await store.ingest.publish(topic, spread(topic, EVENTS), ONCE) == PublishResult(
            EVENTS, repeated=was_stored
        )
    assert all(await outcomes(store, left))


async def test_repeated_at_once_after_a_kill(settings: RadosSettings, store: RadosStore) -> None:
    """Repeats that do not wait for anything, from several workers at once, store a killed publisher's events once."""
    left = await victims(settings, "publish")

    async with reached(settings) as other:
        for victim in left:
            topic = await topic_of(store, victim)
            answers = await asyncio.gather(
                *(each.ingest.publish(topic, spread(topic, EVENTS), ONCE) for each in (store, other, store, other))
            )
            assert {answer.events for answer in answers} == {EVENTS}
            assert sum(not answer.repeated for answer in answers) <= 1

    assert all(await outcomes(store, left))


async def test_killed_while_reserving(settings: RadosSettings, store: RadosStore) -> None:
    """What a killed process has reserved is no entry, and its room comes back when it expires."""
    for victim in await victims(settings, "reserve"):
        topic = await topic_of(store, victim)

        assert await pending(store, topic) == [[]] * SHARDS
        await expire_topic(store, topic)
        assert await reserved(store, topic) == 0


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_killed_while_committing(settings: RadosSettings, store: RadosStore) -> None:
    """Whatever step a commit is killed after, the same commit again stores the events once, and another one none."""
    left = await victims(settings, "commit")

    for victim in left:
        topic = await topic_of(store, victim)
        events = spread(topic, EVENTS)
        answer = await store.ingest.commit(topic, victim.reservation, events, DIGEST)
        assert answer == PublishResult(EVENTS, repeated=answer.repeated)
        with pytest.raises(OnceConflict):
            await store.ingest.commit(topic, victim.reservation, events, b"other")
        assert await reserved(store, topic) == 0

    assert all(await outcomes(store, left))


async def test_killed_while_aborting(settings: RadosSettings, store: RadosStore) -> None:
    """Whatever step an abort is killed after, the same abort again is no error, and no commit comes after it."""
    for victim in await victims(settings, "abort"):
        topic = await topic_of(store, victim)

        await store.ingest.abort(topic, victim.reservation)

        with pytest.raises(ReservationExpired):
            await store.ingest.commit(topic, victim.reservation, spread(topic, EVENTS), DIGEST)
        await expire_topic(store, topic)
        assert (await pending(store, topic), await reserved(store, topic)) == ([[]] * SHARDS, 0)


async def test_killed_while_making_a_topic(settings: RadosSettings, store: RadosStore) -> None:
    """A topic that was not made to its end is none, and making it again makes it whole."""
    left = await victims(settings, "create")

    for victim in left[:-2]:
        assert await store.own_topics.find(victim.topic) is None
        made = await store.own_topics.create(own_topic(victim.topic, SHARDS))
        await store.ingest.publish(made, spread(made, EVENTS))
        assert await pending(store, made) == by_shard(made, spread(made, EVENTS))
    for victim in left[-2:]:  # killed after the last write, and not at all
        with pytest.raises(TopicRefused):
            await store.own_topics.create(own_topic(victim.topic, SHARDS))
    assert len(await store.catalog.shards()) == SHARDS * len(left)


async def test_killed_while_removing_a_topic(settings: RadosSettings, store: RadosStore) -> None:
    """A removal that was cut short takes no events and can be gone on with; then the name is free."""
    left = await victims(settings, "remove")

    for victim in left[:-2]:
        topic = await topic_of(store, victim)
        assert topic.closed
        assert topic.first_shard not in await store.catalog.topics()
        with pytest.raises(TopicRefused, match="removed"):
            await store.own_topics.create(own_topic(victim.topic, SHARDS))
        removed = await store.own_topics.remove(topic, discard=True)
        assert removed == Removed(SHARDS, removed.entries)
    for victim in left:
        made = await store.own_topics.create(own_topic(victim.topic, SHARDS))
        assert await pending(store, made) == [[]] * SHARDS


# -------------------------------------------------------------------------------- between decision and commits


async def undone(settings: RadosSettings, topic: Topic, events: Sequence[RoutedEvent], writes: int) -> None:
    """Leave a request that went no further than this many writes; nobody has looked after it yet."""
    async with reached(settings) as another:
        publishing = asyncio.ensure_future(armed(another.ingest.publish(topic, events, ONCE)))
        after_write(another, writes, publishing.cancel)
        with pytest.raises(asyncio.CancelledError):
            await publishing


DECIDED = SHARDS + 2
"""Writes of a publication up to the one that decides it."""


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_decided_by_another_within_the_same_millisecond(
    settings: RadosSettings, store: RadosStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that another of its key was quicker than leaves that one to be brought to its end by others."""
    topic, moment = await store.own_topics.create(own_topic("t", SHARDS)), intent_log.now_ms()
    events = spread(topic, EVENTS)
    monkeypatch.setattr(finisher, "_GRACE_S", 3600.0)  # nobody stores them before both are gone
    monkeypatch.setattr(intent_log, "now_ms", lambda: moment)
    await undone(settings, topic, events, DECIDED)
    async with reached(settings) as late:
        load = late.ingest._intents.load

        async def has_looked_before(name: str) -> None:
            monkeypatch.setattr(late.ingest._intents, "load", load)

        async def complete(name: str, intent: object) -> None:
            raise StoreUnavailable("killed")

        monkeypatch.setattr(late.ingest._intents, "load", has_looked_before)
        monkeypatch.setattr(late.ingest._finisher, "complete", complete)
        with pytest.raises(StoreUnavailable, match="killed"):
            await late.ingest.publish(topic, events, ONCE)
    assert await pending(store, topic) == [[]] * SHARDS

    monkeypatch.setattr(finisher, "_GRACE_S", 0.0)
    await until(lambda: is_settled(store))

    assert await pending(store, topic) == by_shard(topic, events)


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_expiry_after_the_decision(
    settings: RadosSettings, store: RadosStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that are decided are stored once even when their reservations have expired before they were committed."""
    monkeypatch.setattr(finisher, "_GRACE_S", 3600.0)  # nobody else reserves room for them
    topic = await store.own_topics.create(own_topic("t", SHARDS))
    events = spread(topic, EVENTS, "x" * 20_000)  # more than is read of a request at once
    await undone(settings, topic, events, DECIDED)
    await expire_topic(store, topic)

    async with reached(settings) as other:
        answers = await asyncio.gather(
            *(each.ingest.publish(topic, events, ONCE) for each in (store, other, store, other))
        )

    assert set(answers) == {PublishResult(EVENTS, repeated=True)}
    assert await pending(store, topic) == by_shard(topic, events)
    assert await reserved(store, topic) == 0


async def test_more_events_than_an_osd_takes_at_once(settings: RadosSettings, store: RadosStore) -> None:
    """Events of one shard that take several commits are stored once and in order though who began stops."""
    topic = await store.own_topics.create(own_topic("t", 2))
    events = [RoutedEvent(1, b"bkt:k", b"%d" % i) for i in range(1_300)] + [
        RoutedEvent(0, b"bkt:k", b""),
        RoutedEvent(0, b"bkt:l", b"x"),
    ]
    parts = 3 + 1
    await undone(settings, topic, events, parts + 3)
    begun = (await pending(store, topic))[1]
    assert begun == by_shard(topic, events)[1][: len(begun)]

    answer = await store.ingest.publish(topic, events, ONCE)

    assert answer == PublishResult(len(events), repeated=True)
    assert await pending(store, topic) == by_shard(topic, events)
    reservation = await store.ingest.reserve(topic, rooms(events))
    assert await store.ingest.commit(topic, reservation, events, DIGEST) == PublishResult(len(events))
    await store.ingest.publish(topic, events)
    assert await pending(store, topic) == by_shard(topic, events, events, events)
    assert await reserved(store, topic) == 0


async def test_removal_after_the_decision(settings: RadosSettings, store: RadosStore) -> None:
    """Events that were decided for a topic which is removed then never get into a later topic of its name."""
    old = await store.own_topics.create(own_topic("t", SHARDS))
    events = spread(old, EVENTS)
    await undone(settings, old, events, DECIDED)
    await store.own_topics.remove(old, discard=True)
    new = await store.own_topics.create(own_topic("t", SHARDS))
    reservation = await store.ingest.reserve(new, rooms(events))  # its queues' own numbers are those of the old ones

    with pytest.raises(TopicUnknown):
        await store.ingest.publish(old, events, ONCE)

    async def carried_out() -> bool:
        return not (await store._recovery._schedule.entries())[DueAction.COMPLETE]

    await until(carried_out)
    assert (await pending(store, new), await reserved(store, new)) == ([[]] * SHARDS, SHARDS)
    assert await store.ingest.commit(new, reservation, events, DIGEST) == PublishResult(EVENTS)


async def test_full_queue_after_the_decision(
    settings: RadosSettings, store: RadosStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that are decided, but whose room was lost to others, wait for room and are then stored once."""
    monkeypatch.setattr(finisher, "_GRACE_S", 3600.0)  # nobody stores them before their room is lost
    topic = await store.own_topics.create(own_topic("t", SHARDS))
    events = spread(topic, EVENTS, "x" * 200)
    await undone(settings, topic, events, DECIDED)
    await expire_topic(store, topic)
    stats = await store.inspection.stats(topic.shard(1))
    blocker = await store.two_phase.reserve(topic.shard(1), 1, stats.capacity_bytes - 1000)

    with pytest.raises(StoreUnavailable):
        await store.ingest.publish(topic, events, ONCE)
    expected = by_shard(topic, events)
    assert await pending(store, topic) == [expected[0], [], expected[2]]

    await store.two_phase.abort(topic.shard(1), blocker)
    assert await store.ingest.publish(topic, events, ONCE) == PublishResult(EVENTS, repeated=True)
    assert await pending(store, topic) == expected


# ------------------------------------------------------------------------------------------- looking after


def make_due(ceph: Ceph, action: DueAction, name: str) -> None:
    """Schedule a request as due since 1970, by any wall clock."""
    with ceph.client(namespace="remora") as ioctx, rados.WriteOpCtx() as op:
        ioctx.set_omap(op, (f"{action}/{1:015d}/{name}",), (b"",))
        ioctx.operate_write_op(op, "remora.requests")


async def looked_after(store: RadosStore, action: DueAction, *names: str) -> None:
    """Wait until none of these requests is scheduled for the action any more, or only for later."""

    async def is_done() -> bool:
        entries = [each for each in (await store._recovery._schedule.entries())[action] if each.name in names]
        return not any(each.overdue_s >= 0 or action is not DueAction.DELETE for each in entries)

    await until(is_done)


async def test_reservation_that_nobody_commits(store: RadosStore) -> None:
    """A reservation that is too old is ended, and its room comes back, though nobody holds the topic's shards."""
    topic = await store.own_topics.create(own_topic("t", SHARDS))
    reservation = await store.ingest.reserve(topic, rooms(spread(topic, EVENTS)))

    await pass_time(store, RESERVATION_AGE_S)
    await looked_after(store, DueAction.ABORT, reservation)

    assert await reserved(store, topic) == 0
    with pytest.raises(ReservationExpired):
        await store.ingest.commit(topic, reservation, spread(topic, EVENTS), DIGEST)


@pytest.mark.guarantee("topics-of-remoras-own")
@pytest.mark.parametrize("ahead_s", [3600, -3600])
async def test_a_wrong_wall_clock_ends_no_reservation_of_ingest(
    store: RadosStore, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """A reservation by a host whose wall clock is an hour ahead, or behind, is kept for its time, and no longer."""
    topic = await store.own_topics.create(own_topic("t", SHARDS))
    events, right = spread(topic, EVENTS), time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: right() + ahead_s * 10**9)
        fresh, left = [await store.ingest.reserve(topic, rooms(events)) for _ in range(2)]

    await pass_time(store, RESERVATION_AGE_S - 60)
    await store._recovery.look()
    assert await store.ingest.commit(topic, fresh, events, DIGEST) == PublishResult(EVENTS)
    await pass_time(store, 60)
    await looked_after(store, DueAction.ABORT, left)

    assert await pending(store, topic) == by_shard(topic, events)
    assert await reserved(store, topic) == 0


async def test_a_publisher_with_a_wrong_clock_is_recovered(
    settings: RadosSettings, store: RadosStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that a host decided on whose wall clock is an hour ahead are stored by another one without that hour."""
    topic = await store.own_topics.create(own_topic("t", SHARDS))
    events, right = spread(topic, EVENTS), time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: right() + 3600 * 10**9)
        await undone(settings, topic, events, DECIDED)

    await pass_time(store, 10)
    await until(lambda: is_settled(store))

    assert await pending(store, topic) == by_shard(topic, events)


async def test_reservation_of_a_removed_topic(store: RadosStore) -> None:
    """Ending a reservation of a removed topic does not touch one of the same number in a later topic of its name."""
    old = await store.own_topics.create(own_topic("t", SHARDS))
    events = spread(old, EVENTS)
    reservation = await store.ingest.reserve(old, rooms(events))
    await store.own_topics.remove(old, discard=False)
    new = await store.own_topics.create(own_topic("t", SHARDS))
    await pass_time(store, RESERVATION_AGE_S / 2)
    kept = await store.ingest.reserve(new, rooms(events))
    await pass_time(store, RESERVATION_AGE_S / 2)

    await looked_after(store, DueAction.ABORT, reservation)

    assert await reserved(store, new) == SHARDS
    assert await store.ingest.commit(new, kept, events, DIGEST) == PublishResult(EVENTS)


async def test_forgetting(ceph: Ceph, store: RadosStore) -> None:
    """What was done leaves nothing behind when it is forgotten: no request, no mark in a queue, no reminder."""
    topic = await store.own_topics.create(own_topic("t", SHARDS))
    events = spread(topic, EVENTS)
    await store.ingest.publish(topic, events, ONCE)
    await store.ingest.publish(topic, events)
    reservation = await store.ingest.reserve(topic, rooms(events))
    await store.ingest.commit(topic, reservation, events, DIGEST)
    aborted = await store.ingest.reserve(topic, rooms(events))
    await store.ingest.abort(topic, aborted)
    with ceph.client(namespace="remora") as ioctx:
        names = [each.key.removeprefix("remora.request.") for each in ioctx.list_objects() if ".request." in each.key]
        assert len(names) == 4
        assert len(omap_keys(ioctx, topic.shard(1).queue)) == 3

    for name in [*names, "t.never-made"]:
        make_due(ceph, DueAction.DELETE, name)
    make_due(ceph, DueAction.COMPLETE, "t.never-made")
    await pass_time(store, 1000)
    for action in (DueAction.DELETE, DueAction.COMPLETE):
        await looked_after(store, action, *names, "t.never-made")

    with ceph.client(namespace="remora") as ioctx:
        left = {each.key for each in ioctx.list_objects()}
        assert left == {"remora.topics", "remora.requests", *(shard.queue for shard in topic.all_shards())}
        assert [omap_keys(ioctx, shard.queue) for shard in topic.all_shards()] == [[]] * SHARDS
    assert await store.ingest.publish(topic, events, ONCE) == PublishResult(EVENTS)


async def test_damaged_request(ceph: Ceph, store: RadosStore, caplog: pytest.LogCaptureFixture) -> None:
    """A request that cannot be read is told of once, and keeps nobody from looking after the others."""
    topic = await store.own_topics.create(own_topic("t", SHARDS))
    await store.ingest.reserve(topic, rooms(spread(topic, EVENTS)))
    with ceph.client(namespace="remora") as ioctx:
        ioctx.write_full("remora.request.t.damaged", b"\xc1")

    make_due(ceph, DueAction.COMPLETE, "t.damaged")
    await pass_time(store, RESERVATION_AGE_S)

    async def ended() -> bool:
        return await reserved(store, topic) == 0

    await until(ended)
    for _ in range(2):
        await store._recovery.look()
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert "t.damaged" in told[0]


def omap_keys(ioctx: rados.Ioctx, oid: str) -> list[str]:
    with rados.ReadOpCtx() as op:
        found, _ = ioctx.get_omap_vals(op, "", "", 1000)
        ioctx.operate_read_op(op, oid)
        return [key for key, _ in found]


async def test_removal_while_events_come(settings: RadosSettings, store: RadosStore) -> None:
    """Of a topic that is removed while events come every one that was answered is counted, and the others are none."""
    topic = await store.own_topics.create(own_topic("t", SHARDS))
    answered, begun = [0], asyncio.Event()

    async def publisher(mine: RadosStore) -> None:
        while True:
            try:
                answered[0] += (await mine.ingest.publish(topic, spread(topic, SHARDS))).events
            except StoreUnavailable:
                continue
            except (TopicUnknown, TopicClosed):
                return
            begun.set()

    async with reached(settings) as other, asyncio.timeout(PATIENT_S), asyncio.TaskGroup() as tasks:
        for each in (store, other, store, other):
            tasks.create_task(publisher(each))
        await begun.wait()
        removed = await store.own_topics.remove(topic, discard=True)

    assert 0 < answered[0] <= removed.entries
    for shard in topic.all_shards():
        with pytest.raises(ShardGone):
            await store.inspection.stats(shard)


# ------------------------------------------------------------------------------------ a cluster that is away


@pytest.mark.guarantee("topics-of-remoras-own")
@pytest.mark.parametrize("writes", [0, SHARDS, DECIDED])
async def test_frozen_osds(ceph: Ceph, settings: RadosSettings, store: RadosStore, writes: int) -> None:
    """A publication whose OSDs stop answering at any step fails in time, and its repeat stores its events once."""
    topic = await store.own_topics.create(own_topic("t", SHARDS))
    events = spread(topic, EVENTS)
    await store.ingest.publish(topic, events[:1])
    async with reached(replace(settings, op_timeout_s=6.0)) as hasty, AsyncExitStack() as frost:
        after_write(hasty, writes, lambda: frost.enter_context(ceph.frozen(*OSDS)))
        if writes == 0:
            frost.enter_context(ceph.frozen(*OSDS))

        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(PATIENT_S):
                await armed(hasty.ingest.publish(topic, events, ONCE))

    await until(lambda: answers(store, topic))
    answer = await store.ingest.publish(topic, events, ONCE)
    assert answer.events == EVENTS
    assert await pending(store, topic) == by_shard(topic, events[:1], events)


async def answers(store: RadosStore, topic: Topic) -> bool:
    """Whether every queue of a topic can be looked at again."""
    with suppress(StoreUnavailable):
        await pending(store, topic)
        return True
    return False


async def test_full_pool(ceph: Ceph, settings: RadosSettings) -> None:
    """A pool whose quota is used up refuses events and stores none, delivers on, and takes them when there is room."""
    ceph.command(prefix="osd pool create", pool="narrow", pg_num=1)
    try:
        async with reached(replace(settings, pool="narrow")) as store:
            topic = await store.own_topics.create(own_topic("t", SHARDS))
            events = spread(topic, EVENTS)
            ceph.command(prefix="osd pool set-quota", pool="narrow", field="max_objects", val="1")

            async def refused() -> bool:
                try:
                    await store.ingest.publish(topic, events[:1], IdempotencyKey(uuid.uuid4().hex, b""))
                except StoreFull:
                    return True
                except StoreUnavailable:  # decided when there was room, and to be stored when there is again
                    return False
                return False

            await until(refused)
            before = await pending(store, topic), await reserved(store, topic)
            with pytest.raises(StoreFull):
                await store.ingest.publish(topic, events, ONCE)
            with pytest.raises(StoreFull):
                await store.ingest.publish(topic, events[:1])
            with pytest.raises(StoreFull):
                await store.ingest.reserve(topic, rooms(events))
            assert (await pending(store, topic), await reserved(store, topic)) == before
            token = await store.locks.acquire(topic.shard(0), "w", 90)
            assert isinstance(token, LockToken)
            page = await store.queue.read(token, b"", 1000)
            await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))
            assert (await pending(store, topic))[0] == []

            ceph.command(prefix="osd pool set-quota", pool="narrow", field="max_objects", val="0")

            async def taken() -> bool:
                with suppress(StoreFull):
                    return (await store.ingest.publish(topic, events[:1])).events == 1
                return False

            await until(taken)
            await until(lambda: is_settled(store))
            assert (await store.ingest.publish(topic, events, ONCE)).events == EVENTS
            assert [found[-EVENTS // SHARDS :] for found in await pending(store, topic)] == by_shard(topic, events)
    finally:
        ceph.command(prefix="osd pool delete", pool="narrow", pool2="narrow", yes_i_really_really_mean_it=True)


# ---------------------------------------------------------------------------------------------- permissions


async def test_least_permissions(ceph: Ceph, namespace: str) -> None:
    """A user with the permissions that an operator is told to give makes, fills, delivers and removes topics."""
    async with reached(ceph.least) as store:
        topic = await store.own_topics.create(own_topic("t", SHARDS))
        events = spread(topic, EVENTS)
        await store.ingest.publish(topic, events, ONCE)
        reservation = await store.ingest.reserve(topic, rooms(events))
        await store.ingest.commit(topic, reservation, events, DIGEST)
        await store.own_topics.change(replace(topic, closed=True))

        token = await store.locks.acquire(topic.shard(1), "w", 90)
        assert isinstance(token, LockToken)
        page = await store.queue.read(token, b"", 100)
        await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))

        assert page.entries == by_shard(topic, events, events)[1]
        assert set(topic.all_shards()) <= set(await store.catalog.shards())
        assert await store.own_topics.remove(topic, discard=True) == Removed(SHARDS, 2 * EVENTS * 2 // SHARDS)


async def test_without_permission_for_own_topics(
    ceph: Ceph, settings: RadosSettings, gateway: Gateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A user who may not look into remora's namespace serves a radosgw's queues, and is told once what is missing."""
    gateway.make_queue("q")
    keyring = tmp_path / "keyring"
    with user_of(ceph, f"client.{settings.namespace}", settings.namespace, keyring) as user:
        async with reached(replace(settings, name=user, keyring=str(keyring))) as store:
            for _ in range(3):
                assert list(await store.catalog.shards()) == [Shard("q")]
            with pytest.raises(StoreMisconfigured, match="permission"):
                await store.own_topics.create(own_topic("t"))

    remarks = [record for record in caplog.records if "remora's own" in record.getMessage()]
    assert len(remarks) == 1


@contextmanager
def user_of(ceph: Ceph, user: str, namespace: str, keyring: Path) -> Iterator[str]:
    """A user who may use one namespace of the queues' pool, and nothing else."""
    caps = ["mon", "allow r", "osd", f"allow rwx pool=default.rgw.log namespace={namespace}"]
    key_type = {} if ceph.env["release"] == 16 else {"key_type": "aes"}
    made = ceph.command(prefix="auth get-or-create", entity=user, caps=caps, **key_type)
    keyring.write_text(f"[{user}]\n key = {made[0]['key']}\n")
    try:
        yield user
    finally:
        ceph.command(prefix="auth rm", entity=user)
