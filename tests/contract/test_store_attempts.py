"""The store contract: how often entries were tried is known to the next holder of their queue."""

from __future__ import annotations

import pytest

from remora.model.errors import OwnershipLost, ShardGone
from remora.model.ledger import Tally
from remora.model.record import Attempt
from remora.model.shard import LockToken
from support.stores import QUIET_S, Bench


async def test_attempts_outlast_their_holder(bench: Bench) -> None:
    """The next holder, another worker, reads what the last one noted, and only what it noted last."""
    shard = await bench.queue()
    await bench.commit(shard, b"a", b"b")
    token = await bench.held(shard)
    first, second, _ = (await bench.store.queue.read(token, b"", 2)).positions
    await bench.store.attempts.note(token, {second: Attempt(7, 1.0)})
    await bench.store.attempts.note(token, {first: Attempt(2, 1_700_000_000.25)})
    await bench.store.locks.release(token)

    other = await bench.another()
    taken = await other.locks.acquire(shard, "w2", QUIET_S)

    assert isinstance(taken, LockToken)
    assert await other.attempts.noted(taken) == {first: Attempt(2, 1_700_000_000.25)}


async def test_attempts_go_with_their_entries(bench: Bench) -> None:
    """They are there while any of their entries is, and gone when the last one was removed."""
    shard = await bench.queue()
    await bench.commit(shard, b"a", b"b", b"c")
    token = await bench.held(shard)
    positions = (await bench.store.queue.read(token, b"", 3)).positions
    noted = {positions[0]: Attempt(1, 1.0), positions[1]: Attempt(1, 1.0)}
    await bench.store.attempts.note(token, noted)

    await bench.store.queue.remove(token, positions[1], 1, Tally(delivered=1))
    assert (await bench.store.attempts.noted(token))[positions[1]] == Attempt(1, 1.0)
    await bench.store.queue.remove(token, positions[2], 1, Tally(delivered=1))
    assert await bench.store.attempts.noted(token) == {}
    assert (await bench.store.queue.read(token, b"", 3)).entries == [b"c"]


async def test_attempts_of_a_new_holder_go_too(bench: Bench) -> None:
    """A worker that read what another had noted removes it with the entries."""
    shard = await bench.queue()
    await bench.commit(shard, b"a")
    token = await bench.held(shard)
    noted = {(await bench.store.queue.read(token, b"", 1)).positions[0]: Attempt(3, 5.0)}
    await bench.store.attempts.note(token, noted)
    await bench.store.locks.release(token)

    token = await bench.held(shard, "w2")
    assert await bench.store.attempts.noted(token) == noted
    page = await bench.store.queue.read(token, b"", 1)
    await bench.store.queue.remove(token, page.positions[-1], 1, Tally(delivered=1))
    assert await bench.store.attempts.noted(token) == {}


async def test_attempts_need_the_lock(bench: Bench) -> None:
    """Who does not hold the queue any more can neither note nor read, and changes nothing."""
    shard = await bench.queue()
    await bench.commit(shard, b"a")
    token = await bench.held(shard)
    first, _ = (await bench.store.queue.read(token, b"", 1)).positions
    await bench.store.attempts.note(token, {first: Attempt(1, 1.0)})
    await bench.store.locks.release(token)

    with pytest.raises(OwnershipLost):
        await bench.store.attempts.note(token, {first: Attempt(9, 1.0)})
    with pytest.raises(OwnershipLost):
        await bench.store.attempts.noted(token)

    token = await bench.held(shard, "w2")
    assert await bench.store.attempts.noted(token) == {first: Attempt(1, 1.0)}
    await bench.store.attempts.note(token, {})
    assert await bench.store.attempts.noted(token) == {}


async def test_attempts_of_a_deleted_queue(bench: Bench) -> None:
    """A later queue of the name begins with none, although positions agree."""
    shard = await bench.queue()
    await bench.commit(shard, b"old")
    token = await bench.held(shard)
    first, _ = (await bench.store.queue.read(token, b"", 1)).positions
    await bench.store.attempts.note(token, {first: Attempt(1, 1.0)})
    await bench.yard.delete(shard.queue)

    with pytest.raises(ShardGone):
        await bench.store.attempts.note(token, {first: Attempt(2, 1.0)})
    await bench.yard.make(shard.queue, 1 << 20)
    await bench.commit(shard, b"new")

    assert await bench.store.attempts.noted(await bench.held(shard)) == {}
