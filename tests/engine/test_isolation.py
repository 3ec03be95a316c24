"""Destinations that hang with entries under way, beside one that works: bytes are left for it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeExactRoute, FakeRoute, FakeStore, Fate, Verdict
from engine.places import Place
from engine.runs import a_topic, a_worker, running, until
from remora.config import DeliverySettings
from remora.model.record import Page
from remora.model.topic import Delivery, Target
from remora.ports.endpoint import Batch

TIGHT = DeliverySettings(worker_bytes=1 << 20, endpoint_bytes=512 << 10, shard_bytes=256 << 10)


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
@pytest.mark.parametrize("mode", Delivery)
@in_virtual_time
async def test_destinations_that_hang_with_entries_under_way_leave_room(mode: Delivery) -> None:
    """While eight destinations never answer what was sent to them, a ninth that starts last is drained."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint()
    for number in range(8):
        for shard in range(4):
            queue = f"bad{number}-{shard}"
            store.make(queue, *(raw_entry(f"k{i}", i, topic=queue) for i in range(1000)))
            store.metadata[queue] = a_topic(queue, uri=f"kafka://bad{number}:9092", to=queue)
    stuck: set[str] = set()

    def wait_s(target: Target) -> float:
        if "bad" in target.uri:
            stuck.add(target.uri)
            return 1e6
        return 0.001

    endpoint.fate = lambda route, _: Fate(wait_s=wait_s(route.target))
    endpoint.verdict = lambda route, _: Verdict(wait_s=wait_s(route.target))
    worker = a_worker(store, endpoint, replace(TIGHT, mode=mode.value))
    async with running(worker) as task:
        async with asyncio.timeout(60):
            while len(stuck) < 8:  # noqa: ASYNC110  # the clock is virtual
                await asyncio.sleep(0.01)
        store.make("good", *(raw_entry(f"k{i}", i, topic="good") for i in range(5000)))
        store.metadata["good"] = a_topic("good", uri="kafka://good:9092", to="good")

        async with asyncio.timeout(300):
            while store.queues["good"].waiting:  # noqa: ASYNC110  # the clock is virtual
                await asyncio.sleep(0.01)

        assert len(endpoint.events("good")) == 5000
        assert sum(each.in_flight_bytes for each in worker.served if each.topic != "good") > 0
        task.cancel()


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_who_never_gives_back_leaves_room_for_one_more() -> None:
    """However many destinations fill up and hang, the next one may hold at least as much as the last one does."""
    worker = Place(1 << 20)
    hanging = [Place(1 << 19, within=worker, leaves_room=True) for _ in range(8)]
    for each in hanging:
        while each.try_acquire(1000):
            pass

    another = Place(1 << 19, within=worker, leaves_room=True)

    assert another.try_acquire(min(each.held for each in hanging) // 2)
    assert worker.held <= worker.limit


async def test_who_waits_for_room_gets_it_when_others_give_back() -> None:
    """A destination that holds as much as it leaves waits, also for bytes that another one holds, and for no longer."""
    worker = Place(1000)
    one = Place(1000, within=worker, leaves_room=True)
    other = Place(1000, within=worker, leaves_room=True)
    await one.acquire(400)
    await other.acquire(300)

    more = asyncio.ensure_future(other.acquire(200))
    await asyncio.sleep(0)
    assert not more.done()
    one.release(400)
    await asyncio.wait_for(more, 30)

    assert (other.held, worker.held) == (500, 500)


async def test_nobody_waits_for_ever_and_the_bound_holds() -> None:
    """Whatever many destinations take and give back, all are served in the end and the worker's bound is kept."""
    rng = Random(5)
    worker = Place(10_000)
    most = 0

    async def use(of: Place) -> None:
        nonlocal most
        for _ in range(50):
            nbytes = rng.randrange(1, 3000)
            await of.acquire(nbytes)
            most = max(most, worker.held)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            of.release(nbytes)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for _ in range(12):
            of = Place(6000, within=worker, leaves_room=True)
            for _ in range(3):
                tasks.create_task(use(of))

    assert worker.held == 0
    assert most <= worker.limit


@in_virtual_time
async def test_a_partition_that_hangs_holds_whole_listings() -> None:
    """A listing counts as held until its last record arrives, since all of it stays in memory; then nothing is held."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint(lanes=8)
    entries = [raw_entry(f"k{i}", i) for i in range(5000)]
    store.make("t", *entries)
    store.metadata["t"] = a_topic()
    hangs = True
    endpoint.fate = lambda _, batch: Fate(wait_s=600 if hangs and batch.lane == 0 else 0.001)
    worker = a_worker(store, endpoint, TIGHT)
    async with running(worker):
        await asyncio.sleep(300)

        arrived, mean = len(endpoint.arrived), sum(map(len, entries)) / len(entries)
        assert arrived * mean < TIGHT.shard_bytes
        [status] = worker.served
        assert status.in_flight_bytes > arrived * mean

        hangs = False
        async with asyncio.timeout(1000):
            while store.queues["t"].waiting:  # noqa: ASYNC110  # the clock is virtual
                await asyncio.sleep(1)
        assert worker.budget.held == 0
    assert len(endpoint.arrived) == 5000


async def test_who_gives_up_waiting_while_others_give_back_is_forgotten() -> None:
    """Bytes that are given back in the moment in which somebody stops to wait for them go to the next one."""
    bound = Place(10)
    await bound.acquire(10)
    impatient, patient = asyncio.create_task(bound.acquire(5)), asyncio.create_task(bound.acquire(5))
    await asyncio.sleep(0)

    impatient.cancel()
    bound.release(10)
    await asyncio.wait([impatient, patient], timeout=30)

    assert impatient.cancelled()
    assert patient.done()
    assert bound.held == 5


@pytest.mark.parametrize("mode", Delivery)
@in_virtual_time
async def test_what_was_delivered_is_forgotten_while_others_hold_all_room(mode: Delivery) -> None:
    """Shards that wait for room, because others hold all there is, keep nothing of what they have delivered."""
    store, endpoint = FakeStore(), FakeEndpoint()
    for number in range(8):
        queue = f"waits{number}"
        store.make(queue, *(raw_entry(f"k{i}", i, topic=queue) for i in range(10)))
        store.metadata[queue] = a_topic(queue, to=queue)
    worker = a_worker(store, endpoint, replace(TIGHT, mode=mode.value))

    def take_all_room() -> None:
        if not worker.budget.held > worker.budget.limit:
            worker.budget.adjust(worker.budget.limit)

    def fate(_: FakeRoute, __: Batch) -> Fate:
        take_all_room()
        return Fate()

    def verdict(_: FakeExactRoute, __: Sequence[Batch]) -> Verdict:
        take_all_room()
        return Verdict()

    endpoint.fate, endpoint.verdict = fate, verdict
    async with running(worker) as task:
        await until(lambda: any(not queue.waiting for queue in store.queues.values()))
        await asyncio.sleep(60)

        assert worker.budget.held >= worker.budget.limit
        gc.collect()
        pages = [each for each in gc.get_objects() if isinstance(each, Page) and each.entries]
        assert [each for each in pages if b"waits" in each.entries[0]] == []
        task.cancel()
