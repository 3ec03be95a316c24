"""Moving a queue to a certain worker by hand.

A command announces itself in the list of workers, as one that takes nothing, and its row names the queue and the
receiver. The owner, on whichever host, sees the row as it sees those of workers, and hands the queue over as it does in
every planned move: the queue rests for a moment, and nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import uuid

from remora.model.errors import RemoraError
from remora.model.member import COMMAND_COOKIE, HandOverRequest, Member, WorkerCookie, is_workers
from remora.model.shard import LockHolder, Shard
from remora.policy.membership import ROWS_PER_SECOND
from remora.ports.delivery import DeliveryStore

MOVE_S = 30.0
"""How long a move may take, among workers that look at each other every second."""

LOOKS = 4
"""Where looks are further apart, a move may take this many of them."""

POLL_S = 0.2


class MoveRefused(RemoraError):
    """A queue that cannot be moved so, or that no worker moved in time."""


def worker_named(rows: list[Member], name: str) -> Member:
    """The worker with this cookie or id, of which the beginning is enough. Raises MoveRefused."""
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
            return await _held_by(store, shard, receiver.cookie)
    except TimeoutError as exc:
        raise MoveRefused(f"{shard} was not handed over within {within_s:g} s; its owner may be busy or older") from exc
    finally:
        await store.members.withdraw(cookie)


async def _held_by(store: DeliveryStore, shard: Shard, cookie: str) -> LockHolder:
    while True:
        holder = (await store.inspection.stats(shard)).holder
        if holder is not None and holder.cookie == cookie:
            return holder
        await asyncio.sleep(POLL_S)


def _id(member: Member) -> str:
    parsed = WorkerCookie.parse(member.cookie)
    return parsed.worker if parsed else member.cookie
