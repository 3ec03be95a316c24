"""A queue with spilled entries stays with remora, in whichever order its guard, a release and its first run come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from devkit.clusters.ceph import Gateway, reached
from remora.config import RadosSettings
from remora.model.errors import StoreUnavailable
from remora.model.ledger import Tally
from remora.model.shard import LockToken, Shard
from remora.storage.librados import ObjectOperation, WriteOp
from remora.storage.rados import RadosStore
from support.stores import own_topic, spread

rados = pytest.importorskip("rados")

pytestmark = pytest.mark.ceph

Q = Shard("q")
MOVER, LIST = "removing from", "writing to remora.released"


@dataclass
class Gate:
    """Holds back the first write of a store that does a thing, until it is told to let it go on."""

    store: RadosStore
    doing: str
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        connection: Any = self.store._connection
        run = connection.run

        async def held_back(operation: ObjectOperation, oid: str, what: str, *rest: Any, **named: Any) -> int:
            if isinstance(operation, WriteOp) and what.startswith(self.doing) and not self.reached.is_set():
                self.reached.set()
                await self.is_open.wait()
            answer: int = await run(operation, oid, what, *rest, **named)
            return answer

        connection.run = held_back


@dataclass
class Pair:
    """The owner of a queue whose first page is about to be moved, and another worker on the same pool."""

    owner: RadosStore
    other: RadosStore
    token: LockToken
    gateway: Gateway

    async def left(self) -> list[bool]:
        """Whether each of both takes the queue for one that is left to radosgw."""
        return [Q in await store.releases.released() for store in (self.owner, self.other)]

    async def deliver(self) -> int:
        """Deliver everything; how many entries that were."""
        count, start = 0, b""
        while (page := await self.owner.queue.read(self.token, start, 100)).entries:
            await self.owner.queue.remove(self.token, page.positions[-1], len(page.entries), _delivered(page.entries))
            count, start = count + len(page.entries), page.positions[-1]
        return count


def _delivered(entries: list[bytes]) -> Tally:
    return Tally(delivered=len(entries))


@pytest.fixture
async def pair(settings: RadosSettings, gateway: Gateway) -> AsyncIterator[Pair]:
    gateway.make_queue("q")
    gateway.register("q")
    async with reached(settings, guard_s=0.0) as owner, reached(settings, guard_s=0.0) as other:
        token = await owner.locks.acquire(Q, "remora/h/b/1", 90)
        assert isinstance(token, LockToken)
        reservation = await owner.two_phase.reserve(Q, 5, 50)
        await owner.two_phase.commit(Q, reservation, [b"%010d" % i for i in range(5)])
        assert await owner.spill.guard(token)
        yield Pair(owner, other, token, gateway)
        await owner.releases.set_released([Q], released=False)


async def test_a_release_before_the_first_run_leaves_the_entries_in_the_ring(pair: Pair) -> None:
    """What was released after the guard was set is not moved, since no run has been named yet."""
    await pair.owner.releases.set_released([Q], released=True)

    assert await pair.owner.spill.move(pair.token) == 0

    assert await pair.left() == [True, True]
    assert not (await pair.owner.spill.usage()).by_shard.get(Q)


async def test_a_release_while_the_first_run_is_named_waits_for_it(pair: Pair) -> None:
    """Workers that took the queue for radosgw's, since it had no run yet, have it back when the first is named."""
    gate = Gate(pair.owner, MOVER)
    moving = asyncio.create_task(pair.owner.spill.move(pair.token))
    await gate.reached.wait()
    await pair.other.releases.set_released([Q], released=True)
    assert await pair.left() == [True, True]
    gate.is_open.set()
    assert await moving == 5

    assert await pair.left() == [False, False]
    assert await pair.deliver() == 5
    assert await pair.left() == [True, True]


