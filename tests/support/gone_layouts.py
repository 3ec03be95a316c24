"""Layouts of a topic on RADOS that are delivered and go, while something else stands still, and time that passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pytest

from devkit.waits import until
from remora.model.ledger import Tally
from remora.model.record import Page
from remora.model.shard import LockToken, Shard
from remora.model.topic import Topic
from remora.storage.rados import RadosStore
from support.stores import QUIET_S, expire


def cases(numbers: Iterable[int], at_the_gate: Sequence[int]) -> list[object]:
    """The writes before which something stands still; a few of them are enough for each change."""
    full = pytest.mark.full("the same before other writes")
    return [number if number in at_the_gate else pytest.param(number, marks=full) for number in numbers]


async def deliver(store: RadosStore, shards: Sequence[Shard]) -> list[bytes]:
    """What is delivered of these shards, in turn, when nothing holds them back; all of it is removed."""
    found: list[bytes] = []
    for shard in shards:
        token = await store.locks.acquire(shard, "w", QUIET_S)
        assert isinstance(token, LockToken)
        page = await until(partial(_shown, store, token))
        assert page is not None
        if page.entries:
            await store.queue.remove(token, page.positions[-1], len(page.entries), Tally(delivered=len(page.entries)))
        found += page.entries
        await store.locks.release(token)
    return found


async def _shown(store: RadosStore, token: LockToken) -> Page | None:
    """The page of a shard that nothing holds back any longer."""
    page = await store.queue.read(token, b"", 1024)
    return None if page.held_back else page


async def give_up_reservations(store: RadosStore, topic: Topic) -> None:
    """What the holders of shards do to reservations of two minutes, done to all of them."""
    for shard in topic.all_shards():
        token = await store.locks.acquire(shard, "w", QUIET_S)
        assert isinstance(token, LockToken)
        await expire(store, token, -60)
        await store.locks.release(token)


async def pass_time(store: RadosStore, seconds: float) -> None:
    """Have the store see all that is scheduled now, and then be this much older by its monotonic clock."""
    recovery = store._recovery
    await recovery.look()
    before = recovery._clock
    recovery._clock = lambda: before() + seconds


async def pass_by(store: RadosStore, topic: Topic, shards: int) -> list[bytes]:
    """A whole change while something stands still; returns what was delivered of the former layout."""
    await give_up_reservations(store, topic)
    moved = await store.own_topics.reshard(topic, shards)
    found = await deliver(store, moved.former_shards())
    if moved.former:
        await until(lambda: store.own_topics.forget_former(moved))
    return found
