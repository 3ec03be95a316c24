"""Topics of remora's own on RADOS: beside those of a radosgw, and as other workers and other versions leave them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import pytest
import rados

from devkit.clusters.ceph import Ceph, Gateway, reached
from remora.config import RadosSettings
from remora.model.errors import StoreError, TopicClosed, TopicNotSequenced, TopicRefused
from remora.model.record import DeadLetter
from remora.model.shard import LockToken, Origin, Shard
from remora.model.topic import Topic
from remora.storage.rados import RadosStore
from support.stores import by_shard, own_topic, spread

pytestmark = pytest.mark.ceph


@pytest.fixture
async def store(settings: RadosSettings) -> AsyncIterator[RadosStore]:
    """An open store."""
    async with reached(settings) as store:
        yield store


async def contents(store: RadosStore, shard: Shard) -> list[bytes]:
    return [entry async for _, entry in store.inspection.dump(shard)]


async def commit(store: RadosStore, shard: Shard, payload: bytes) -> None:
    await store.two_phase.commit(shard, await store.two_phase.reserve(shard, 1, len(payload)), [payload])


async def test_beside_a_topic_of_a_radosgw(store: RadosStore, gateway: Gateway) -> None:
    """A topic may have the name of a radosgw's queue: entries, locks, figures and letters of the two stay apart."""
    gateway.make_queue("t")
    theirs = Shard("t")
    await commit(store, theirs, b"theirs")
    topic = await store.own_topics.create(own_topic("t", 2))
    ours, events = topic.first_shard, spread(topic, 6)

    await store.ingest.publish(topic, events)

    assert sorted(await store.catalog.shards()) == sorted([theirs, *topic.all_shards()])
    assert [shard.queue for shard in await store.catalog.shards()] == ["t", "t", "t.1"]
    assert await contents(store, theirs) == [b"theirs"]
    assert await contents(store, ours) == by_shard(topic, events)[0]
    assert (await store.catalog.peek(theirs), await store.catalog.peek(ours)) == (b"theirs", events[0].payload)
    first, second = await store.locks.acquire(theirs, "w", 90), await store.locks.acquire(ours, "w", 90)
    assert isinstance(first, LockToken)
    assert isinstance(second, LockToken)
    assert first.incarnation != second.incarnation
    assert [
        len(each.entries) for each in (await store.queue.read(first, b"", 9), await store.queue.read(second, b"", 9))
    ] == [1, 3]
    letters = [
        DeadLetter("t", token.incarnation, "0/1", "0/2", "refused", "", 1, 1.0, 1.0, b"") for token in (first, second)
    ]
    for token, letter in [*zip((first, second), letters, strict=True)] * 2:
        await store.letters.store(token, letter)
    assert sorted([each async for each in store.letters.stored("t")], key=str) == sorted(letters, key=str)

    assert (await store.own_topics.remove(topic, discard=True)).entries == 6
    assert list(await store.catalog.shards()) == [theirs]
    assert await contents(store, theirs) == [b"theirs"]


async def test_nothing_of_ours_where_a_radosgw_looks(store: RadosStore, gateway: Gateway) -> None:
    """The queues of our topics are neither in a radosgw's registry nor in its namespace."""
    gateway.make_queue("theirs")

    await store.ingest.publish(topic := await store.own_topics.create(own_topic("t", 2)), spread(topic, 4))

    assert sorted(each.key for each in gateway.ioctx.list_objects()) == ["queues_list_object", "theirs"]
    with rados.ReadOpCtx() as op:
        found, _ = gateway.ioctx.get_omap_keys(op, "", 100)
        gateway.ioctx.operate_read_op(op, "queues_list_object")
        assert [key for key, _ in found] == ["theirs"]


async def test_looks_are_cheap(store: RadosStore) -> None:
    """While nothing changes the answers are the very objects of the last time."""
    await store.own_topics.create(own_topic("t", 2))

    assert await store.catalog.shards() is await store.catalog.shards()


async def test_more_topics_than_one_page(ceph: Ceph, settings: RadosSettings) -> None:
    """Topics are found however many there are, and one that cannot be read hides none of the others."""
    async with reached(settings) as store:
        made = await store.own_topics.create(own_topic("t-0000", 3))
        with ceph.client(namespace="remora") as ioctx:
            with rados.ReadOpCtx() as op:
                found, _ = ioctx.get_omap_vals(op, "", "", 10)
                ioctx.operate_read_op(op, "remora.topics")
                ((_, value),) = found
            with rados.WriteOpCtx() as op:
                names = tuple(f"t-{i:04}" for i in range(2_500))
                ioctx.set_omap(op, names, (value,) * len(names))
                ioctx.set_omap(op, ("broken",), (b"\xc1",))
                ioctx.operate_write_op(op, "remora.topics")

        shards, topics = await store.catalog.shards(), await store.catalog.topics()

    assert len(shards) == 3 * 2_500
    assert topics[Shard("t-2499", Origin.REMORA)] == replace(made, name="t-2499", queue="t-2499")
    assert len(topics) == 2_500


