"""Listings of the embedded store whose entries are large."""

from __future__ import annotations

import pytest

from remora.config import SqliteSettings
from remora.model.errors import StoreDamaged
from remora.model.shard import LockToken
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.queues.queue import MOST_BYTES
from remora.storage.sqlite.tables import schema
from support.sqlite import append
from support.stores import change, held, own_topic

SIZE = 64_000
COUNT = 400


async def filled(store: SqliteStore) -> tuple[LockToken, list[bytes]]:
    """A held queue, and its entries, which are large."""
    shard = (await store.own_topics.create(own_topic("t", 1))).shard(0)
    payloads = [b"%06d" % i * (SIZE // 6) for i in range(COUNT)]
    await append(store, shard, *payloads)
    return await held(store, shard), payloads


async def read_all(store: SqliteStore, token: LockToken, seen: list[bytes]) -> None:
    """List the queue to its end, and add the entries to those that were seen."""
    start, truncated = b"", True
    while truncated:
        page = await store.queue.read(token, start, 1024)
        assert page.nbytes < MOST_BYTES + 32 * SIZE
        assert len(page.positions) == len(page.entries) + 1
        seen += page.entries
        start, truncated = page.positions[-1], page.truncated


async def test_a_listing_of_large_entries_ends_early(store: SqliteStore) -> None:
    """However many entries are asked for, a listing has about this many bytes at most, and the next one goes on."""
    token, payloads = await filled(store)

    seen: list[bytes] = []
    await read_all(store, token, seen)

    assert seen == payloads


@pytest.mark.parametrize("place", [0, 50, COUNT - 1])
async def test_a_missing_entry_among_large_ones_is_noticed(
    store: SqliteStore, configured: SqliteSettings, place: int
) -> None:
    """Where a listing ends early an entry that is gone makes an error all the same, and moves no other one's place."""
    token, payloads = await filled(store)
    change(configured, f"DELETE FROM settled WHERE id & {schema.END_OF_QUEUE} = {place}")

    seen: list[bytes] = []
    with pytest.raises(StoreDamaged, match="lost entries"):
        await read_all(store, token, seen)

    assert seen == payloads[: len(seen)]
    assert len(seen) <= place
