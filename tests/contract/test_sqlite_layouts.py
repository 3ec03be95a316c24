"""Re-sharding on the embedded store: what is taken, what is held back, what is left, and random schedules."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from devkit.waits import until
from remora.config import SqliteSettings
from remora.model.errors import (
    QueueFull,
    ReservationMismatch,
    ShardGone,
    TopicMoved,
    TopicRefused,
)
from remora.model.ingest import IdempotencyKey, PublishResult
from remora.model.ledger import Tally
from remora.model.record import DeadLetter, Redrive
from remora.model.shard import Shard
from remora.model.topic import LayoutState, Topic, TopicLayout
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.repair.checks import check_directory
from support.layout_machine import LayoutMachine, rooms, routed
from support.sqlite import append, configured, store
from support.stores import deliver_all, expire, held, own_topic

__all__ = ["configured", "store"]


async def changed(store: SqliteStore, topic: Topic, shards: int) -> Topic:
    """The topic after a change."""
    return await store.own_topics.reshard(topic, shards)


# ------------------------------------------------------------------------------------------- the change


async def test_a_topic_gets_other_shards(store: SqliteStore) -> None:
    """After a change events go to the queues of the next generation; the former ones are still there with what they
    have, and the catalogue shows both."""
    old = await store.own_topics.create(own_topic("t", 3))
    await store.ingest.publish(old, routed(old, *range(30)))

    new = await changed(store, old, 5)
    await store.ingest.publish(new, routed(new, *range(30)))

    assert (new.id, new.shards, new.generation) == (old.id, 5, 1)
    assert new.former == (TopicLayout(0, 3, LayoutState.SHUT),)
    assert [each.queue for each in new.all_shards()] == ["t", "t.1", "t.2", "t@1", "t@1.1", "t@1.2", "t@1.3", "t@1.4"]
    assert set(await store.catalog.shards()) == set(new.all_shards())
    assert (await store.catalog.topics())[old.first_shard] == new == await store.own_topics.find("t")
    counts = [(await store.inspection.stats(each)).entries for each in new.all_shards()]
    assert (sum(counts[:3]), sum(counts[3:])) == (30, 30)


async def test_the_same_change_again_is_none(store: SqliteStore) -> None:
    """A repeat of a change, whose first answer was lost, finds it done."""
    old = await store.own_topics.create(own_topic("t", 3))
    await store.ingest.publish(old, routed(old, *range(30)))
    new = await changed(store, old, 5)

    assert await changed(store, old, 5) == new
    assert await changed(store, new, 5) == new


async def test_an_empty_layout_goes_at_once(store: SqliteStore) -> None:
    """Where nothing waits a change leaves no former layout, however often the topic is changed."""
    topic = await store.own_topics.create(own_topic("t", 1))
    for shards in (11, 64, 4):
        topic = await changed(store, topic, shards)

    assert (topic.generation, topic.shards, topic.former) == (3, 4, ())
    assert [each.queue for each in await store.catalog.shards()] == ["t@3", "t@3.1", "t@3.2", "t@3.3"]


async def test_a_change_while_a_former_layout_has_entries(store: SqliteStore) -> None:
    """It is refused, with what is left where; when that is delivered it works."""
    old = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(old, routed(old, *range(9)))
    new = await changed(store, old, 3)

    with pytest.raises(TopicRefused, match="generation 0 still holds 9 entries of 2 shards"):
        await changed(store, new, 4)
    for shard in old.all_shards():
        await deliver_all(store, shard)

    assert (await changed(store, new, 4)).generation == 2


async def test_numbers_of_shards_that_there_cannot_be(store: SqliteStore) -> None:
    """A topic has 1 to 1024 shards also by a change."""
    topic = await store.own_topics.create(own_topic("t", 2))

    for shards in (0, 1025):
        with pytest.raises(TopicRefused, match="1 to 1024 shards"):
            await changed(store, topic, shards)


async def test_a_closed_topic_stays_closed(store: SqliteStore) -> None:
    """Whether a topic takes events is the topic's, and no layout's."""
    topic = await store.own_topics.create(own_topic("t", 2))
    await store.own_topics.change(replace(topic, closed=True))

    assert (await changed(store, topic, 3)).closed


# --------------------------------------------------------------------------------------------- writers


async def test_a_writer_with_an_old_view_is_told_that_the_topic_moved(store: SqliteStore) -> None:
    """Whoever writes by the former layout is refused whole, and nothing of it lands anywhere."""
    old = await store.own_topics.create(own_topic("t", 3))
    await store.ingest.publish(old, routed(old, 1))
    new = await changed(store, old, 5)
    again = [Redrive(letter_of(old.shard(0)), b"x")]
    reservation = await store.ingest.reserve(new, rooms(routed(new, *range(9))))

    for refused in (
        store.ingest.commit(old, reservation, routed(old, *range(9)), b"e" * 16),
        store.ingest.publish(old, routed(old, *range(9))),
        store.ingest.reserve(old, rooms(routed(old, *range(9)))),
        store.letters.redrive(old.shard(0), old, again),
        append(store, old.shard(0), b"x"),
    ):
        with pytest.raises(TopicMoved):
            await refused

    assert sum([(await store.inspection.stats(each)).entries for each in new.all_shards()]) == 1


async def test_a_repeat_after_a_change_is_recognised(store: SqliteStore) -> None:
    """What was stored under an idempotency key, or by a reservation, before the change is not stored again after it."""
    old = await store.own_topics.create(own_topic("t", 3))
    once, digest = IdempotencyKey("k", b"d" * 16), b"e" * 16
    await store.ingest.publish(old, routed(old, *range(9)), once)
    reservation = await store.ingest.reserve(old, rooms(routed(old, 20, 21)))
    await store.ingest.commit(old, reservation, routed(old, 20, 21), digest)

    new = await changed(store, old, 5)

    assert await store.ingest.publish(new, routed(new, *range(9)), once) == PublishResult(9, repeated=True)
    committed = await store.ingest.commit(new, reservation, routed(new, 20, 21), digest)
    assert committed == PublishResult(2, repeated=True)


async def test_a_reservation_outlives_a_change(store: SqliteStore) -> None:
    """Room that was reserved before a change is committed after it, in the new layout, and is given back in the old."""
    old = await store.own_topics.create(own_topic("t", 3))
    await store.ingest.publish(old, routed(old, *range(20)))
    events = routed(old, *range(9))
    reservation, given_up = [await store.ingest.reserve(old, rooms(events)) for _ in range(2)]
    new = await changed(store, old, 5)

    with pytest.raises(TopicMoved):
        await store.ingest.commit(old, reservation, events, b"d")
    with pytest.raises(ReservationMismatch):
        await store.ingest.commit(new, reservation, routed(new, *range(1, 10)), b"d")
    assert await store.ingest.commit(new, reservation, routed(new, *range(9)), b"d") == PublishResult(9)
    await store.ingest.abort(new, given_up)

    stats = [await store.inspection.stats(each) for each in new.all_shards()]
    assert sum(each.entries for each in stats[3:]) == 9
    assert [(each.reservations, each.reserved_bytes) for each in stats] == [(0, 0)] * 8


async def test_a_commit_never_fails_for_want_of_room_in_the_new_layout(configured: SqliteSettings) -> None:
    """What was reserved in three queues is stored in one, though that is more than the one may hold."""
    async with SqliteStore(replace(configured, queue_bytes=65_536)) as store:
        old = await store.own_topics.create(own_topic("t", 3))
        events = [each._replace(payload=b"x" * 1500) for each in routed(old, *range(90))]
        reservation = await store.ingest.reserve(old, rooms(events))
        new = await changed(store, old, 1)
        moved = [each._replace(shard=0) for each in events]

        with pytest.raises(QueueFull):
            await store.ingest.publish(new, moved)
        assert await store.ingest.commit(new, reservation, moved, b"d") == PublishResult(90)


async def test_a_reservation_outlives_its_layout(store: SqliteStore) -> None:
    """Room in a layout that has gone by the time of the commit, or of the end of the room, harms neither."""
    old = await store.own_topics.create(own_topic("t", 3))
    events = routed(old, *range(9))
    kept, given_up, late = [await store.ingest.reserve(old, rooms(events)) for _ in range(3)]
    new = await changed(store, old, 5)
    assert not new.former

    assert await store.ingest.commit(new, kept, routed(new, *range(9)), b"d") == PublishResult(9)
    await store.ingest.abort(new, given_up)
    token = await held(store, new.shard(0))
    await store.ingest.reserve(new, rooms(routed(new, *range(9))))
    assert await store.queue.expire_all([token], 0.0) == [None]

    stats = [await store.inspection.stats(each) for each in new.all_shards()]
    assert [(each.reservations, each.reserved_bytes) for each in stats] == [(0, 0)] * 5
    assert late


async def test_a_reservation_that_has_outlived_its_layout_expires(store: SqliteStore) -> None:
    """Though no queue has room for it any more, the topic's queues have it expire, and nothing of it is kept open."""
    topic = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.reserve(topic, rooms(routed(topic, *range(4))))
    moved = await changed(store, topic, 3)
    assert not moved.former

    await expire(store, await held(store, moved.shard(0)), 0.0)

    look = "SELECT state FROM reservations"
    assert await store._files.file_of("t").read(lambda found: found.execute(look).fetchall()) == [("expired",)]


