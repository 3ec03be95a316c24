"""Letters on RADOS, where they and their queue are two objects: who stores them, and what tells that there are any."""

from __future__ import annotations

import pytest

from devkit.clusters.ceph import Gateway, reached
from remora.config import RadosSettings
from remora.model.errors import StoreUnavailable
from remora.model.ledger import Tally
from remora.model.shard import LockToken, Shard
from remora.storage.librados import ReadOp
from remora.storage.rados import RadosStore
from remora.storage.rados.queues.dead_letters import RadosDeadLetters, _HeldLetters
from support.letters import letters_of

pytestmark = pytest.mark.ceph

SHARD = Shard("q")


async def filled(store: RadosStore, gateway: Gateway, count: int) -> LockToken:
    """A queue of this many entries, held."""
    gateway.make_queue("q", 1 << 20)
    await store.two_phase.commit(SHARD, await store.two_phase.reserve(SHARD, count, count), [b"x"] * count)
    token = await store.locks.acquire(SHARD, "w", 90)
    assert isinstance(token, LockToken)
    return token


async def announced(store: RadosStore) -> list[str]:
    """The announcements in the queue object."""
    operation = ReadOp().assert_exists()
    found = operation.omap_page("", "remora.parking.", 100)
    letters: RadosDeadLetters = store.letters
    await letters._connection.run(operation, "q", "looking", locator=letters._locator(SHARD))
    return sorted(found.values)


async def test_announcements_go_with_their_entries(settings: RadosSettings, gateway: Gateway) -> None:
    """A batch of letters is announced by the last of them, and its removal takes the announcement along; an entry that
    is left keeps its own."""
    async with reached(settings) as store:
        token = await filled(store, gateway, 4)
        page = await store.queue.read(token, b"", 4)
        letters = letters_of(token, page)
        assert await announced(store) == []

        await store.letters.store(token, *letters[:2])
        await store.letters.store(token, letters[1])
        await store.letters.store(token, letters[3])
        assert await announced(store) == [f"remora.parking.{letters[i].position}" for i in (1, 3)]

        await store.queue.remove(token, page.positions[2], 2, Tally(expired=2))
        assert await announced(store) == [f"remora.parking.{letters[3].position}"]
        await store.queue.remove(token, page.positions[4], 2, Tally(delivered=1, expired=1))
        assert await announced(store) == []


async def test_a_name_that_comes_late_is_replaced(settings: RadosSettings, gateway: Gateway) -> None:
    """Where an earlier holder's name is written over that of the holder, a letter is refused once and then stored."""
    async with reached(settings) as store:
        token = await filled(store, gateway, 2)
        letters = letters_of(token, await store.queue.read(token, b"", 2))
        await store.letters.store(token, letters[0])
        storage: RadosDeadLetters = store.letters
        await storage._claim(token, _HeldLetters())

        with pytest.raises(StoreUnavailable):
            await store.letters.store(token, letters[1])
        await store.letters.store(token, letters[1])

        assert [each async for each in store.letters.stored("q")] == letters
