from __future__ import annotations

import asyncio

import pytest

from devkit.entries.entries import delivered
from remora.model.errors import OwnershipLost, ShardGone
from remora.model.ledger import Balance, Tally
from remora.model.shard import LockHolder, LockToken, Shard
from support.stores import QUIET_S, Bench, own_topic


def entries(count: int, size: int = 100) -> list[bytes]:
    return [b"%04d".ljust(size, b".") % i for i in range(count)]


async def looked_at(bench: Bench, token: LockToken) -> Balance:
    """A held shard's balance; both ways of looking agree about what left, and that nothing is missing or not."""
    (quick,) = await bench.store.ledger.balances([token])
    found = await bench.store.ledger.balance(token.shard)
    assert (quick.removed, quick.unaccounted) == (found.removed, found.unaccounted)
    return found


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_each_entry_is_under_one_cause(bench: Bench) -> None:
    """After commits and removals each entry waits or is under the cause that its removal named, and none is missing."""
    shard = await bench.queue()
    token = await bench.held(shard, "remora/h/b/1")
    assert await looked_at(bench, token) == Balance(shard, 0, 0, Tally())
    await bench.commit(shard, *entries(10))
    await bench.commit(shard, *entries(10, size=200))
    page = await bench.store.queue.read(token, b"", 20)

    first = Tally(delivered=4, dead_lettered=2, expired=1)
    await bench.store.queue.remove(token, page.positions[7], 7, first)
    balance = await looked_at(bench, token)
    assert (balance, balance.unaccounted) == (Balance(shard, 20, 13, first), 0)

    second = Tally(delivered=12, dropped=1)
    await bench.store.queue.remove(token, page.positions[20], 13, second)
    balance = await looked_at(bench, token)
    assert (balance, balance.unaccounted) == (Balance(shard, 20, 0, first + second), 0)


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_nothing_is_booked_without_a_removal(bench: Bench) -> None:
    """A removal that is repeated, refused or removes nothing leaves the ledger as it was."""
    shard, other = await bench.queue(), await bench.another()
    await bench.commit(shard, *entries(6))
    token = await bench.held(shard, "remora/h/b/1")
    page = await bench.store.queue.read(token, b"", 6)
    await bench.store.queue.remove(token, page.positions[2], 2, Tally(delivered=2))
    expected = await looked_at(bench, token)

    await bench.store.queue.remove(token, page.positions[2], 2, Tally(delivered=2))
    await bench.store.queue.remove(token, page.positions[2], 0, Tally())
    with pytest.raises(ValueError, match="tally"):
        await bench.store.queue.remove(token, page.positions[4], 2, Tally(delivered=1))
    assert await looked_at(bench, token) == expected

    holder = await other.locks.acquire(shard, "remora/h/b/2", QUIET_S)
    assert isinstance(holder, LockHolder)
    await other.locks.evict(shard, holder)
    winner = await other.locks.acquire(shard, "remora/h/b/2", QUIET_S)
    assert isinstance(winner, LockToken)
    with pytest.raises(OwnershipLost):
        await bench.store.queue.remove(token, page.positions[4], 2, Tally(delivered=2))
    assert await bench.store.ledger.balance(shard) == expected
    assert [each.removed for each in await other.ledger.balances([winner])] == [expected.removed]


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_ledger_over_turns_of_the_ring(bench: Bench) -> None:
    """However often entries of all sizes go round a small ring, not a byte and not an entry is lost from the ledger."""
    shard, made = await bench.queue(ring_bytes=5_000), 0
    token = await bench.held(shard, "remora/h/b/1")
    for turn in range(40):
        await bench.commit(shard, *entries(3, size=97 + turn * 13))
        made += 3
        page = await bench.store.queue.read(token, b"", 2 + turn % 3)
        await bench.store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))

        balance = await looked_at(bench, token)
        assert (balance.committed, balance.unaccounted) == (made, 0)


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_ledger_is_taken_over(bench: Bench) -> None:
    """The worker that takes a shard next, also after a restart of everything, goes on in the same ledger."""
    shard = await bench.queue()
    await bench.commit(shard, *entries(9))
    token = await bench.held(shard, "remora/h/b/1")
    page = await bench.store.queue.read(token, b"", 3)
    await bench.store.queue.remove(token, page.positions[-1], 3, Tally(dead_lettered=3))
    await bench.store.locks.release(token)

    store = await bench.reopened()
    again = await bench.held(shard, "remora/h/b/2")
    page = await store.queue.read(again, b"", 4)
    await store.queue.remove(again, page.positions[-1], 4, Tally(delivered=4))

    assert await looked_at(bench, again) == Balance(shard, 9, 2, Tally(delivered=4, dead_lettered=3))


async def test_ledger_ends_with_its_queue(bench: Bench) -> None:
    """A queue that is deleted has no ledger, and a later one of its name begins its own."""
    shard = await bench.queue()
    await bench.commit(shard, *entries(5))
    old = await bench.held(shard, "remora/h/b/1")
    page = await bench.store.queue.read(old, b"", 5)
    await bench.store.queue.remove(old, page.positions[-1], 5, Tally(delivered=5))
    await bench.yard.delete(shard.queue)

    assert await bench.store.ledger.balances([old]) == []
    with pytest.raises(ShardGone):
        await bench.store.ledger.balance(shard)

    await bench.yard.make(shard.queue, 1 << 20)
    await bench.commit(shard, *entries(2))
    new = await bench.held(shard, "remora/h/b/1")
    assert await looked_at(bench, new) == Balance(shard, 2, 2, Tally())
    assert await bench.store.ledger.balances([old]) == []


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_look_while_entries_come_and_go(bench: Bench) -> None:
    """A shard that is filled and emptied meanwhile is in balance at each single look, by either way of looking."""
    shard = await bench.queue(ring_bytes=60_000)
    token = await bench.held(shard, "remora/h/b/1")

    async def fill_and_empty() -> None:
        for _ in range(40):
            await bench.commit(shard, *entries(20))
            page = await bench.store.queue.read(token, b"", 15)
            await bench.store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))

    work, looks = asyncio.ensure_future(fill_and_empty()), 0
    while not work.done():
        for each in [await bench.store.ledger.balance(shard), *await bench.store.ledger.balances([token])]:
            assert each.unaccounted == 0, each
            looks += 1
        await asyncio.sleep(0.001)  # a look at an embedded store lets nobody else have a turn
    await work
    assert looks > 1
    assert (await looked_at(bench, token)).committed == 800


async def test_many_ledgers(bench: Bench) -> None:
    """One look at many shards has each of those that are held, with its own causes."""
    topic = await bench.store.own_topics.create(own_topic("many", 20))
    tokens = [await bench.held(shard, "remora/h/b/1") for shard in topic.all_shards()]
    for number in (3, 7):
        await bench.commit(topic.shard(number), *entries(number))
    page = await bench.store.queue.read(tokens[7], b"", 2)
    await bench.store.queue.remove(tokens[7], page.positions[-1], 2, Tally(expired=2))

    found = {each.shard: (each.pending > 0, each.removed) for each in await bench.store.ledger.balances(tokens)}

    expected = {shard: (False, Tally()) for shard in topic.all_shards()}
    expected |= {topic.shard(3): (True, Tally()), topic.shard(7): (True, Tally(expired=2))}
    assert found == expected


async def test_no_ledger_without_a_queue(bench: Bench) -> None:
    """Looking at the ledger of a queue that does not exist says so."""
    with pytest.raises(ShardGone):
        await bench.store.ledger.balance(Shard("nobody", bench.yard.origin))