async def test_numbers_of_a_sequence_go_on(store: SqliteStore) -> None:
    """A topic that numbers its events goes on with the next number, and its room has the numbers' bytes."""
    old = await store.own_topics.create(replace(own_topic("t", 3), is_sequenced=True))
    reservation = await store.ingest.reserve(old, rooms(routed(old, *range(5))))
    await store.ingest.publish(old, routed(old, *range(7)))
    new = await changed(store, old, 2)
    await store.ingest.commit(new, reservation, routed(new, *range(5)), b"d")

    assert (await store.own_topics.sequence(new)).tail == 12
    assert (await store.own_topics.sequence(new)).delivered == 0
    for shard in new.all_shards():
        await deliver_all(store, shard)
    assert (await store.own_topics.sequence(new)).delivered == 12


# ---------------------------------------------------------------------------------------------- owners


async def test_a_new_shard_is_held_back_until_its_parents_are_empty(store: SqliteStore) -> None:
    """Its owner is shown nothing, and why, while an entry of a parent is there; of other shards it waits for none."""
    old = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(old, routed(old, *range(30)))
    new = await changed(store, old, 4)
    await store.ingest.publish(new, routed(new, *range(30)))
    waiting = (await store.inspection.stats(old.shard(0))).entries

    page = await store.queue.read(await held(store, new.shard(0)), b"", 100)
    assert (page.entries, page.held_back) == ([], f"waits for t of generation 0: {waiting} entries")
    await deliver_all(store, old.shard(0))

    assert await deliver_all(store, new.shard(0))
    assert await deliver_all(store, new.shard(2))
    assert not await deliver_all(store, new.shard(1))
    assert not await deliver_all(store, new.shard(3))


