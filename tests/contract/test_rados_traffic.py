"""What a store on RADOS tells of its traffic beside deliveries: commits, looks, walks and re-drives, by their bytes."""

from __future__ import annotations

import uuid

import pytest

from devkit.clusters.ceph import reached
from remora.config import RadosSettings
from remora.model.ingest import RoutedEvent
from remora.model.ledger import Tally
from remora.model.record import DeadLetter, Redrive
from remora.model.shard import LockToken
from remora.storage.rados import RadosStore
from support.letters import letters_of
from support.store_traffic import CountedTraffic
from support.stores import own_topic

pytestmark = pytest.mark.ceph

BODY = b"e" * 1000


async def filled(store: RadosStore, events: int) -> LockToken:
    """The held queue of a new topic with so many entries of a thousand bytes."""
    topic = await store.own_topics.create(own_topic(f"told-{uuid.uuid4().hex[:8]}", 1))
    await store.ingest.publish(topic, [RoutedEvent(0, b"k", BODY)] * events)
    token = await store.locks.acquire(topic.first_shard, "remora/h/b/1", 90)
    assert isinstance(token, LockToken)
    return token


async def parked(store: RadosStore, token: LockToken, count: int) -> list[DeadLetter]:
    """Letters of all entries of a queue, which have left it."""
    page = await store.queue.read(token, b"", count)
    letters = letters_of(token, page)
    await store.letters.store(token, *letters)
    await store.queue.remove(token, page.positions[-1], count, Tally(expired=count))
    return letters


async def test_walks_over_entries_are_told_page_by_page(settings: RadosSettings) -> None:
    """A dump and an exact count tell the bytes of each page that they list, and a delivery's own reads tell nothing."""
    traffic = CountedTraffic()
    async with reached(settings, traffic=traffic) as store:
        token = await filled(store, 1100)
        await store.queue.read(token, b"", 1100)
        assert (traffic.walks, traffic.looks) == ([], [])

        assert len([each async for each in store.inspection.dump(token.shard)]) == 1100
        first, second = traffic.walks
        assert 1024 * 1000 < first < 1024 * 1200
        assert 76 * 1000 < second < 76 * 1200

        traffic.walks.clear()
        assert (await store.ledger.balance(token.shard)).pending == 1100
        assert sum(traffic.walks) == first + second


async def test_looks_are_told_with_the_head_that_they_read(settings: RadosSettings) -> None:
    """A survey of queues tells what it reads of each: its head and its oldest entries; a check of ledgers the head."""
    traffic = CountedTraffic()
    async with reached(settings, traffic=traffic) as store:
        token = await filled(store, 20)
        await store.inspection.backlog([token.shard])
        (survey,) = traffic.looks
        await store.ledger.balances([token])
        await store.letters.counts()
        assert len(traffic.looks) == 3
        assert traffic.walks == []

    assert 16 * 1000 < survey - traffic.looks[1] < 16 * 1200


async def test_letters_and_their_redrives_are_told(settings: RadosSettings) -> None:
    """Who lists letters walks over their bytes; a re-drive tells the bytes that it commits, and is no commit of events;
    letters that are gone are re-driven by nobody and told by nobody."""
    traffic = CountedTraffic()
    async with reached(settings, traffic=traffic) as store:
        token = await filled(store, 5)
        letters = await parked(store, token, 5)
        topic = await store.own_topics.find(token.shard.queue)
        traffic.commits.clear()

        found = [each async for each in store.letters.stored(token.shard.queue)]
        assert sum(traffic.walks) > 5000
        again = [Redrive(each, each.raw) for each in found]
        assert await store.letters.redrive(token.shard, topic, again[:3]) == 3
        assert await store.letters.redrive(token.shard, topic, again) == 2
        assert await store.letters.redrive(token.shard, topic, again) == 0

    raw = len(letters[0].raw)
    assert (traffic.redrives, traffic.commits) == ([3 * raw, 2 * raw], [])
