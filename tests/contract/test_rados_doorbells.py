"""Doorbells on RADOS: who holds a queue learns of a commit at once, and no commit depends on it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest

from devkit.clusters.ceph import Ceph, Gateway, reached
from devkit.waits import PATIENT_S, until
from remora.config import RadosSettings
from remora.model.ingest import IdempotencyKey, ReservedRoom, RoutedEvent
from remora.model.ledger import Tally
from remora.model.shard import LockToken, Shard
from remora.model.topic import Topic
from remora.policy.delivery import doorbells
from remora.policy.delivery.doorbells import bell_of
from remora.storage.rados import RadosStore
from remora.storage.rados.queues.own_queues import MarkChange
from support.stores import own_topic

pytestmark = pytest.mark.ceph

EVENT = RoutedEvent(0, b"bkt:k", b"event")


def bell(shard: Shard) -> str:
    """The object that is notified of this queue."""
    return f"remora.bell.{bell_of(shard.queue)}"


async def watchers(ceph: Ceph, shard: Shard) -> set[str]:
    """Who watches a queue's bell."""
    return await asyncio.to_thread(ceph.watchers, bell(shard), "remora")


async def is_watching(ceph: Ceph, store: RadosStore, shard: Shard) -> bool:
    """Whether this store's client watches a queue's bell."""
    return store.connected and store._connection.session.entity in await watchers(ceph, shard)


async def held_and_watched(ceph: Ceph, store: RadosStore, shard: Shard) -> LockToken:
    """Take a queue's lock, and wait until the store hears its bell."""
    token = await store.locks.acquire(shard, "w", 3600)
    assert isinstance(token, LockToken)
    await until(partial(is_watching, ceph, store, shard))
    return token


async def told(store: RadosStore) -> set[Shard]:
    """The queues that are told next; what was told before it is asked for counts, too."""
    async with asyncio.timeout(PATIENT_S):
        return set(await store.arrivals.wait())


async def pending(store: RadosStore, shard: Shard) -> list[bytes]:
    """The entries of a queue."""
    return [entry async for _, entry in store.inspection.dump(shard)]


@pytest.fixture(autouse=True)
def each_commit_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No queue is busy."""
    monkeypatch.setattr(doorbells, "EVERY_S", 1e-9)


@pytest.fixture
async def writer(settings: RadosSettings) -> AsyncIterator[RadosStore]:
    """The store of a process that commits, and holds nothing."""
    async with reached(settings) as store:
        yield store


@pytest.fixture
async def topic(writer: RadosStore) -> Topic:
    """A topic of one queue."""
    return await writer.own_topics.create(own_topic(f"bell-{uuid.uuid4().hex[:8]}", 1))


async def published(store: RadosStore, topic: Topic) -> None:
    await store.ingest.publish(topic, [EVENT])


async def published_under_a_key(store: RadosStore, topic: Topic) -> None:
    await store.ingest.publish(topic, [EVENT], IdempotencyKey("once", b"d"))


async def committed(store: RadosStore, topic: Topic) -> None:
    reservation = await store.ingest.reserve(topic, [ReservedRoom(0, b"bkt:k", 100)])
    await store.ingest.commit(topic, reservation, [EVENT], b"d")


async def marked(store: RadosStore, topic: Topic) -> None:
    queues = store.ingest._queues
    reservation = await queues.reserve(topic.first_shard, topic.id, [5])
    change = MarkChange("remora.redriven.test", b"", b"1")
    await queues.commit_marked(topic.first_shard, topic.id, reservation, [b"event"], change)


@pytest.mark.parametrize("commit", [published, published_under_a_key, committed, marked])
async def test_each_commit_of_another_process_is_told(
    ceph: Ceph,
    settings: RadosSettings,
    writer: RadosStore,
    topic: Topic,
    commit: Callable[[RadosStore, Topic], Awaitable[None]],
) -> None:
    """However entries are committed to a queue, the process that holds it is told of the queue."""
    async with reached(settings) as holder:
        await held_and_watched(ceph, holder, topic.first_shard)

        await commit(writer, topic)

        assert await told(holder) == {topic.first_shard}
        assert len(await pending(holder, topic.first_shard)) == 1


async def test_the_end_of_a_parent_is_told(
    ceph: Ceph, settings: RadosSettings, writer: RadosStore, topic: Topic
) -> None:
    """The owner of a former shard that finds it empty tells the owners of the shards behind it, once: that of another
    process and its own. These are delivered then."""
    await published(writer, topic)
    async with reached(settings) as owner, reached(settings) as other:
        token = await held_and_watched(ceph, owner, topic.first_shard)
        changed = await writer.own_topics.reshard(topic, 2)
        await owner.catalog.topics()
        one, two = changed.open_shards()
        children = {owner: await held_and_watched(ceph, owner, one), other: await held_and_watched(ceph, other, two)}
        for store, child in children.items():
            assert (await store.queue.read(child, b"", 1)).held_back
        page = await owner.queue.read(token, b"", 10)
        await owner.queue.remove(token, page.positions[-1], 1, Tally(delivered=1))
        for store in children:
            store.arrivals._bell.take()

        assert not (await owner.queue.read(token, b"", 10)).entries

        assert one in await told(owner)
        assert await told(other) == {two}
        assert not (await owner.queue.read(children[owner], b"", 1)).held_back
        await until(partial(_is_let_go, other, children[other]))
        rung = [each.rung_at for each in owner._doorbells._bells]
        await owner.queue.read(token, b"", 10)
        assert [each.rung_at for each in owner._doorbells._bells] == rung


async def _is_let_go(store: RadosStore, token: LockToken) -> bool:
    return not (await store.queue.read(token, b"", 1)).held_back


async def test_a_commit_of_this_process_is_told(settings: RadosSettings, writer: RadosStore, topic: Topic) -> None:
    """A process that commits to a queue that it holds is told, also before its watch is made."""
    assert isinstance(await writer.locks.acquire(topic.first_shard, "w", 3600), LockToken)

    await published(writer, topic)

    assert await told(writer) == {topic.first_shard}


async def test_a_ring_that_nobody_hears(ceph: Ceph, settings: RadosSettings, topic: Topic) -> None:
    """Commits to a queue that nobody holds succeed, make no bell, and their entries are there."""
    async with reached(settings) as store:
        for _ in range(3):
            await published(store, topic)
        await until(partial(_has_rung, store))

    async with reached(settings) as holder:
        assert len(await pending(holder, topic.first_shard)) == 3
    with ceph.client(namespace="remora") as ioctx:
        assert not Gateway(ioctx).exists(bell(topic.first_shard))


async def _has_rung(store: RadosStore) -> bool:
    """Whether no ring is under way."""
    return not any(each.is_due or each.unanswered for each in store._doorbells._bells)


async def test_a_watcher_that_does_not_answer(
    ceph: Ceph, settings: RadosSettings, writer: RadosStore, topic: Topic
) -> None:
    """Commits and further rings do not wait for a watcher that is frozen, and end as if it had answered."""
    async with reached(settings) as holder:
        await held_and_watched(ceph, holder, topic.first_shard)
        for watch in holder._connection.session._watches.values():
            asyncio.get_running_loop().remove_reader(watch._reader)
        (ringing,) = [each for each in writer._doorbells._bells if each.oid == bell(topic.first_shard)]

        await published(writer, topic)
        await until(lambda: ringing.unanswered)
        await published(writer, topic)

        await until(partial(_has_rung, writer))
        assert len(await pending(writer, topic.first_shard)) == 2


async def test_what_is_not_held_is_not_watched(
    ceph: Ceph, settings: RadosSettings, writer: RadosStore, topic: Topic, gateway: Gateway
) -> None:
    """Who gives a queue back, loses it, or ends, watches no longer; nobody watches for a queue of a radosgw's."""
    shard = topic.first_shard
    gateway.make_queue("q")
    async with reached(settings) as holder:
        assert isinstance(await holder.locks.acquire(Shard("q"), "w", 3600), LockToken)
        assert not any(each.held for each in holder._doorbells._bells)
        token = await held_and_watched(ceph, holder, shard)
        await holder.locks.release(token)
        await until(partial(_nobody_watches, ceph, shard))

        token = await held_and_watched(ceph, holder, shard)
        owner = (await writer.inspection.stats(shard)).holder
        assert owner is not None
        await writer.locks.evict(shard, owner)
        assert (await holder.locks.renew_all([token], 3600)) != [None]
        await until(partial(_nobody_watches, ceph, shard))

        await held_and_watched(ceph, holder, shard)
    assert await watchers(ceph, shard) == set()


