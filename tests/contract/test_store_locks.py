"""The store contract: at most one worker holds a queue, for at most one lease unless it renews."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from devkit.waits import until
from remora.model.errors import OwnershipLost, ShardGone
from remora.model.ledger import Tally
from remora.model.shard import LockHolder, LockToken, Shard
from remora.ports.store import ShardStore
from support.stores import QUIET_S, Bench, expire, renew

SHORT_S = 0.6
LONG_S, SLACK_S = 600.0, 200.0
"""A lease, and how much of it a test may use up: half of it, before it is extended, is less than the rest."""


def taking(store: ShardStore, shard: Shard) -> Callable[[], Awaitable[LockToken | None]]:
    """A condition for `until`: the lock, once it is to be had."""

    async def take() -> LockToken | None:
        answer = await store.locks.acquire(shard, "w2", QUIET_S)
        return answer if isinstance(answer, LockToken) else None

    return take


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_only_one_holds(bench: Bench) -> None:
    """A held lock is refused to everybody else, and the refusal names the holder and what is left of its lease."""
    shard, other = await bench.queue(), await bench.another()
    token = await bench.held(shard, "w1", LONG_S)

    answers = [
        await other.locks.acquire(shard, "w2", QUIET_S),
        await other.locks.acquire(shard, token.cookie, QUIET_S),  # the cookie alone is no proof
        await bench.store.locks.acquire(shard, "w3", QUIET_S),
    ]

    for answer in answers:
        assert isinstance(answer, LockHolder)
        assert answer.cookie == "w1"
        assert LONG_S - SLACK_S < answer.lease_left_s <= LONG_S + 1


async def test_one_of_many_wins(bench: Bench) -> None:
    """Of many that ask at once exactly one gets the lock."""
    shard, other = await bench.queue(), await bench.another()

    answers = await asyncio.gather(
        *(store.locks.acquire(shard, f"w{i}", QUIET_S) for i in range(10) for store in (bench.store, other))
    )

    assert sum(isinstance(answer, LockToken) for answer in answers) == 1


async def test_acquire_extends_ones_own(bench: Bench) -> None:
    """The holder that asks again gets the same hold with a new lease."""
    shard, other = await bench.queue(), await bench.another()
    token = await bench.held(shard, "w1", LONG_S / 2)

    assert await bench.held(shard, "w1", LONG_S) == token

    holder = await other.locks.acquire(shard, "w2", 1)
    assert isinstance(holder, LockHolder)
    assert holder.lease_left_s > LONG_S - SLACK_S


async def test_renewal_extends(bench: Bench) -> None:
    """A renewed lock outlives its first lease."""
    shard, other = await bench.queue(), await bench.another()
    token = await bench.held(shard, "w1", LONG_S / 2)

    await renew(bench.store, token, LONG_S)

    holder = await other.locks.acquire(shard, "w2", 1)
    assert isinstance(holder, LockHolder)
    assert holder.lease_left_s > LONG_S - SLACK_S


async def test_take_over_after_expiry(bench: Bench) -> None:
    """A lease that ran out is taken over by the next who asks, and not before it ran out."""
    shard, other = await bench.queue(), await bench.another()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await bench.held(shard, "w1", SHORT_S)

    await until(taking(other, shard))

    assert loop.time() - begin >= SHORT_S * 0.9


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_late_renewal_is_refused(bench: Bench) -> None:
    """A lease that ran out is not renewed, though nobody took it, and the refused renewal leaves no lock behind."""
    shard, other = await bench.queue(), await bench.another()
    token = await bench.held(shard, "w1", SHORT_S)

    async def refused() -> bool:
        try:
            await bench.store.queue.read(token, b"", 1)
        except OwnershipLost:
            return True
        return False

    await until(refused)
    with pytest.raises(OwnershipLost):
        await renew(bench.store, token, QUIET_S)
    (answer,) = await bench.store.locks.renew_all([token], QUIET_S)

    assert isinstance(answer, OwnershipLost)
    assert isinstance(await other.locks.acquire(shard, "w2", 1), LockToken)


@pytest.mark.guarantee("no-loss")
async def test_loser_can_do_nothing(bench: Bench) -> None:
    """A worker that lost the lock can neither list nor remove nor expire nor renew, and nothing changes by trying."""
    shard, other = await bench.queue(), await bench.another()
    await bench.commit(shard, b"a", b"b")
    reservation = await bench.store.two_phase.reserve(shard, 1, 10)
    token = await bench.held(shard)
    page = await bench.store.queue.read(token, b"", 2)
    holder = await other.locks.acquire(shard, "w2", QUIET_S)
    assert isinstance(holder, LockHolder)
    await other.locks.evict(shard, holder)
    winner = await other.locks.acquire(shard, "w2", QUIET_S)
    assert isinstance(winner, LockToken)

    for attempt in (
        lambda: bench.store.queue.remove(token, page.positions[-1], 2, Tally(delivered=2)),
        lambda: bench.store.queue.read(token, b"", 1),
        lambda: expire(bench.store, token, -60),
        lambda: renew(bench.store, token, QUIET_S),
    ):
        with pytest.raises(OwnershipLost):
            await attempt()

    assert (await other.queue.read(winner, b"", 9)).entries == [b"a", b"b"]
    await other.two_phase.commit(shard, reservation, [b"c"])
    assert (await other.queue.read(winner, b"", 9)).entries == [b"a", b"b", b"c"]
    assert winner.incarnation == token.incarnation


async def test_a_lock_is_of_one_cookie_and_one_process(bench: Bench) -> None:
    """A hold is void for another process that shows it, and once another worker of the same process has the lock: it
    can neither list, nor renew, nor release that."""
    shard, other = await bench.queue(), await bench.another()
    await bench.commit(shard, b"a")
    token = await bench.held(shard, "w1")
    with pytest.raises(OwnershipLost):
        await other.queue.read(token, b"", 1)
    holder = await other.locks.acquire(shard, "w2", QUIET_S)
    assert isinstance(holder, LockHolder)
    await other.locks.evict(shard, holder)
    successor = await bench.held(shard, "w2")

    for attempt in (lambda: bench.store.queue.read(token, b"", 1), lambda: renew(bench.store, token, QUIET_S)):
        with pytest.raises(OwnershipLost):
            await attempt()
    await bench.store.locks.release(token)

    assert (await bench.store.queue.read(successor, b"", 9)).entries == [b"a"]


async def test_release_lets_the_next_in(bench: Bench) -> None:
    """After a release the lock is free at once; releasing again, or without holding, changes nothing."""
    shard, other = await bench.queue(), await bench.another()
    token = await bench.held(shard)

    await bench.store.locks.release(token)
    winner = await other.locks.acquire(shard, "w2", QUIET_S)
    assert isinstance(winner, LockToken)
    await bench.store.locks.release(token)

    await other.queue.read(winner, b"", 1)
    with pytest.raises(OwnershipLost):
        await bench.store.queue.read(token, b"", 1)


async def test_evict_hits_one_holder(bench: Bench) -> None:
    """Evicting breaks exactly the named holder's lock: one that came later keeps it."""
    shard, other = await bench.queue(), await bench.another()
    await bench.held(shard, "w1")
    named = await other.locks.acquire(shard, "w2", QUIET_S)
    assert isinstance(named, LockHolder)

    await other.locks.evict(shard, named)
    winner = await other.locks.acquire(shard, "w2", QUIET_S)
    assert isinstance(winner, LockToken)
    await bench.store.locks.evict(shard, named)

    await other.queue.read(winner, b"", 1)


