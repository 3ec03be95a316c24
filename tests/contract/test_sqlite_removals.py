"""Removals from queues of the embedded store that come together: one job, in which each answers for itself."""

from __future__ import annotations

import asyncio

import pytest

from remora.model.errors import OwnershipLost
from remora.model.ledger import Tally
from remora.model.record import Page
from remora.model.shard import LockToken
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import writer as writers
from support.stores import held, own_topic, spread


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test begins together is kept together, however slow the machine is."""
    monkeypatch.setattr(writers, "PATIENCE_S", 0.5)


async def filled(store: SqliteStore, shards: int) -> tuple[Topic, list[tuple[LockToken, Page]]]:
    """A topic with two entries or more in each shard, and all shards held and listed."""
    topic = await store.own_topics.create(own_topic("t", shards))
    await store.ingest.publish(topic, spread(topic, 2 * shards, "k"))
    tokens = [await held(store, shard) for shard in topic.all_shards()]
    return topic, [(token, await store.queue.read(token, b"", 1024)) for token in tokens]


async def remove(store: SqliteStore, token: LockToken, page: Page, upto: int, count: int) -> None:
    """Remove the oldest `count` entries, up to the one at this place of a page."""
    await store.queue.remove(token, page.positions[upto], count, Tally(delivered=count))


async def test_those_of_all_queues_are_one_transaction(store: SqliteStore) -> None:
    """Removals from all queues of a topic that come together are one transaction, and each queue's books are right."""
    topic, pages = await filled(store, 5)
    (file,) = store._files.all
    before = file.stats.transactions

    await asyncio.gather(*(remove(store, token, page, 2, 2) for token, page in pages))

    assert file.stats.transactions == before + 1
    for shard in topic.all_shards():
        balance = await store.ledger.balance(shard)
        assert (balance.removed.delivered, balance.unaccounted) == (2, 0)
        assert (await store.inspection.stats(shard)).used_bytes == 0


async def test_two_of_one_queue_follow_each_other(store: SqliteStore) -> None:
    """The second of two removals from a queue that come together begins where the first one ends."""
    topic, ((token, page),) = await filled(store, 1)

    await asyncio.gather(remove(store, token, page, 1, 1), remove(store, token, page, 2, 1))

    assert not (await store.queue.read(token, b"", 1024)).entries
    assert (await store.ledger.balance(topic.shard(0))).removed.delivered == 2


async def test_one_that_is_refused_harms_no_other(store: SqliteStore) -> None:
    """A removal without the lock of its queue is refused, and those that came with it are carried out."""
    _, pages = await filled(store, 3)
    lost, page = pages[1]
    await store.locks.release(lost)

    outcomes = await asyncio.gather(
        *(remove(store, token, page, 2, 2) for token, page in pages), return_exceptions=True
    )

    assert [type(each) for each in outcomes] == [type(None), OwnershipLost, type(None)]
    assert (await store.queue.read(await held(store, lost.shard), b"", 1024)).entries == page.entries
    assert not (await store.queue.read(pages[0][0], b"", 1024)).entries


async def test_a_removal_names_what_it_frees(store: SqliteStore) -> None:
    """Where the last entry of a queue leaves it, those that it held back are told of at once."""
    topic, ((token, page),) = await filled(store, 1)
    changed = await store.own_topics.reshard(topic, 2)
    await store.ingest.publish(changed, spread(changed, 4, "new"))
    await store.arrivals.wait()

    await remove(store, token, page, 2, 2)

    assert set(store._files.bell.take()) >= {changed.shard(0), changed.shard(1)}  # not by a look, which comes later
