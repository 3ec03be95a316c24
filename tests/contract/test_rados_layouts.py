"""Re-sharding on RADOS: what is taken, what is held back, what is left, what a killed process leaves, and schedules."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from devkit.clusters.ceph import reached
from devkit.entries.entries import raw_entry
from devkit.waits import until
from engine.fakes import FakeEndpoint
from engine.runs import a_worker, running
from remora.codec.shard_hash import shard as shard_number
from remora.config import RadosSettings
from remora.model.errors import (
    QueueFull,
    ReservationExpired,
    ReservationMismatch,
    ShardGone,
    TopicClosed,
    TopicMoved,
    TopicRefused,
)
from remora.model.ingest import RESERVATION_AGE_S, IdempotencyKey, PublishResult, RoutedEvent
from remora.model.ledger import Tally
from remora.model.record import DeadLetter, Page
from remora.model.shard import Shard
from remora.model.topic import LayoutState, Topic, TopicLayout
from remora.policy.status.condition import State
from remora.storage.rados import RadosStore
from support.gone_layouts import pass_time
from support.layout_machine import LayoutMachine, rooms, routed
from support.stores import deliver_all, held, own_topic

pytestmark = pytest.mark.ceph

DIGEST = b"e" * 16


@pytest.fixture
async def store(settings: RadosSettings) -> AsyncIterator[RadosStore]:
    """An open store."""
    async with reached(settings) as store:
        yield store


async def read(store: RadosStore, shard: Shard) -> Page:
    return await store.queue.read(await held(store, shard), b"", 1024)


async def let_go(store: RadosStore, shard: Shard) -> list[bytes]:
    """What is delivered of a shard when nothing holds it back any longer."""

    async def is_let_go() -> bool:
        return not (await read(store, shard)).held_back

    await until(is_let_go)
    return await deliver_all(store, shard)


async def now(store: RadosStore, name: str = "t") -> Topic:
    found = await store.own_topics.find(name)
    assert found is not None
    return found


async def entries(store: RadosStore, shards: Sequence[Shard]) -> list[int]:
    return [(await store.inspection.stats(each, exact=True)).entries for each in shards]


# ------------------------------------------------------------------------------------------- the change


async def test_a_topic_gets_other_shards(store: RadosStore) -> None:
    """After a change events go to the queues of the next generation; the former ones are still there with what they
    have, and the catalogue shows both."""
    old = await store.own_topics.create(own_topic("t", 3))
    await store.ingest.publish(old, routed(old, *range(30)))

    new = await store.own_topics.reshard(old, 5)
    await store.ingest.publish(new, routed(new, *range(30)))

    assert (new.id, new.shards, new.generation, new.coming) == (old.id, 5, 1, None)
    assert new.former == (TopicLayout(0, 3, LayoutState.SHUT),)
    assert [each.queue for each in new.all_shards()] == ["t", "t.1", "t.2", "t@1", "t@1.1", "t@1.2", "t@1.3", "t@1.4"]
    assert set(await store.catalog.shards()) == set(new.all_shards())
    assert (await store.catalog.topics())[old.first_shard] == new == await now(store)
    counts = await entries(store, new.all_shards())
    assert (sum(counts[:3]), sum(counts[3:])) == (30, 30)
    assert await store.own_topics.reshard(old, 5) == new


async def test_an_empty_layout_goes_at_once(store: RadosStore) -> None:
    """Where nothing waits a change leaves no former layout, however often the topic is changed."""
    topic = await store.own_topics.create(own_topic("t", 1))
    for shards in (11, 64, 4):
        topic = await store.own_topics.reshard(topic, shards)

    assert (topic.generation, topic.shards, topic.former) == (3, 4, ())
    assert [each.queue for each in await store.catalog.shards()] == ["t@3", "t@3.1", "t@3.2", "t@3.3"]
    assert len(await store.own_topics.former_queues(topic)) == 1 + 11 + 64
    assert await store.own_topics.reshard(topic, 4) == topic
    with pytest.raises(TopicRefused, match="1 to 1024 shards"):
        await store.own_topics.reshard(topic, 0)


async def test_queues_that_nobody_has_held_have_an_end(store: RadosStore) -> None:
    """The first page of a shard says where its parents ended, also where these had no event and no owner."""
    topic = await store.own_topics.reshard(await store.own_topics.create(own_topic("t", 2)), 4)
    await store.ingest.publish(topic, routed(topic, *range(30)))

    formers = {each.name: each for each in await store.own_topics.former_queues(topic)}
    for number, shard in enumerate(topic.open_shards()):
        parent = formers["t.1" if number % 2 else "t"]
        assert parent.incarnation
        assert (await read(store, shard)).after == f"{parent.name}={parent.incarnation}:{parent.end}".encode()


async def test_a_change_while_a_former_layout_has_entries(store: RadosStore) -> None:
    """It is refused, with what is left where, also for open reservations; when all is delivered it works."""
    old = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(old, routed(old, *range(9)))
    reservation = await store.ingest.reserve(old, rooms(routed(old, 20)))
    new = await store.own_topics.reshard(old, 3)
    assert [each.state for each in new.former] == [LayoutState.SEALED]

    with pytest.raises(TopicRefused, match=r"generation 0 still holds (9|about \d+) entr(y|ies) of 2 shards"):
        await store.own_topics.reshard(new, 4)
    for shard in old.all_shards():
        await deliver_all(store, shard)
    with pytest.raises(TopicRefused, match="1 reservation is open in generation 0"):
        await store.own_topics.reshard(new, 4)
    await store.ingest.abort(new, reservation)

    assert (await store.own_topics.reshard(new, 4)).generation == 2


async def test_a_closed_topic_stays_closed(store: RadosStore) -> None:
    """Whether a topic takes events is the topic's, and no layout's; a sealed queue is never opened with the others."""
    old = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(old, routed(old, *range(9)))
    await store.own_topics.change(replace(old, closed=True))

    new = await store.own_topics.reshard(old, 3)

    assert new.closed
    with pytest.raises(TopicClosed):
        await store.ingest.publish(new, routed(new, 1))
    await store.own_topics.change(replace(new, closed=False))
    await store.ingest.publish(new, routed(new, 1))
    with pytest.raises(TopicMoved):
        await store.ingest.publish(old, routed(old, 1))


async def test_what_older_remoras_read(store: RadosStore) -> None:
    """A topic that is or was re-sharded has a state that those of one layout cannot read, also while it is removed."""
    topic = await store.own_topics.create(own_topic("t", 1))
    plain = await store.own_topics._registry.find("t")
    await store.own_topics.reshard(topic, 2)
    found = await store.own_topics._registry.find("t")
    assert plain is not None
    assert found is not None

    assert b"generation" not in plain.raw
    assert (plain.stored.state, found.stored.state) == ("ready", "resharded")
    assert (await store.own_topics._leave(await now(store)))[0].stored.state == "leaving"


# --------------------------------------------------------------------------------------------- writers


async def test_a_writer_with_an_old_view_is_told_that_the_topic_moved(store: RadosStore) -> None:
    """Whoever writes by the former layout is refused whole, and nothing of it lands anywhere."""
    old = await store.own_topics.create(own_topic("t", 3))
    await store.ingest.publish(old, routed(old, 1))
    new = await store.own_topics.reshard(old, 5)
    letter = DeadLetter("t", "i", "0/0", "0/1", "refused", "why", 1, 0.0, 0.0, b"x")
    token = await held(store, old.shard(0))
    await store.letters.store(token, replace(letter, incarnation=token.incarnation, position="0/1"))

    for refused in (
        store.ingest.publish(old, routed(old, *range(9))),
        store.ingest.publish(old, routed(old, *range(9)), IdempotencyKey("k", DIGEST)),
        store.ingest.reserve(old, rooms(routed(old, *range(9)))),
    ):
        with pytest.raises(TopicMoved):
            await refused

    assert sum(await entries(store, new.all_shards())) == 1
    assert not [each for each in await entries(store, new.open_shards()) if each]


async def test_a_request_that_meets_a_seal_is_given_back_whole(settings: RadosSettings, store: RadosStore) -> None:
    """While a change is under way a request is refused as moved, and takes no room: not where it was first, either."""
    old = await store.own_topics.create(own_topic("t", 3))
    await store.own_topics._announce_layout(old, await store.own_topics._registry.existing(old), 5)
    await store.own_topics._sealed.seal(old.shard(2), old.id)

    with pytest.raises(TopicMoved):
        await store.ingest.publish(old, routed(old, *range(30)), IdempotencyKey("k", DIGEST))

    stats = [await store.inspection.stats(each) for each in old.open_shards()]
    assert [(each.entries, each.reservations) for each in stats] == [(0, 0)] * 3
    moving = await now(store)
    assert (moving.generation, moving.coming) == (0, TopicLayout(1, 5, LayoutState.PREPARING))
    assert await store.own_topics.forget_former(moving)
    done = await now(store)
    assert (done.generation, done.shards, done.coming) == (1, 5, None)
    assert await store.ingest.publish(done, routed(done, *range(30)), IdempotencyKey("k", DIGEST)) == PublishResult(30)


async def test_a_repeat_after_a_change_is_recognised(store: RadosStore) -> None:
    """What was stored under an idempotency key, or by a reservation, before the change is not stored again after it."""
    old = await store.own_topics.create(own_topic("t", 3))
    once = IdempotencyKey("k", b"d" * 16)
    await store.ingest.publish(old, routed(old, *range(9)), once)
    reservation = await store.ingest.reserve(old, rooms(routed(old, 20, 21)))
    await store.ingest.commit(old, reservation, routed(old, 20, 21), DIGEST)
    new = await store.own_topics.reshard(old, 5)

    assert await store.ingest.publish(new, routed(new, *range(9)), once) == PublishResult(9, repeated=True)
    again = await store.ingest.commit(new, reservation, routed(new, 20, 21), DIGEST)
    assert again == PublishResult(2, repeated=True)
    for shard in new.former_shards():
        await deliver_all(store, shard)
    assert await store.own_topics.forget_former(new)
    assert await store.ingest.publish(new, routed(new, *range(9)), once) == PublishResult(9, repeated=True)
    assert sum(await entries(store, (await now(store)).all_shards())) == 0


async def test_a_reservation_outlives_a_change(store: RadosStore) -> None:
    """What room was reserved for is taken by the queues where it was reserved, whose events come first; what its sender
    commits is compared by the keys. Until then the former layout is sealed and not shut."""
    old = await store.own_topics.create(own_topic("t", 3))
    before, aborted = [await store.ingest.reserve(old, rooms(routed(old, *range(6)))) for _ in range(2)]
    new = await store.own_topics.reshard(old, 5)
    await store.ingest.publish(new, routed(new, *range(6), mark="late"))
    child = new.shard(0)
    why = (await read(store, child)).held_back

    with pytest.raises(ReservationMismatch):
        await store.ingest.commit(new, before, routed(new, *range(1, 7)), DIGEST)
    assert await store.ingest.commit(new, before, routed(new, *range(6)), DIGEST) == PublishResult(6)
    await store.ingest.abort(new, aborted)
    first = [entry for shard in new.former_shards() for entry in await deliver_all(store, shard)]
    second = [entry for shard in new.open_shards() for entry in await let_go(store, shard)]

    assert why.startswith("waits for t")
    assert "open reservation" in why
    assert sorted(first) == sorted(each.payload for each in routed(old, *range(6)))
    assert sorted(second) == sorted(each.payload for each in routed(new, *range(6), mark="late"))
    with pytest.raises(ReservationExpired):
        await store.ingest.commit(new, aborted, routed(new, *range(6)), DIGEST)


async def test_a_reservation_that_nobody_commits_ends(store: RadosStore) -> None:
    """When its room was given up its layout is shut, and its commit is told that it has expired."""
    old = await store.own_topics.create(own_topic("t", 1))
    left = await store.ingest.reserve(old, rooms(routed(old, 1)))
    new = await store.own_topics.reshard(old, 2)
    assert [each.state for each in new.former] == [LayoutState.SEALED]
    token = await held(store, old.shard(0))

    await store.queue.expire_all([token], 0.0)
    await store.queue.expire_all([token], 0.0)

    assert await store.own_topics.forget_former(new)
    with pytest.raises(ReservationExpired):
        await store.ingest.commit(await now(store), left, routed(new, 1), DIGEST)


async def test_shards_wait_for_a_sender_that_died(store: RadosStore) -> None:
    """Room that a sender had reserved when it was killed holds the new shards back for two minutes: their worker says
    so, sends nothing before, and all of it then."""
    old = await store.own_topics.create(own_topic("t", 1))
    await store.ingest.reserve(old, rooms(routed(old, 1)))
    new = await store.own_topics.reshard(old, 2)
    keys = [b"bkt:k%d" % i for i in range(6)]
    events = [RoutedEvent(shard_number(key, 2), key, raw_entry(f"k{i}", i)) for i, key in enumerate(keys)]
    await store.ingest.publish(new, events)
    endpoint = FakeEndpoint()
    worker = a_worker(store, endpoint)

    async def says_so() -> bool:
        waiting = {each.queue: each.reason for each in worker.shards if each.state is State.WAITING}
        return waiting == {each.queue: "waits for t of generation 0: 1 open reservation" for each in new.open_shards()}

    async def has_sent() -> bool:
        return len(endpoint.events()) == 6

    async with running(worker):
        await until(says_so, "what the shards wait for")
        await pass_time(store, RESERVATION_AGE_S - 1)
        await store._recovery.look()
        assert await says_so()
        assert endpoint.events() == []
        await pass_time(store, 1)
        await until(has_sent, "all events")


async def test_a_full_queue_refuses_as_ever(store: RadosStore) -> None:
    """A queue of a new layout has the bound that all queues have."""
    topic = await store.own_topics.reshard(await store.own_topics.create(own_topic("t", 1)), 2)

    with pytest.raises(QueueFull):
        await store.two_phase.reserve(topic.shard(1), 1, 200_000_000)


# ------------------------------------------------------------------------------------------- consumers


async def test_a_shard_waits_for_its_parents_alone(store: RadosStore) -> None:
    """A new shard shows nothing while an old one has entries that may be earlier ones of its keys, and says so; then it
    shows everything, and its first page says where those ended."""
    old = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(old, routed(old, *range(30)))
    new = await store.own_topics.reshard(old, 4)
    await store.ingest.publish(new, routed(new, *range(30)))
    counts = await entries(store, old.open_shards())

    pages = [await read(store, shard) for shard in new.open_shards()]
    assert [page.entries for page in pages] == [[]] * 4
    for i, page in enumerate(pages):
        waits = f"waits for {'t.1' if i % 2 else 't'} of generation 0: "
        assert re.fullmatch(rf"{waits}({counts[i % 2]}|about \d+) entr(y|ies)", page.held_back)
    await deliver_all(store, old.shard(1))

    async def shown() -> bool:  # a look at parents counts for a moment
        return [bool((await read(store, shard)).entries) for shard in new.open_shards()] == [False, True, False, True]

    await until(shown)
    (look,) = [await store.own_topics._sealed.look(old.shard(1))]
    page = await read(store, new.shard(1))
    assert page.after == f"t.1={look.former.incarnation}:{look.former.end}".encode()
    token = await held(store, new.shard(1))
    assert not (await store.queue.read(token, page.positions[1], 9)).after
    await store.queue.remove(token, page.positions[1], 1, Tally(delivered=1))
    assert not (await read(store, new.shard(1))).after


async def test_more_parents_than_a_header_names(store: RadosStore) -> None:
    """Of more than 64 parents their generation alone is told, also when they are gone, and to another worker."""
    old = await store.own_topics.create(own_topic("many", 65))
    for shard in old.open_shards():
        await held(store, shard)
    new = await store.own_topics.reshard(old, 1)
    await store.ingest.publish(new, routed(new, 1))

    assert new.former == ()
    assert (await read(store, new.shard(0))).after == b"generation=0"


async def test_a_former_layout_is_forgotten_when_it_is_empty(store: RadosStore) -> None:
    """Not before: then its queues go, with their locks, and their final ledgers are kept; a repeat changes nothing."""
    old = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(old, routed(old, *range(30)))
    new = await store.own_topics.reshard(old, 4)
    assert not await store.own_topics.forget_former(new)
    token = await held(store, old.shard(0))
    assert (await store.ledger.balance(old.shard(0))).pending == (await entries(store, [old.shard(0)]))[0]
    counts = [len(await deliver_all(store, shard)) for shard in old.all_shards()]

    assert await store.own_topics.forget_former(new)
    assert not await store.own_topics.forget_former(new)

    found = await store.own_topics.former_queues(new)
    assert [(each.name, each.generation, each.committed, each.removed.delivered) for each in found] == [
        ("t", 0, counts[0], counts[0]), ("t.1", 0, counts[1], counts[1]),
    ]  # fmt: skip
    with pytest.raises(ShardGone):
        await store.queue.read(token, b"", 1)
    topic = await now(store)
    assert topic.former == ()
    assert list(await store.catalog.shards()) == sorted(new.open_shards(), key=str)
    await store.ingest.publish(topic, routed(topic, *range(30)))
    page = await read(store, topic.shard(1))
    assert page.after == f"t.1={found[1].incarnation}:{found[1].end}".encode()


async def test_a_topic_that_is_being_changed_is_removed_whole(store: RadosStore) -> None:
    """Its removal counts what waits in both layouts, and leaves nothing of either, nor of one that was to come."""
    old = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(old, routed(old, *range(8)))
    new = await store.own_topics.reshard(old, 4)
    await store.ingest.publish(new, routed(new, *range(5)))
    with pytest.raises(TopicRefused, match="13 entries"):
        await store.own_topics.remove(new, discard=False)
    await store.ingest.publish(new, routed(new, 5))

    assert (await store.own_topics.remove(new, discard=True)).entries == 14
    assert not await store.catalog.shards()
    await _no_queues_left(store, "t", 4)

    half = await store.own_topics.create(own_topic("u", 2))
    await store.own_topics._announce_layout(half, await store.own_topics._registry.existing(half), 3)
    await store.own_topics._sealed.prepare(Shard("u@1.2", half.first_shard.origin), half.id, _goes_on)
    await store.own_topics.remove(half, discard=False)
    await _no_queues_left(store, "u", 3)


async def _goes_on() -> None:
    """The change that a queue is prepared for is under way yet."""


async def _no_queues_left(store: RadosStore, name: str, shards: int) -> None:
    layouts = [own_topic(name, shards), replace(own_topic(name, shards), generation=1)]
    for shard in [shard for layout in layouts for shard in layout.open_shards()]:
        with pytest.raises(ShardGone):
            await store.inspection.stats(shard)


# ------------------------------------------------------------------------------------------- schedules


@pytest.mark.guarantee("order-per-object")
@pytest.mark.parametrize(
    "seeds",
    [
        range(2),
        *[pytest.param(range(i, i + 10), marks=pytest.mark.full("40 schedules more")) for i in range(2, 42, 10)],
    ],
)
async def test_no_schedule_reorders_a_key(store: RadosStore, seeds: range) -> None:
    """Whatever writers, owners and changes do in whatever order, each key's events are shown in the order of their
    commits and none is lost; the books are right over all generations."""
    for seed in seeds:
        topic = await store.own_topics.create(own_topic(f"t{seed}", 3))
        machine = LayoutMachine(store, topic, Random(seed), awaits_commits=True)
        await machine.run(150)

        assert machine.generations
        assert dict(machine.sent) == {key: list(range(count)) for key, count in machine.committed.items() if count}
        topic = await machine.now()
        gone = sum(each.removed.delivered for each in await store.own_topics.former_queues(topic))
        there = sum([(await store.ledger.balance(each)).removed.delivered for each in topic.all_shards()])
        assert gone + there == sum(machine.committed.values())