async def test_the_end_of_a_parent_rings_for_its_children(configured: SqliteSettings, store: SqliteStore) -> None:
    """The removal that empties the last parent notifies of the children, in this process and in another one."""
    old = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(old, routed(old, *range(30)))
    new = await changed(store, old, 4)
    await store.ingest.publish(new, routed(new, *range(30)))
    async with SqliteStore(configured) as other:
        told: list[set[Shard]] = [set(), set()]

        async def listen(who: int, opened: SqliteStore) -> None:
            while True:
                told[who] |= set(await opened.arrivals.wait())

        async with asyncio.TaskGroup() as tasks:
            listeners = [tasks.create_task(listen(i, each)) for i, each in enumerate((store, other))]
            await deliver_all(store, old.shard(0))
            await until(lambda: all({new.shard(0), new.shard(2)} <= each for each in told))
            assert not any({new.shard(1), new.shard(3)} & each for each in told[1:])
            for each in listeners:
                each.cancel()


async def test_the_first_page_of_a_shard_tells_where_its_parents_ended(store: SqliteStore) -> None:
    """By name, incarnation and end of each, also when they are gone; of more than 64 parents by their generation."""
    old = await store.own_topics.create(own_topic("t", 3))
    await store.ingest.publish(old, routed(old, *range(30)))
    ends = []
    for shard in old.all_shards():
        token = await held(store, shard)
        ends.append(f"{shard}={token.incarnation}:0/{(await store.inspection.stats(shard)).entries}")
    new = await changed(store, old, 2)
    await store.ingest.publish(new, routed(new, *range(9)))
    for shard in old.all_shards():
        await deliver_all(store, shard)

    before = await store.queue.read(await held(store, new.shard(0)), b"", 1)
    assert await store.own_topics.forget_former(new)
    after = await store.queue.read(await held(store, new.shard(1)), b"", 100)

    assert before.after.decode() == after.after.decode() == ",".join(ends)
    assert (await store.queue.read(await held(store, new.shard(1)), after.positions[1], 100)).after == b""
    many = await changed(store, await store.own_topics.create(own_topic("many", 65)), 1)
    await store.ingest.publish(many, routed(many, 1))
    assert (await store.queue.read(await held(store, many.shard(0)), b"", 1)).after == b"generation=0"


