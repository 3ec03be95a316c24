"""Moving queues by hand: between radosgw and remora, and to a certain worker.

A claim breaks the holder's lock and takes it at once under a cookie that any worker knows and takes over. The
gateway notices at its next operation, a tenth of a second later, and stops; what it had under way may still
arrive at its endpoint.

A release is kept in the store, where the workers of all hosts read it every few seconds: they let the queue go and
leave it to radosgw until it is claimed.

A command announces itself in the list of workers, as one that takes nothing, and its row names the queue and the
receiver. The owner, on whichever host, sees the row as it sees those of workers, and hands the queue over as it does in
every planned move: the queue rests for a moment, and nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid

from remora.model.caller import Caller
from remora.model.errors import RemoraError
from remora.model.member import (
    COMMAND_COOKIE,
    WORKER_COOKIE,
    HandOverRequest,
    Member,
    WorkerCookie,
    claim_cookie,
    is_workers,
)
from remora.model.shard import LockHolder, LockToken, Origin, Shard
from remora.policy.ownership.membership import ROWS_PER_SECOND
from remora.ports.delivery import DeliveryStore
from remora.ports.store import ShardStore

CLAIM_S = 20.0
"""How long a claim waits for a worker; its lock lasts as long, so one that no worker takes leaves nothing behind."""

RELEASE_S = 10.0
"""How long a release waits for the worker that holds the queue to finish what it has under way."""

POLL_S = 0.2

MOVE_S = 30.0
"""How long a move may take, among workers that look at each other every second."""

LOOKS = 4
"""Where looks are further apart, a move may take this many of them."""


class NobodyCame(RemoraError):
    """No worker took the claimed queue."""


class HeldElsewhere(RemoraError):
    """A radosgw holds the queue."""


def is_held_by_worker(holder: LockHolder | None) -> bool:
    """Whether a lock is held by a worker of remora."""
    if holder is None or holder.lease_left_s <= 0:
        return False
    return is_workers(holder.cookie)


async def claim(store: DeliveryStore, shard: Shard, by: Caller) -> LockHolder:
    """Take a queue from its holder and give it to the first worker that comes; returns that worker's lock.

    A release of it is over. The worker reads from the claim's lock who asked for it, and logs that.
    """
    if shard.origin is Origin.RADOSGW:
        await store.releases.set_released([shard], released=False)
    return await _given_to_a_worker(store, shard, by)


async def _given_to_a_worker(store: DeliveryStore, shard: Shard, by: Caller) -> LockHolder:
    holder, cookie = (await store.inspection.stats(shard)).holder, claim_cookie(by, str(uuid.uuid4()))
    token: LockToken | None = None
    try:
        async with asyncio.timeout(CLAIM_S):
            while holder is None or not is_held_by_worker(holder):
                # Also where a gateway looks just between a worker's two steps: breaking this lock and taking its own.
                if token is None or (holder is not None and not holder.cookie.startswith(WORKER_COOKIE)):
                    if holder is not None:
                        await store.locks.evict(shard, holder)
                    answer = await store.locks.acquire(shard, cookie, CLAIM_S)
                    if isinstance(answer, LockHolder):
                        holder = answer
                        continue
                    token = answer
                await asyncio.sleep(POLL_S)
                holder = (await store.inspection.stats(shard)).holder
            return holder
    except TimeoutError as exc:
        raise NobodyCame(f"no running worker took {shard} within {CLAIM_S:g} s; it is free now") from exc
    finally:
        if token is not None:
            await store.locks.release(token)


async def release(store: DeliveryStore, shard: Shard) -> LockHolder | None:
    """Have all workers leave a queue until it is claimed; returns who held it, None when it was free.

    The worker that holds it finishes what it has under way; one that takes too long over that loses its lock, and so
    does a worker that took the queue meanwhile, before it read of the release. A radosgw keeps the lock that it has.
    To a queue of remora's own no radosgw comes: there the lock is broken, and the queue taken again.

    A radosgw knows nothing of spilled entries: a queue that has some stays with its worker until they are delivered.
    """
    left = holder = (await store.inspection.stats(shard)).holder
    if shard.origin is Origin.RADOSGW:
        await store.releases.set_released([shard], released=True)
        if shard not in await store.releases.released():
            return holder
        left = await _wait_while_held(store, shard)
        if left is not None and shard not in await store.releases.released():
            return holder  # entries were spilled meanwhile
    if left is not None:
        await store.locks.evict(shard, left)
    return holder


async def drop_spilled(store: ShardStore, shard: Shard, by: Caller) -> int:
    """Give up the spilled entries of a queue that were exported, under its lock, which a worker loses for that.

    A worker gets it back at once: one whose lock was broken would stay away, and a radosgw come in its place.
    """
    was_held = False
    cookie = f"{COMMAND_COOKIE}{uuid.uuid4()}"
    async with asyncio.timeout(CLAIM_S):
        while isinstance(answer := await store.locks.acquire(shard, cookie, CLAIM_S), LockHolder):
            if not is_workers(answer.cookie):
                raise HeldElsewhere(f"{shard} is held by {answer.entity}, which is no worker of remora")
            was_held = True
            await store.locks.evict(shard, answer)
    try:
        count = await store.spill.drop(answer)
    finally:
        await store.locks.release(answer)
    if was_held and shard not in await store.releases.released():
        with contextlib.suppress(NobodyCame):
            await _given_to_a_worker(store, shard, by)
    return count


async def _wait_while_held(store: DeliveryStore, shard: Shard) -> LockHolder | None:
    """Wait until no worker holds the queue, for a moment only; returns the worker that holds it still."""
    left: LockHolder | None = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RELEASE_S):
            while True:
                left = (await store.inspection.stats(shard)).holder
                if left is None or not is_workers(left.cookie):
                    return None
                await asyncio.sleep(POLL_S)
    return left


class MoveRefused(RemoraError):
    """A queue that cannot be moved so, or that no worker moved in time."""


def worker_named(rows: list[Member], name: str) -> Member:
    """Returns the worker whose cookie or id begins like this. Raises MoveRefused."""
    found = [each for each in rows if name in (each.cookie, _id(each))]
    found = found or [each for each in rows if _id(each).startswith(name)]
    if not found:
        raise MoveRefused(f"no live worker is called {name!r}; `remora balance show` shows them")
    if len(found) > 1:
        raise MoveRefused(f"{len(found)} live workers begin with {name!r}: give more of the name")
    return found[0]


async def move(store: DeliveryStore, shard: Shard, name: str) -> LockHolder:
    """Have the owner of a shard hand it to the worker of this name; returns that worker's lock. Raises MoveRefused."""
    rows = [each for each in await store.members.live() if not each.cookie.startswith(COMMAND_COOKIE)]
    receiver = worker_named(rows, name)
    holder = (await store.inspection.stats(shard)).holder
    if holder is None or holder.lease_left_s <= 0 or not is_workers(holder.cookie):
        raise MoveRefused(f"no worker holds {shard}, so none can hand it over")
    if holder.cookie == receiver.cookie:
        raise MoveRefused(f"{shard} is held by that worker already")
    if receiver.draining:
        raise MoveRefused("that worker drains, and takes nothing")
    within_s = max(MOVE_S, LOOKS * len(rows) / ROWS_PER_SECOND)
    cookie = f"{COMMAND_COOKIE}{uuid.uuid4()}"
    row = Member(cookie, receiver.host, draining=True, asks=(HandOverRequest(shard, receiver.cookie),))
    try:
        async with asyncio.timeout(within_s):
            await store.members.announce(row, within_s)
            while True:
                holder = (await store.inspection.stats(shard)).holder
                if holder is not None and holder.cookie == receiver.cookie:
                    return holder
                await asyncio.sleep(POLL_S)
    except TimeoutError as exc:
        raise MoveRefused(f"{shard} was not handed over within {within_s:g} s; its owner may be busy or older") from exc
    finally:
        await store.members.withdraw(cookie)


def _id(member: Member) -> str:
    parsed = WorkerCookie.parse(member.cookie)
    return parsed.worker if parsed else member.cookie
