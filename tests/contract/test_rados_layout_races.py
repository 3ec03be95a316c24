"""Re-sharding on RADOS while processes are killed, or stand still, between any two writes: of a change, and of requests
that come late into a layout that is sealed, shut or gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from devkit.clusters.ceph import reached
from devkit.entries.entries import raw_entry
from devkit.waits import PATIENT_S
from remora.codec.shard_hash import shard as shard_number
from remora.config import RadosSettings
from remora.model.errors import ReservationExpired, ShardGone, StoreUnavailable, TopicMoved
from remora.model.ingest import IdempotencyKey, RoutedEvent
from remora.model.ledger import Tally
from remora.model.record import DeadLetter, Redrive
from remora.model.shard import LockToken, Shard
from remora.model.topic import Topic
from remora.storage.librados import ReadOp
from remora.storage.rados import RadosStore
from remora.storage.rados.cluster.refusals import MismatchError
from remora.storage.rados.ingest import finisher
from remora.storage.rados.ingest.schedule import DueAction
from support.gone_layouts import cases, deliver, give_up_reservations, pass_by
from support.rados_victim import MORE_SHARDS, SHARDS, armed, freeze_before, rooms, victims
from support.stores import QUIET_S, own_topic

pytestmark = pytest.mark.ceph

KEYS = range(12)
ONCE = IdempotencyKey("late", b"digest")


@pytest.fixture
async def store(settings: RadosSettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RadosStore]:
    """An open store, which is not the one that anything happens to. It leaves requests to those that work on them."""
    monkeypatch.setattr(finisher, "_GRACE_S", 3600.0)
    async with reached(settings) as store:
        yield store


def events(topic: Topic, keys: Sequence[int] = KEYS) -> list[RoutedEvent]:
    """An event of each key, where the topic has it."""
    return [
        RoutedEvent(shard_number(b"bkt:k%d" % key, topic.shards), b"bkt:k%d" % key, raw_entry(f"k{key}", key))
        for key in keys
    ]


async def now(store: RadosStore, name: str) -> Topic:
    found = await store.own_topics.find(name)
    assert found is not None
    return found


# ------------------------------------------------------------------------------------------- the change


@pytest.mark.guarantee("topics-of-remoras-own", "no-loss")
async def test_killed_while_resharding(settings: RadosSettings, store: RadosStore) -> None:
    """Whatever write of a change its process is killed after, another one finishes it, and nothing is lost: all events
    are in the former layout, which is delivered first."""
    left = await victims(settings, "reshard")

    assert len(left) > 2 * MORE_SHARDS + SHARDS
    for victim in left:
        topic = await now(store, victim.topic)
        if topic.coming is not None:
            await store.own_topics.forget_former(topic)
        moved = await store.own_topics.reshard(await now(store, victim.topic), MORE_SHARDS)
        assert (moved.generation, moved.shards, moved.coming) == (1, MORE_SHARDS, None)
        await store.ingest.publish(moved, events(moved))
        first = await deliver(store, moved.former_shards())
        second = await deliver(store, moved.open_shards())
        assert (len(first), len(second)) == (30, len(KEYS))
        assert await store.own_topics.forget_former(moved)
        assert [each.queue for each in (await now(store, victim.topic)).all_shards()] == [
            each.queue for each in moved.open_shards()
        ]


async def test_a_change_beside_a_removal_that_is_given_up(store: RadosStore) -> None:
    """A change that meets a queue fenced by a removal opens no layout beside it: when the removal is given up that
    queue takes events again, which must come before those of the next layout. Repeated, the change seals it."""
    old = await store.own_topics.create(own_topic("t", SHARDS))
    await store.own_topics._queues.fence(old.shard(1), old.id)

    with pytest.raises(StoreUnavailable, match=r"sealing t\.1: its topic is being removed"):
        await store.own_topics.reshard(old, MORE_SHARDS)
    assert (await now(store, "t")).generation == 0
    await store.own_topics._queues.unfence(old.shard(1), old.id)

    new = await store.own_topics.reshard(old, MORE_SHARDS)
    assert new.generation == 1
    with pytest.raises(TopicMoved):
        await store.ingest.publish(old, events(old))


@pytest.mark.guarantee("topics-of-remoras-own", "no-loss")
@pytest.mark.parametrize("number", cases([1, 2, 4, 7, 9, 12, 14, 17, 18, 20, 22, 24], at_the_gate=[4, 18]))
async def test_a_change_that_stands_still(settings: RadosSettings, store: RadosStore, number: int) -> None:
    """A process stands still before any write of a change, and another one finishes it and makes a further change; the
    late one makes no queue that events could be lost in, seals none that takes events, and does what it was asked."""
    old = await store.own_topics.create(own_topic("t", SHARDS))
    await store.ingest.publish(old, events(old))
    async with reached(settings) as late:
        frozen = freeze_before(late, number)
        changing = asyncio.ensure_future(armed(late.own_topics.reshard(old, MORE_SHARDS)))
        changing.add_done_callback(lambda _: frozen.is_there.set())
        await asyncio.wait_for(frozen.is_there.wait(), PATIENT_S)
        found = await pass_by(store, await now(store, "t"), MORE_SHARDS)
        found += await pass_by(store, await now(store, "t"), 2)
        before = await now(store, "t")
        frozen.thaw.set()
        done = await asyncio.wait_for(changing, PATIENT_S)

    assert isinstance(done, Topic)
    # It had opened its layout before, and answers with that one, or opens it now.
    assert (done.generation, done.shards) in ((1, MORE_SHARDS), (3, MORE_SHARDS))
    await store.own_topics.forget_former(await now(store, "t"))
    topic = await now(store, "t")
    await store.ingest.publish(topic, events(topic))
    found += await deliver(store, topic.all_shards())
    assert Counter(found) == Counter({each.payload: 2 for each in events(topic)})
    assert (before.generation, before.former) == (2, ())
    assert topic.generation == max(2, done.generation)
    for gone in [replace(topic, generation=0, shards=SHARDS), replace(topic, generation=1, shards=MORE_SHARDS)]:
        for shard in gone.open_shards():
            with pytest.raises((MismatchError, ShardGone)):
                await store.own_topics._queues.reserve(shard, topic.id, [1], late=True)


# --------------------------------------------------------------------------------------------- requests


@pytest.mark.guarantee("no-loss", "duplicates", "topics-of-remoras-own")
@pytest.mark.parametrize("number", cases(range(1, 12), at_the_gate=[2, 7]))
@pytest.mark.parametrize("changes", [pytest.param(1, marks=pytest.mark.full("two changes hold more")), 2])
async def test_a_publisher_that_stands_still(
    settings: RadosSettings, store: RadosStore, number: int, changes: int
) -> None:
    """A request stands still before any of its writes while its reservations end, and its layout is sealed, delivered,
    shut and gone, once or twice. Then it is stored whole, or told to move; the repeat under its key stores it once."""
    old = await store.own_topics.create(own_topic("t", SHARDS))
    async with reached(settings) as late:
        frozen = freeze_before(late, number)
        publishing = asyncio.ensure_future(armed(late.ingest.publish(old, events(old), ONCE)))
        publishing.add_done_callback(lambda _: frozen.is_there.set())
        await asyncio.wait_for(frozen.is_there.wait(), PATIENT_S)
        found: list[bytes] = []
        for shards in (MORE_SHARDS, 2)[:changes]:
            found += await pass_by(store, await now(store, "t"), shards)
        frozen.thaw.set()
        (answer,) = await asyncio.gather(publishing, return_exceptions=True)
        assert not isinstance(answer, BaseException) or isinstance(answer, (TopicMoved, StoreUnavailable))

    topic = await now(store, "t")
    await store.ingest.publish(topic, events(topic), ONCE)

    for shard in topic.open_shards():
        for entry in [entry async for _, entry in store.inspection.dump(shard)]:
            assert entry in [each.payload for each in events(topic) if topic.shard(each.shard) == shard]
    found += await deliver(store, topic.all_shards())
    assert Counter(found) == Counter([each.payload for each in events(topic)])


@pytest.mark.guarantee("no-loss", "duplicates", "topics-of-remoras-own")
@pytest.mark.parametrize("number", cases(range(1, 8), at_the_gate=[4]))
async def test_a_commit_that_stands_still(settings: RadosSettings, store: RadosStore, number: int) -> None:
    """The commit of a reservation stands still before any write while its layout goes; then its events are stored once
    or it is told that the reservation has expired. The same commit again says the same."""
    old = await store.own_topics.create(own_topic("t", SHARDS))
    reservation = await store.ingest.reserve(old, rooms(events(old)))
    async with reached(settings) as late:
        frozen = freeze_before(late, number)
        committing = asyncio.ensure_future(armed(late.ingest.commit(old, reservation, events(old), b"d")))
        committing.add_done_callback(lambda _: frozen.is_there.set())
        await asyncio.wait_for(frozen.is_there.wait(), PATIENT_S)
        found = await pass_by(store, await now(store, "t"), MORE_SHARDS)
        frozen.thaw.set()
        (answer,) = await asyncio.gather(committing, return_exceptions=True)

    topic = await now(store, "t")
    try:
        await store.ingest.commit(topic, reservation, events(topic), b"d")
        expected = Counter([each.payload for each in events(topic)])
    except ReservationExpired:
        expected = Counter()
        assert isinstance(answer, (ReservationExpired, StoreUnavailable, TopicMoved))
    found += await deliver(store, topic.all_shards())
    assert Counter(found) == expected


async def test_the_marks_of_a_request_that_moved_go_with_it(settings: RadosSettings, store: RadosStore) -> None:
    """What tells that a request is stored is deleted with the request, in the layout that it went to as well."""
    old = await store.own_topics.create(own_topic("t", SHARDS))
    async with reached(settings) as late:
        frozen = freeze_before(late, SHARDS + 3)
        publishing = asyncio.ensure_future(armed(late.ingest.publish(old, events(old), ONCE)))
        await asyncio.wait_for(frozen.is_there.wait(), PATIENT_S)
        await pass_by(store, old, 2)
        frozen.thaw.set()
        await publishing
    topic = await now(store, "t")
    assert sum([await _marks(store, shard) for shard in topic.open_shards()])

    kept = (await store._recovery._schedule.entries())[DueAction.DELETE]
    await store._recovery._finisher.delete(kept)

    assert not sum([await _marks(store, shard) for shard in topic.open_shards()])


async def _marks(store: RadosStore, shard: Shard) -> int:
    operation = ReadOp().assert_exists()
    found = operation.omap_page("", "remora.done.", 100)
    await store._connection.run(operation, shard.queue, "looking", locator=store.queue._locator(shard))
    return len(found.values)


# ---------------------------------------------------------------------------------------- dead letters


async def a_letter(store: RadosStore, topic: Topic) -> DeadLetter:
    """A stored letter whose entry has left its queue."""
    shard = topic.shard(0)
    token = await store.locks.acquire(shard, "w", QUIET_S)
    assert isinstance(token, LockToken)
    await store.two_phase.commit(shard, await store.two_phase.reserve(shard, 1, 900), [raw_entry("k", 1)])
    page = await store.queue.read(token, b"", 1)
    place = [each.decode() for each in page.positions]
    letter = DeadLetter(shard.queue, token.incarnation, place[0], place[1], "refused", "why", 1, 1.0, 1.0, b"x")
    await store.letters.store(token, letter)
    await store.queue.remove(token, page.positions[1], 1, Tally(dead_lettered=1))
    await store.locks.release(token)
    return letter


async def test_two_forget_a_layout_at_once(settings: RadosSettings, store: RadosStore) -> None:
    """A process that comes to the re-drives of a former queue when another one has removed it finds them finished, and
    the command that it works for does what it was asked."""
    old = await store.own_topics.create(own_topic("t", SHARDS))
    blocker = await store.ingest.reserve(old, rooms(events(old)))
    moved = await store.own_topics.reshard(old, MORE_SHARDS)
    await store.ingest.abort(moved, blocker)
    finish, was_there = store.letters.finish_redrives, list[bool]()
    async with reached(settings) as other:

        async def late(shard: Shard) -> None:
            was_there.append(await other.own_topics.forget_former(moved))
            await finish(shard)

        store.letters.finish_redrives = late  # type: ignore[method-assign]
        done = await store.own_topics.reshard(moved, 2)

    assert any(was_there)
    assert done.shards == 2


@pytest.mark.guarantee("duplicates")
@pytest.mark.parametrize("number", cases(range(1, 4), at_the_gate=[2]))
async def test_a_redrive_that_stands_still(settings: RadosSettings, store: RadosStore, number: int) -> None:
    """A re-drive into a layout that is sealed meanwhile and another one into the open layout commit a letter once."""
    old = await store.own_topics.create(own_topic("t", 1))
    again = [Redrive(await a_letter(store, old), b"again")]
    async with reached(settings) as late:
        frozen = freeze_before(late, number)
        redriving = asyncio.ensure_future(armed(late.letters.redrive(old.shard(0), old, again)))
        redriving.add_done_callback(lambda _: frozen.is_there.set())
        await asyncio.wait_for(frozen.is_there.wait(), PATIENT_S)
        new = await store.own_topics.reshard(old, 2)
        if (await store.inspection.stats(old.shard(0))).reservations if new.former else 0:
            with pytest.raises(StoreUnavailable, match="is being re-sharded: t has open reservations"):
                await store.letters.redrive(new.shard(1), new, again)
            await give_up_reservations(store, new)
        await store.letters.redrive(new.shard(1), new, again)
        frozen.thaw.set()
        await asyncio.gather(redriving, return_exceptions=True)

    topic = await now(store, "t")
    assert (await deliver(store, topic.all_shards())).count(b"again") == 1
    assert not [each async for each in store.letters.stored("t")]