async def test_who_saw_no_run_ends_no_wait_for_it(pair: Pair) -> None:
    """A worker that looked before the first run was named, and writes after it, finds the run, and takes that back."""
    gate, late = Gate(pair.owner, MOVER), Gate(pair.other, LIST)
    late.reached.set()
    moving = asyncio.create_task(pair.owner.spill.move(pair.token))
    await gate.reached.wait()
    await pair.owner.releases.set_released([Q], released=True)
    late.reached.clear()
    looking = asyncio.create_task(pair.other.releases.released())
    await late.reached.wait()
    gate.is_open.set()
    assert await moving == 5
    late.is_open.set()

    assert Q not in await looking
    assert await pair.left() == [False, False]
    assert await pair.deliver() == 5
    assert await pair.left() == [True, True]


async def test_who_saw_no_run_lifts_no_guard(pair: Pair) -> None:
    """A guard that a sweep finds needless just before the first run is named is set again."""
    late = Gate(pair.owner, LIST)
    lifting = asyncio.create_task(pair.owner.releases.lift_stale())
    await late.reached.wait()
    assert await pair.owner.spill.move(pair.token) == 5
    late.is_open.set()
    await lifting

    assert _value(pair.gateway).startswith(b"spilling")


async def test_a_sweep_lifts_no_guard_of_a_worker_that_lives(pair: Pair) -> None:
    """Neither another process nor the owner itself lifts the guard of a held queue that may spill soon; the next owner
    lifts what an earlier one has left."""
    store: Any = pair.owner
    await pair.other.releases.lift_stale()
    await store._guards.lift_stale()
    assert _value(pair.gateway).startswith(b"spilling")

    await pair.owner.locks.release(pair.token)
    await store._guards.lift_stale()

    assert _value(pair.gateway) == b""


@pytest.mark.parametrize("dies", [True, False])
async def test_an_older_release_of_a_queue_with_runs_is_noticed(
    pair: Pair, settings: RadosSettings, dies: bool
) -> None:
    """Whether its owner died before it saw a release, or a remora that knows no runs released it: who reads of it
    first looks, and the queue is delivered first."""
    if dies:
        releases: Any = pair.owner.releases
        releases.guard_again = _dies  # between the first run and its guard
        gate = Gate(pair.owner, MOVER)
        moving = asyncio.create_task(pair.owner.spill.move(pair.token))
        await gate.reached.wait()
        await pair.owner.releases.set_released([Q], released=True)
        assert await pair.left() == [True, True]
        gate.is_open.set()
        with pytest.raises(StoreUnavailable):
            await moving
    else:
        assert await pair.owner.spill.move(pair.token) == 5
        with pair.gateway.beside("remora") as ioctx, rados.WriteOpCtx() as operation:
            ioctx.set_omap(operation, ("q",), (b"1",))
            ioctx.operate_write_op(operation, "remora.released")

    async with reached(settings) as newcomer:
        assert Q not in await newcomer.releases.released()
    assert _value(pair.gateway).startswith(b"releasing")


async def test_who_saw_no_run_makes_no_topic_readable_for_older_remoras(pair: Pair) -> None:
    """A topic that another worker finds without runs, just before the first is named, spills for older remoras."""
    topic = await pair.owner.own_topics.create(own_topic("brooks", 2))
    shard = topic.all_shards()[1]
    try:
        await pair.owner.ingest.publish(topic, spread(topic, 20))
        token = await pair.owner.locks.acquire(shard, "remora/h/b/1", 90)
        assert isinstance(token, LockToken)
        assert await pair.owner.spill.guard(token)
        guards: Any = pair.other.spill
        late = Gate(pair.other, "looking into remora.topics")
        lifting = asyncio.create_task(guards._guards.lift(shard))
        await late.reached.wait()
        assert await pair.owner.spill.move(token)
        late.is_open.set()
        await lifting

        registry: Any = pair.owner.own_topics._registry
        assert (await registry.find("brooks")).stored.state == "spilling"
    finally:
        await pair.owner.own_topics.remove(topic, discard=True)


def _value(gateway: Gateway) -> bytes:
    """What stands under the queue's name among the released ones."""
    with gateway.beside("remora") as ioctx, rados.ReadOpCtx() as operation:
        found, _ = ioctx.get_omap_vals_by_keys(operation, ("q",))
        ioctx.operate_read_op(operation, "remora.released")
        return bytes(dict(found).get("q", b""))


async def _dies(_queue: str) -> None:
    raise StoreUnavailable("it is gone")