async def _nobody_watches(ceph: Ceph, shard: Shard) -> bool:
    return not await watchers(ceph, shard)


async def bell_removed(ceph: Ceph, holder: RadosStore, shard: Shard) -> None:
    with ceph.client(namespace="remora") as ioctx:
        ioctx.remove_object(bell(shard))


async def shut_out(ceph: Ceph, holder: RadosStore, shard: Shard) -> None:
    entity, lock = holder._connection.session.entity, (await holder.inspection.stats(shard)).holder
    assert lock is not None
    ceph.command(prefix="osd blocklist", blocklistop="add", addr=lock.address)
    await until(partial(_has_changed, holder, entity))


async def _has_changed(holder: RadosStore, entity: str) -> bool:
    return holder.connected and holder._connection.session.entity != entity


async def osds_restarted(ceph: Ceph, holder: RadosStore, shard: Shard) -> None:
    for signal in (partial(ceph.send, signal="KILL"), ceph.start):
        for osd in ("osd.0", "osd.1"):
            await asyncio.to_thread(signal, osd)


@pytest.mark.parametrize(
    "fault", [bell_removed, shut_out, pytest.param(osds_restarted, marks=pytest.mark.long("OSDs"))]
)
async def test_a_lost_watch_is_made_again(
    ceph: Ceph,
    settings: RadosSettings,
    writer: RadosStore,
    topic: Topic,
    fault: Callable[[Ceph, RadosStore, Shard], Awaitable[None]],
) -> None:
    """Whatever a watch is lost by, commits go on, their entries are there to be found, and later ones are told again.

    A client that was shut out is another one afterwards.
    """
    async with reached(settings) as holder:
        await held_and_watched(ceph, holder, topic.first_shard)
        await fault(ceph, holder, topic.first_shard)

        await published(writer, topic)
        assert len(await pending(holder, topic.first_shard)) == 1
        await until(partial(is_watching, ceph, holder, topic.first_shard))
        holder.arrivals._bell.take()

        async def is_told() -> bool:
            """Whether it is told; an OSD may list the watch a moment before."""
            await published(writer, topic)
            return bool(holder.arrivals._bell.take())

        await until(is_told)
