"""Moving a queue between radosgw and the workers by hand."""

from __future__ import annotations

import asyncio
import logging

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import a_topic, a_worker, drained, running
from remora.engine.claims import RELEASE_S, NobodyCame, claim, release
from remora.model.caller import Caller
from remora.model.shard import LockHolder, Origin, Shard

QUEUE = Shard("t")

OPERATOR = Caller(uid=1000, pid=4711, host="ops")


def a_store() -> FakeStore:
    store = FakeStore()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()
    return store


@in_virtual_time
async def test_a_release_waits_for_the_holder_to_let_go() -> None:
    """The worker that holds the queue gives it back by itself, with nothing under way; its lock is not broken."""
    store, endpoint = a_store(), FakeEndpoint()

    async with running(a_worker(store, endpoint)) as _:
        await drained(store)
        was = await release(store, QUEUE)

        assert was is not None
        assert was.cookie == "remora/h/b/w1"
        assert store.queues["t"].holder is None
        assert store.calls["evict"] == 0
        assert store.calls["release"] == 1


@in_virtual_time
async def test_a_worker_that_does_not_let_go_loses_its_lock() -> None:
    """The lock of a worker that takes too long over what it has under way, or stands still, is broken."""
    store = a_store()
    store.steal("t", "remora/h/b/frozen")
    began = asyncio.get_running_loop().time()

    await release(store, QUEUE)

    assert store.queues["t"].holder is None
    assert asyncio.get_running_loop().time() - began == pytest.approx(RELEASE_S)


@in_virtual_time
async def test_a_release_waits_for_each_worker_that_takes_the_queue_meanwhile() -> None:
    """A worker that read of the release too late to leave the queue alone has let it go, too, when the command ends."""
    store = a_store()
    store.steal("t", "remora/h/b/w1")

    async def hand_on() -> None:
        for late in ("remora/h/b/w2", "remora/h/b/w3"):
            await asyncio.sleep(1)
            store.steal("t", late)
        await asyncio.sleep(1)
        store.queues["t"].holder = None

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(hand_on())
        was = await release(store, QUEUE)
        assert store.queues["t"].holder is None

    assert was is not None
    assert was.cookie == "remora/h/b/w1"
    assert store.calls["evict"] == 0


@in_virtual_time
async def test_a_release_that_waits_for_spilled_entries_breaks_no_lock() -> None:
    """A worker that spills entries while the release waits for it keeps its lock until they are delivered."""
    store = a_store()
    store.steal("t", "remora/h/b/w1")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(release(store, QUEUE))
        await asyncio.sleep(1)
        store.left_to_radosgw = frozenset()  # as of a queue with runs

    holder = store.queues["t"].holder
    assert holder is not None
    assert holder.cookie == "remora/h/b/w1"


@in_virtual_time
async def test_a_release_leaves_a_claim_its_lock() -> None:
    """What somebody claims while a release waits is claimed: the lock of the claim is not broken."""
    store = a_store()
    store.steal("t", "remora/h/b/w1")

    async with asyncio.TaskGroup() as tasks:
        releasing = tasks.create_task(release(store, QUEUE))
        await asyncio.sleep(1)
        store.steal("t", "remora/claim/x")
        await releasing

    holder = store.queues["t"].holder
    assert holder is not None
    assert holder.cookie == "remora/claim/x"


@in_virtual_time
async def test_a_release_waits_for_a_worker_that_comes_after_the_first_look() -> None:
    """A worker that takes a free queue before it can read of the release has let it go when the command ends."""
    store = a_store()

    def before(call: str) -> None:
        if call == "set_released":
            store.steal("t", "remora/h/b/late")

    store.before = before
    was = await release(store, QUEUE)

    assert was is None
    assert store.queues["t"].holder is None


@in_virtual_time
async def test_a_release_leaves_the_gateway_that_comes_after_the_worker() -> None:
    """A gateway that takes the queue while a release waits for the worker keeps its lock."""
    store = a_store()
    store.steal("t", "remora/h/b/w1")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(release(store, QUEUE))
        await asyncio.sleep(1)
        store.steal("t", "gatewaycookie016")

    holder = store.queues["t"].holder
    assert holder is not None
    assert holder.cookie == "gatewaycookie016"
    assert store.calls["evict"] == 0


