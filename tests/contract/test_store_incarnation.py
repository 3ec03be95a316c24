"""The store contract: a deleted queue is gone, stays gone, and is never taken for a later one of its name."""

from __future__ import annotations

import pytest

from remora.model.errors import ShardGone
from remora.model.ledger import Tally
from remora.model.record import DeadLetter
from remora.model.shard import LockToken, Shard
from support.stores import QUIET_S, Bench, expire, renew


async def test_deleted_queue_stays_gone(bench: Bench) -> None:
    """On a deleted queue every call says so, or does nothing where that is promised, and none brings it back."""
    shard = await bench.queue()
    await bench.commit(shard, b"a")
    token = await bench.held(shard)
    page = await bench.store.queue.read(token, b"", 1)
    holder = (await bench.store.inspection.stats(shard)).holder
    assert holder is not None
    await bench.yard.delete(shard.queue)

    for attempt in (
        lambda: bench.store.queue.remove(token, page.positions[-1], 1, Tally(delivered=1)),
        lambda: bench.store.queue.read(token, b"", 1),
        lambda: renew(bench.store, token, QUIET_S),
        lambda: bench.store.locks.acquire(shard, "w1", QUIET_S),
        lambda: bench.store.catalog.peek(shard),
        lambda: bench.store.inspection.stats(shard),
        lambda: bench.store.two_phase.reserve(shard, 1, 1),
        lambda: bench.store.two_phase.commit(shard, 1, [b"x"]),
        lambda: bench.store.two_phase.abort(shard, 1),
        lambda: bench.contents(shard),
    ):
        with pytest.raises(ShardGone):
            await attempt()
    await bench.store.locks.release(token)
    await bench.store.locks.evict(shard, holder)

    assert not await bench.yard.exists(shard.queue)
    assert shard not in await bench.store.catalog.shards()


@pytest.mark.guarantee("no-loss")
async def test_new_queue_of_the_name_is_another(bench: Bench) -> None:
    """A hold on a deleted queue is worth nothing on its successor, even where positions and cookie agree."""
    shard = await bench.queue()
    await bench.commit(shard, b"old")
    old = await bench.held(shard)
    page = await bench.store.queue.read(old, b"", 1)
    await bench.yard.delete(shard.queue)
    await bench.yard.make(shard.queue, 1 << 20)
    await bench.commit(shard, b"new")

    with pytest.raises(ShardGone):
        await renew(bench.store, old, QUIET_S)
    new = await bench.held(shard, old.cookie)
    with pytest.raises(ShardGone):
        await bench.store.queue.remove(old, page.positions[-1], 1, Tally(delivered=1))
    with pytest.raises(ShardGone):
        await bench.store.queue.read(old, b"", 9)
    await bench.store.two_phase.reserve(shard, 1, 10)  # a store may pass over queues that have no reservation
    with pytest.raises(ShardGone):
        await expire(bench.store, old, 0)
    await bench.store.locks.release(old)

    assert new.incarnation != old.incarnation
    assert (await bench.store.queue.read(new, b"", 9)).entries == [b"new"]


async def test_incarnation_lasts(bench: Bench) -> None:
    """Every holder of a queue, one after the other, sees the same incarnation."""
    shard, other = await bench.queue(), await bench.another()

    first = await bench.held(shard)
    await bench.store.locks.release(first)
    second = await other.locks.acquire(shard, "w2", QUIET_S)
    assert isinstance(second, LockToken)

    assert second.incarnation == first.incarnation
    assert first.incarnation
    assert ":" not in first.incarnation


async def test_unknown_queue(bench: Bench) -> None:
    """A queue that never was is gone too, and asking for its lock does not make it."""
    shard = Shard("never-made", bench.yard.origin)

    with pytest.raises(ShardGone):
        await bench.store.locks.acquire(shard, "w1", QUIET_S)

    assert not await bench.yard.exists(shard.queue)


async def test_letters_outlive_their_queue(bench: Bench) -> None:
    """What was parked stays readable when its queue is deleted."""
    shard = await bench.queue()
    token = await bench.held(shard)
    letter = DeadLetter(shard.queue, token.incarnation, "0/1", "0/2", "refused", "why", 1, 1.0, 2.0, b"raw")
    await bench.store.letters.store(token, letter)

    await bench.yard.delete(shard.queue)

    assert [each async for each in bench.store.letters.stored(shard.queue)] == [letter]
