"""The store contract: who holds a queue knows which of its entries have letters, whichever worker stored them."""

from __future__ import annotations

import pytest

from remora.model.errors import OwnershipLost, ShardGone
from remora.model.ledger import Tally
from remora.model.record import DeadLetter, Page
from remora.model.shard import LockToken
from support.stores import QUIET_S, Bench


def letters_of(token: LockToken, page: Page, cause: str = "too_large") -> list[DeadLetter]:
    """A letter for each of these entries."""
    places = [each.decode() for each in page.positions]
    queue, incarnation = token.shard.queue, token.incarnation
    return [
        DeadLetter(queue, incarnation, places[i], places[i + 1], cause, "why", 1, 1.0, 2.0, raw)
        for i, raw in enumerate(page.entries)
    ]


async def test_the_next_holder_learns_of_letters(bench: Bench) -> None:
    """Of entries that stand in the queue, in their order, and of no others, however many have left."""
    shard = await bench.queue()
    token = await bench.held(shard)
    for first in range(0, 300, 100):
        await bench.commit(shard, *(b"%d" % number for number in range(first, first + 100)))
        page = await bench.store.queue.read(token, b"", 100)
        await bench.store.letters.store(token, *letters_of(token, page))
        await bench.store.queue.remove(token, page.positions[-1], 100, Tally(dead_lettered=100))
    await bench.commit(shard, *(b"%d" % number for number in range(300, 310)))
    page = await bench.store.queue.read(token, b"", 10)
    letters = letters_of(token, page)
    await bench.store.letters.store(token, letters[1], letters[2])
    await bench.store.letters.store(token, letters[7])
    await bench.store.queue.remove(token, page.positions[2], 2, Tally(delivered=1, dead_lettered=1))
    await bench.store.locks.release(token)

    other = await bench.another()
    taken = await other.locks.acquire(shard, "w2", QUIET_S)

    assert isinstance(taken, LockToken)
    assert list(await other.letters.standing(taken)) == [letters[2], letters[7]]
    page = await other.queue.read(taken, b"", 10)
    await other.queue.remove(taken, page.positions[-1], 8, Tally(delivered=6, dead_lettered=2))
    assert list(await other.letters.standing(taken)) == []


async def test_a_holder_without_letters(bench: Bench) -> None:
    """In a queue where nothing was parked there are none."""
    shard = await bench.queue()
    await bench.commit(shard, b"entry")

    assert list(await bench.store.letters.standing(await bench.held(shard))) == []


async def test_an_earlier_holder_stores_no_letters_behind_a_later_one_s_back(bench: Bench) -> None:
    """When the next holder has asked, what the one before has still to store is refused, and its own is taken."""
    shard = await bench.queue()
    await bench.commit(shard, b"0", b"1", b"2")
    late, other = await bench.held(shard), await bench.another()
    letters = letters_of(late, await bench.store.queue.read(late, b"", 3))
    await bench.store.letters.store(late, letters[0])
    holder = await bench.store.locks.acquire(shard, "w2", QUIET_S)
    assert not isinstance(holder, LockToken)
    await other.locks.evict(shard, holder)
    taken = await other.locks.acquire(shard, "w2", QUIET_S)
    assert isinstance(taken, LockToken)
    assert list(await other.letters.standing(taken)) == letters[:1]

    with pytest.raises(OwnershipLost):
        await bench.store.letters.store(late, letters[1])
    await other.letters.store(taken, letters[2])

    assert [each async for each in other.letters.stored(shard.queue)] == [letters[0], letters[2]]


async def test_standing_letters_need_the_lock(bench: Bench) -> None:
    """Who does not hold the queue any more is told nothing; a later queue of the name begins with none."""
    shard = await bench.queue()
    await bench.commit(shard, b"0")
    token = await bench.held(shard)
    await bench.store.letters.store(token, *letters_of(token, await bench.store.queue.read(token, b"", 1)))
    await bench.store.locks.release(token)

    with pytest.raises(OwnershipLost):
        await bench.store.letters.standing(token)
    await bench.yard.delete(shard.queue)
    with pytest.raises(ShardGone):
        await bench.store.letters.standing(token)
    await bench.yard.make(shard.queue, 1 << 20)
    await bench.commit(shard, b"0")
    assert list(await bench.store.letters.standing(await bench.held(shard))) == []