@in_virtual_time
async def test_a_gateway_keeps_what_is_released_to_it() -> None:
    """Where a gateway holds the queue already, its lock stays, and no worker takes the queue when that ends."""
    store, endpoint = a_store(), FakeEndpoint()
    store.steal("t", "gatewaycookie016")

    async with running(a_worker(store, endpoint)):
        was = await release(store, QUEUE)
        assert was is not None
        assert was == store.queues["t"].holder
        store.queues["t"].holder = None
        await asyncio.sleep(60)

        assert store.queues["t"].holder is None
        assert endpoint.pushes == 0


@in_virtual_time
async def test_a_claim_ends_a_release(caplog: pytest.LogCaptureFixture) -> None:
    """A queue that was released is taken from the gateway that has it, and delivered, when it is claimed; the worker
    that takes it logs who claimed it."""
    store, endpoint = a_store(), FakeEndpoint()

    async with running(a_worker(store, endpoint)), running(a_worker(store, endpoint, cookie="remora/h/b/w2")):
        await drained(store)
        await release(store, QUEUE)
        store.steal("t", "gatewaycookie016")
        store.queues["t"].append(raw_entry("k", 1))
        await asyncio.sleep(100)

        with caplog.at_level(logging.INFO, "remora"):
            holder = await claim(store, QUEUE, OPERATOR)

        assert holder.cookie in ("remora/h/b/w1", "remora/h/b/w2")
        [line] = [each for each in caplog.records if getattr(each, "event", "") == "shard_claimed"]
        assert line.__dict__["fields"] == {"queue": "t", "uid": 1000, "pid": 4711, "host": "ops"}
        await drained(store, within_s=5)


@in_virtual_time
async def test_a_claim_that_nobody_answers_leaves_nothing_behind() -> None:
    """Without a worker the claim gives up, and the queue is free and not released."""
    store = a_store()
    await release(store, QUEUE)

    with pytest.raises(NobodyCame):
        await claim(store, QUEUE, OPERATOR)

    assert store.queues["t"].holder is None
    assert await store.releases.released() == frozenset()


@in_virtual_time
async def test_a_queue_of_remoras_own_is_not_left_to_anybody() -> None:
    """To a queue of remora's own no radosgw comes: its lock is broken, and nothing is kept of that."""
    store = a_store()
    store.steal("t", "remora/h/b/w1")

    await release(store, Shard("t", Origin.REMORA))

    assert store.queues["t"].holder is None
    assert await store.releases.released() == frozenset()


@in_virtual_time
async def test_a_gateway_that_looks_between_the_claim_and_the_worker() -> None:
    """A gateway that locks the queue in the moment in which a worker takes a claim over does not end the claim."""
    store, endpoint = a_store(), FakeEndpoint()
    store.steal("t", "gatewaycookie016")
    evict, lost = store.evict, list[LockHolder]()

    async def evicted(shard: Shard, holder: LockHolder) -> None:
        await evict(shard, holder)
        if holder.cookie.startswith("remora/claim/") and not lost:
            lost.append(holder)
            store.steal("t", "gatewaycookie016")

    store.evict = evicted  # type: ignore[method-assign]
    async with running(a_worker(store, endpoint)):
        holder = await claim(store, QUEUE, OPERATOR)

        assert lost
        assert holder.cookie == "remora/h/b/w1"
        await drained(store)


@in_virtual_time
async def test_a_worker_that_is_quicker_than_the_claim_keeps_its_lock() -> None:
    """A worker that takes the queue just when the claim has broken the gateway's lock is who was wanted."""
    store = a_store()
    store.steal("t", "gatewaycookie016")
    evict = store.evict

    async def evicted(shard: Shard, holder: LockHolder) -> None:
        await evict(shard, holder)
        if holder.cookie == "gatewaycookie016":
            store.steal("t", "remora/h/b/w1")

    store.evict = evicted  # type: ignore[method-assign]
    holder = await claim(store, QUEUE, OPERATOR)

    assert holder.cookie == "remora/h/b/w1"
    assert store.calls["evict"] == 1


@in_virtual_time
async def test_a_lease_that_has_ended_is_no_worker_that_came() -> None:
    """A claim does not end with the lock of a worker that let its lease run out: it waits for one that lives."""
    store = a_store()
    store.steal("t", "remora/h/b/dead", lease_s=0)

    with pytest.raises(NobodyCame):
        await claim(store, QUEUE, OPERATOR)
