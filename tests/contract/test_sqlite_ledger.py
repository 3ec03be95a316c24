from __future__ import annotations

from pathlib import Path

import pytest

from devkit.entries.entries import delivered
from remora.config import SqliteSettings
from remora.model.errors import StoreUnavailable
from remora.model.ledger import Balance, Tally
from remora.model.shard import LockToken, Shard
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import directory
from remora.storage.sqlite.tables import schema
from support.sqlite import append
from support.stores import QUIET_S, change, held, own_topic

LEDGERS = 2
"""The version of files that have no ledgers yet."""


async def filled(store: SqliteStore, count: int) -> tuple[Shard, LockToken]:
    """A held shard with this many entries."""
    shard = (await store.own_topics.create(own_topic("t", 1))).shard(0)
    await commit(store, shard, count)
    return shard, await held(store, shard)


async def commit(store: SqliteStore, shard: Shard, count: int) -> None:
    await append(store, shard, *(b"%06d" % i for i in range(count)))


def prepare(configured: SqliteSettings) -> None:
    """Make the directory and its file, as a store does when it is opened."""
    path = Path(configured.directory)
    directory.make_directory(path)
    directory.prepare(path, configured)


@pytest.mark.guarantee("nothing-leaves-silently")
@pytest.mark.parametrize("place", [0, 3, 9])
async def test_row_deleted_behind_our_back(store: SqliteStore, configured: SqliteSettings, place: int) -> None:
    """A waiting entry whose row is gone is unaccounted for, wherever in the queue it stood."""
    shard, token = await filled(store, 10)

    change(configured, f"DELETE FROM settled WHERE id & {schema.END_OF_QUEUE} = {place}")

    for balance in (await store.ledger.balance(shard), *await store.ledger.balances([token])):
        assert (balance.committed, balance.pending, balance.unaccounted) == (10, 9, 1)


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_entry_removed_without_being_booked(store: SqliteStore, configured: SqliteSettings) -> None:
    """An entry that was removed properly, but by somebody who keeps no ledger, is unaccounted for ever after."""
    shard, token = await filled(store, 10)
    change(configured, f"DELETE FROM settled WHERE id & {schema.END_OF_QUEUE} = 0", "UPDATE queues SET head = head + 1")

    page = await store.queue.read(token, b"", 5)
    await store.queue.remove(token, page.positions[-1], 5, delivered(page))

    for balance in (await store.ledger.balance(shard), *await store.ledger.balances([token])):
        assert (balance.removed, balance.pending, balance.unaccounted) == (Tally(delivered=5), 4, 1)


async def test_row_far_behind_the_front(store: SqliteStore, configured: SqliteSettings) -> None:
    """In a long queue a missing row is seen at once by who looks at all of it, and by others before it is delivered."""
    shard, token = await filled(store, 40_000)
    change(configured, f"DELETE FROM settled WHERE id & {schema.END_OF_QUEUE} = 30000")

    assert (await store.ledger.balance(shard)).unaccounted == 1
    assert [each.unaccounted for each in await store.ledger.balances([token])] == [0]

    page = await store.queue.read(token, b"", 25_000)
    await store.queue.remove(token, page.positions[-1], 25_000, delivered(page))
    assert [each.unaccounted for each in await store.ledger.balances([token])] == [1]


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_removal_that_begins_before_the_front(store: SqliteStore) -> None:
    """When a removal that was given up has been carried out, a larger one over it is refused, and counts nothing."""
    shard, token = await filled(store, 10)
    page = await store.queue.read(token, b"", 10)
    await store.queue.remove(token, page.positions[4], 4, Tally(delivered=4))  # and its answer is lost

    with pytest.raises(StoreUnavailable, match="its front is at 4"):
        await store.queue.remove(token, page.positions[7], 7, Tally(delivered=7))
    assert await store.ledger.balance(shard) == Balance(shard, 10, 6, Tally(delivered=4))

    again = await store.queue.read(token, b"", 10)
    await store.queue.remove(token, again.positions[3], 3, Tally(expired=3))
    assert await store.ledger.balance(shard) == Balance(shard, 10, 3, Tally(delivered=4, expired=3))


async def test_store_from_before_there_were_ledgers(
    configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that was in use before begins its ledger at its front of then, with what waits as committed."""
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:LEDGERS])
    prepare(configured)
    change(
        configured,
        "INSERT INTO topics (id, name, uid, shards, closed, attributes) VALUES (1, 't', 'u', 1, 0, x'80')",
        "INSERT INTO queues (id, topic, number, name, incarnation, head, tail, capacity_bytes)"
        " VALUES (1, 1, 0, 't', 'i', 3, 5, 1000000)",
        *(f"INSERT INTO entries (id, data) VALUES ({schema.rowid(1, i)}, x'00')" for i in (3, 4)),
    )
    monkeypatch.undo()

    async with SqliteStore(configured) as store:
        (shard,) = await store.catalog.shards()
        assert await store.ledger.balance(shard) == Balance(shard, 2, 2, Tally())
        token = await store.locks.acquire(shard, "w", QUIET_S)
        assert isinstance(token, LockToken)
        page = await store.queue.read(token, b"", 1)
        await store.queue.remove(token, page.positions[-1], 1, Tally(delivered=1))
        assert await store.ledger.balances([token]) == [Balance(shard, 2, 1, Tally(delivered=1))]
