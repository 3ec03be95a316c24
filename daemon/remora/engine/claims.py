"""Moving a queue between radosgw and remora by hand.

A claim breaks the holder's lock and takes it at once under a cookie that any worker knows and takes over. The
gateway notices at its next operation, a tenth of a second later, and stops; what it had under way may still
arrive at its endpoint. A worker that is evicted stays away for longer than a gateway needs to come for the queue.
"""

from __future__ import annotations

import asyncio
import uuid

from remora.model import member
from remora.model.errors import RemoraError
from remora.model.member import CLAIM_COOKIE
from remora.model.shard import Hold, LockHolder, Shard
from remora.ports import DeliveryStore

CLAIM_S = 20.0
"""How long a claim waits for a worker; its lock lasts as long, so a claim that nobody takes leaves nothing behind."""


class NobodyCame(RemoraError):
    """No worker took the claimed queue."""


def is_workers(holder: LockHolder | None) -> bool:
    """Whether a lock is held by a worker of remora."""
    if holder is None or holder.lease_left_s <= 0:
        return False
    return member.is_workers(holder.cookie)


async def claim(store: DeliveryStore, shard: Shard) -> LockHolder:
    """Take a queue from whoever holds it and give it to the first worker that comes; returns that worker's lock."""
    holder = (await store.stats(shard)).holder
    if holder is not None and is_workers(holder):
        return holder
    hold = await _seize(store, shard, holder)
    try:
        async with asyncio.timeout(CLAIM_S):
            return await _taken(store, shard)
    except TimeoutError as exc:
        raise NobodyCame(f"no running worker took {shard} within {CLAIM_S:g} s; it is free now") from exc
    finally:
        await store.release(hold)


async def evict(store: DeliveryStore, shard: Shard) -> LockHolder | None:
    """Break the lock of whoever holds a queue; returns who that was, None when it was free."""
    holder = (await store.stats(shard)).holder
    if holder is None:
        return None
    await store.evict(shard, holder)
    return holder


async def _seize(store: DeliveryStore, shard: Shard, holder: LockHolder | None) -> Hold:
    """Break and lock until it is ours; between the two steps anybody may come in, so it is repeated."""
    while True:
        if holder is not None:
            await store.evict(shard, holder)
        answer = await store.acquire(shard, CLAIM_COOKIE + str(uuid.uuid4()), CLAIM_S)
        if isinstance(answer, Hold):
            return answer
        holder = answer


async def _taken(store: DeliveryStore, shard: Shard) -> LockHolder:
    while True:
        holder = (await store.stats(shard)).holder
        if holder is not None and is_workers(holder):
            return holder
        await asyncio.sleep(0.2)