@pytest.mark.parametrize("version", [1, 2])
async def test_topic_of_a_newer_version(
    ceph: Ceph, store: RadosStore, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    """What a later remora adds to a topic's entry in the registry does not keep this one from reading it; an entry of
    another version does, and is named: its topic is neither delivered nor changed here."""
    made = await store.own_topics.create(own_topic("t", 2))
    with ceph.client(namespace="remora") as ioctx:
        with rados.ReadOpCtx() as op:
            found, _ = ioctx.get_omap_vals(op, "", "", 10)
            ioctx.operate_read_op(op, "remora.topics")
            ((_, value),) = found
        newer = msgspec.msgpack.encode(msgspec.msgpack.decode(value) | {"version": version, "colour": "red"})
        with rados.WriteOpCtx() as op:
            ioctx.set_omap(op, ("t",), (newer,))
            ioctx.operate_write_op(op, "remora.topics")

    topics = await store.catalog.topics()

    if version == 1:
        assert topics[made.first_shard] == made == await store.own_topics.find("t")
        return
    assert made.first_shard not in topics
    assert "topic t in remora.topics is a newer remora's: version 2, not 1" in caplog.text
    with pytest.raises(StoreError, match=r"topic t in remora\.topics is a newer remora's"):
        await store.own_topics.change(made)


async def test_what_another_topic_left_behind(ceph: Ceph, store: RadosStore) -> None:
    """A queue that a lost topic left under a new one's name is made anew, and so is an object that is no queue."""
    lost = await store.own_topics.create(own_topic("t", 3))
    await store.ingest.publish(lost, spread(lost, 9))
    with ceph.client(namespace="remora") as ioctx:
        ioctx.remove_object("remora.topics")
        ioctx.remove_object("t.2")
        ioctx.write_full("t.2", b"")

    topic = await store.own_topics.create(own_topic("t", 3))
    events = spread(topic, 6)
    await store.ingest.publish(topic, events)

    assert [await contents(store, shard) for shard in topic.all_shards()] == by_shard(topic, events)


async def test_interrupted_creation_with_other_shards(settings: RadosSettings, store: RadosStore) -> None:
    """A creation that was cut short does not bind the next one to its number of shards."""
    async with reached(settings) as another:
        announced = await another.own_topics._announce(own_topic("t", 3))
        await another.own_topics._queues.make(Shard("t", Origin.REMORA), announced.stored.id, _pass)

    topic = await store.own_topics.create(own_topic("t", 2))
    events = spread(topic, 6)
    await store.ingest.publish(topic, events)

    assert topic.id != announced.stored.id
    assert [await contents(store, shard) for shard in topic.all_shards()] == by_shard(topic, events)


async def test_events_are_not_numbered(store: RadosStore) -> None:
    """A topic with a sequence is refused with the reason, new or not, and no topic tells how far it has come."""
    with pytest.raises(TopicRefused, match="cannot have a sequence"):
        await store.own_topics.create(replace(own_topic("n"), is_sequenced=True))
    topic = await store.own_topics.create(own_topic("t"))
    with pytest.raises(TopicRefused, match="cannot have a sequence"):
        await store.own_topics.change(replace(topic, is_sequenced=True))
    with pytest.raises(TopicNotSequenced):
        await store.own_topics.sequence(topic)


async def test_queues_have_no_capacity_of_their_own(store: RadosStore) -> None:
    """A topic with a capacity is refused with the reason, new or not."""
    with pytest.raises(TopicRefused, match="cannot have a capacity"):
        await store.own_topics.create(replace(own_topic("n"), capacity_bytes=1 << 20))
    topic = await store.own_topics.create(own_topic("t"))
    with pytest.raises(TopicRefused, match="cannot have a capacity"):
        await store.own_topics.change(replace(topic, capacity_bytes=1 << 20))


async def _pass() -> None:
    """There is nobody else."""


async def test_waiting_entries_during_a_resumed_removal(store: RadosStore, settings: RadosSettings) -> None:
    """A removal that stopped before anything was removed is taken back when entries wait; the topic delivers on."""
    topic = await store.own_topics.create(own_topic("t", 2))
    events = spread(topic, 6)
    await store.ingest.publish(topic, events)
    await fenced(store, topic)
    assert topic.first_shard not in await store.catalog.topics()

    with pytest.raises(TopicRefused, match="6"):
        await store.own_topics.remove(topic, discard=False)

    assert await store.own_topics.find("t") == topic
    assert topic.first_shard in await store.catalog.topics()
    await store.ingest.publish(topic, events)
    assert [await contents(store, shard) for shard in topic.all_shards()] == by_shard(topic, events, events)


async def fenced(store: RadosStore, topic: Topic) -> None:
    """Where a removal has got to when it looks for entries the last time."""
    await store.own_topics._leave(topic)
    for shard in topic.all_shards():
        await store.own_topics._queues.fence(shard, topic.id)


async def test_half_a_removal_is_not_taken_back(ceph: Ceph, store: RadosStore) -> None:
    """A removal with its entries that has begun can be finished only so."""
    topic = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(topic, spread(topic, 6))
    await fenced(store, topic)
    with ceph.client(namespace="remora") as ioctx:
        ioctx.remove_object("t.1")

    with pytest.raises(TopicRefused, match="begun"):
        await store.own_topics.remove(topic, discard=False)
    with pytest.raises(TopicRefused, match="removed"):
        await store.own_topics.change(topic)

    assert (await store.own_topics.remove(topic, discard=True)).entries == 3
    assert await store.own_topics.find("t") is None


async def test_closed_and_opened_side_by_side(settings: RadosSettings, store: RadosStore) -> None:
    """When workers close and open a topic at once, its queues take events afterwards just as the registry says."""
    topic = await store.own_topics.create(own_topic("t", 2))
    async with reached(settings) as other:
        for _ in range(10):
            await asyncio.gather(
                *(
                    each.own_topics.change(replace(topic, closed=closed))
                    for each in (store, other)
                    for closed in (True, False)
                )
            )
            now = await store.own_topics.find("t")
            assert now is not None
            if now.closed:
                with pytest.raises(TopicClosed):
                    await store.ingest.publish(topic, spread(topic, 2))
            else:
                await store.ingest.publish(topic, spread(topic, 2))