async def test_a_former_layout_is_forgotten_when_it_is_empty(store: SqliteStore) -> None:
    """Not before: then its queues go, with their locks, and their final ledgers are kept; a repeat changes nothing."""
    old = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(old, routed(old, *range(30)))
    new = await changed(store, old, 4)
    assert not await store.own_topics.forget_former(new)
    token = await held(store, old.shard(0))
    counts = [len(await deliver_all(store, shard)) for shard in old.all_shards()]

    assert await store.own_topics.forget_former(new)
    assert not await store.own_topics.forget_former(new)

    found = await store.own_topics.former_queues(new)
    assert [(each.name, each.generation, each.committed, each.removed.delivered) for each in found] == [
        ("t", 0, counts[0], counts[0]), ("t.1", 0, counts[1], counts[1]),
    ]  # fmt: skip
    assert [each.end for each in found] == [f"0/{count}" for count in counts]
    with pytest.raises(ShardGone):
        await store.queue.read(token, b"", 1)
    topic = await store.own_topics.find("t")
    assert topic is not None
    assert topic.former == ()
    assert list(await store.catalog.shards()) == sorted(new.open_shards(), key=str)


async def test_a_topic_that_is_being_changed_is_removed_whole(configured: SqliteSettings, store: SqliteStore) -> None:
    """Its removal counts what waits in both layouts, and leaves nothing of either."""
    old = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(old, routed(old, *range(8)))
    new = await changed(store, old, 4)
    await store.ingest.publish(new, routed(new, *range(5)))

    assert (await store.own_topics.remove(new, discard=True)).entries == 13
    assert not await store.catalog.shards()
    assert not problems(configured)


def letter_of(shard: Shard) -> DeadLetter:
    return DeadLetter(shard.queue, "i", "0/0", "0/1", "refused", "why", 1, 0.0, 0.0, b"x")


async def test_dead_letters_of_a_former_layout_go_to_the_open_one(store: SqliteStore) -> None:
    """A letter keeps its queue's name, and is re-driven into a shard that takes events."""
    old = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(old, routed(old, *range(8)))
    token = await held(store, old.shard(0))
    page = await store.queue.read(token, b"", 1)
    letter = replace(letter_of(old.shard(0)), incarnation=token.incarnation)
    await store.letters.store(token, letter)
    await store.queue.remove(token, page.positions[1], 1, Tally(dead_lettered=1))
    new = await changed(store, old, 4)

    assert await store.letters.still_standing([letter]) == []
    assert await store.letters.redrive(new.shard(3), new, [Redrive(letter, b"again")]) == 1
    assert (await store.inspection.stats(new.shard(3))).entries == 1


# ------------------------------------------------------------------------------------------- schedules


def problems(configured: SqliteSettings) -> list[object]:
    """What a check of the files finds wrong."""
    return [each for report in check_directory(Path(configured.directory)) for each in report.problems]


@pytest.mark.guarantee("order-per-object")
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 104), marks=pytest.mark.full("100 schedules more"))])
async def test_no_schedule_reorders_a_key(configured: SqliteSettings, store: SqliteStore, seeds: range) -> None:
    """Whatever writers, owners and changes do in whatever order, each key's events are shown in the order of their
    commits and none is lost; the books are right over all generations, and a check of the files finds nothing."""
    for seed in seeds:
        topic = await store.own_topics.create(own_topic(f"t{seed}", 3))
        machine = LayoutMachine(store, topic, Random(seed))
        await machine.run(150)

        assert machine.generations
        assert dict(machine.sent) == {key: list(range(count)) for key, count in machine.committed.items() if count}
        topic = await machine.now()
        gone = sum(each.removed.delivered for each in await store.own_topics.former_queues(topic))
        there = sum([(await store.ledger.balance(each)).removed.delivered for each in topic.all_shards()])
        assert gone + there == sum(machine.committed.values())
        assert not problems(configured)