async def test_holder_is_shown(bench: Bench) -> None:
    """A look from outside tells who holds a queue, and that nobody does."""
    shard = await bench.queue()
    assert (await bench.store.inspection.stats(shard)).holder is None

    token = await bench.held(shard, "w1", LONG_S)
    holder = (await bench.store.inspection.stats(shard)).holder
    assert holder is not None
    assert (holder.cookie, holder.lease_left_s > LONG_S - SLACK_S) == ("w1", True)

    await bench.store.locks.release(token)
    assert (await bench.store.inspection.stats(shard)).holder is None


async def test_many_are_renewed_together(bench: Bench) -> None:
    """Renewing several locks extends those that are held, and says of each other one what became of it."""
    shards, other = [await bench.queue() for _ in range(5)], await bench.another()
    tokens = [await bench.held(shard, "w1", LONG_S / 2) for shard in shards]
    holder = await other.locks.acquire(shards[1], "w2", QUIET_S)
    assert isinstance(holder, LockHolder)
    for number in (1, 4):
        await other.locks.evict(shards[number], holder)
    await other.locks.acquire(shards[1], "w2", QUIET_S)
    await bench.held(shards[4], "another cookie")
    await bench.yard.delete(shards[3].queue)

    answers = await bench.store.locks.renew_all(tokens, LONG_S)

    assert [type(answer) for answer in answers] == [type(None), OwnershipLost, type(None), ShardGone, OwnershipLost]
    for number in (0, 2):
        holder = await other.locks.acquire(shards[number], "w2", QUIET_S)
        assert isinstance(holder, LockHolder)
        assert holder.lease_left_s > LONG_S - SLACK_S
    assert await bench.store.locks.renew_all([], LONG_S) == []


async def test_renewal_of_a_successor(bench: Bench) -> None:
    """A hold on a deleted queue extends no lock of the queue that has its name now, and says that it is gone."""
    shard = await bench.queue()
    old = await bench.held(shard)
    await bench.yard.delete(shard.queue)
    await bench.yard.make(shard.queue, 1 << 20)
    new = await bench.held(shard, old.cookie)

    answers = await bench.store.locks.renew_all([old, new], QUIET_S)

    assert [type(answer) for answer in answers] == [ShardGone, type(None)]
