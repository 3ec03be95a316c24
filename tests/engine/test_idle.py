"""A queue in which nothing waits is idle: neither its endpoint's failures nor its own quiet make it anything else."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore, Fate
from engine.runs import a_topic, a_worker, drained, running, until
from engine.test_ownership import sample
from remora.config import DeliverySettings
from remora.engine.worker import Worker
from remora.metrics import Telemetry
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable
from remora.model.topic import Target
from remora.policy.status.condition import State

Mode = Literal["at-least-once", "exactly-once"]
STORES = pytest.mark.parametrize("tells", [False, True])
MODES = pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
NO_BROKER, NO_TOPIC = EndpointUnavailable("no broker"), EndpointMisconfigured("no such topic")
ERRORS = pytest.mark.parametrize("error", [NO_BROKER, NO_TOPIC])

ALL_THREE = pytest.mark.full("each of these hours takes 2 s: the gate has each two of error, mode and store together")
REST = (
    (NO_BROKER, "at-least-once", True),
    (NO_BROKER, "exactly-once", False),
    (NO_TOPIC, "at-least-once", False),
    (NO_TOPIC, "exactly-once", True),
)


class Useless(FakeEndpoint):
    """An endpoint that every target is wrong for."""

    def check(self, target: Target) -> list[str]:
        raise EndpointMisconfigured("the endpoint names no broker")


def state(worker: Worker) -> State | None:
    """The state of the one shard; None before it is held."""
    return worker.shards[0].state if worker.shards else None


@pytest.mark.parametrize(
    ("error", "mode", "tells"),
    [
        (NO_BROKER, "at-least-once", False),
        (NO_BROKER, "exactly-once", True),
        (NO_TOPIC, "at-least-once", True),
        (NO_TOPIC, "exactly-once", False),
        *(pytest.param(error, *others, marks=ALL_THREE) for error, *others in REST),
    ],
)
@in_virtual_time
async def test_a_queue_that_was_emptied_behind_a_dead_endpoint_is_idle(
    error: EndpointError, mode: Mode, tells: bool
) -> None:
    """When nothing waits any more nothing is tried any more, nothing counts as failing, and the queue is idle."""
    store, endpoint, telemetry = FakeStore(tells=tells), FakeEndpoint(), Telemetry()
    endpoint.opening = lambda _: error
    queue = store.make("t", raw_entry("k"))
    store.metadata["t"] = a_topic()

    worker = a_worker(store, endpoint, DeliverySettings(mode=mode), telemetry=telemetry)
    async with running(worker):
        await until(lambda: state(worker) in (State.RETRYING, State.STOPPED))
        queue.front = 1  # somebody else empties it
        await until(lambda: state(worker) is State.IDLE, within_s=31)
        failed = sample(telemetry, "remora_failures_total", topic="t", kind=kind(error))
        await asyncio.sleep(3600)

        assert state(worker) is State.IDLE
        assert sample(telemetry, "remora_failures_total", topic="t", kind=kind(error)) == failed
        assert sample(telemetry, "remora_topic_failing", topic="t", kind=kind(error)) is None


def kind(error: EndpointError) -> str:
    return "configuration" if isinstance(error, EndpointMisconfigured) else "transient"


@STORES
@in_virtual_time
async def test_what_comes_into_an_emptied_queue_is_tried_at_once(tells: bool) -> None:
    """An entry behind an endpoint that failed long ago is delivered within seconds when that works again."""
    store, endpoint = FakeStore(tells=tells), FakeEndpoint()
    endpoint.opening = lambda _: EndpointUnavailable("no broker")
    queue = store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()

    worker = a_worker(store, endpoint)
    async with running(worker):
        await asyncio.sleep(600)
        queue.front = 1
        await asyncio.sleep(600)
        endpoint.opening = lambda _: None
        queue.append(raw_entry("k", 1))
        await drained(store, within_s=3)

    assert endpoint.events() == [b"id-1"]


@in_virtual_time
async def test_a_queue_that_expires_during_a_long_pause_is_idle_before_the_pause_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue whose last entry outlives its time within a pause of a day is idle from then on."""
    now = asyncio.get_running_loop().time
    monkeypatch.setattr(time, "time_ns", lambda: int((1_700_000_000 + now()) * 1e9))
    store, endpoint = FakeStore(), FakeEndpoint()
    endpoint.opening = lambda _: EndpointUnavailable("no broker")
    store.make("t", raw_entry("k"))
    store.metadata["t"] = a_topic(retry_sleep_s=86_400)

    worker = a_worker(store, endpoint, DeliverySettings(time_to_live_s=60))
    async with running(worker):
        await until(lambda: state(worker) is State.RETRYING)
        await until(lambda: state(worker) is State.IDLE, within_s=70)


@ERRORS
@in_virtual_time
async def test_an_idle_queue_says_why_its_last_attempt_failed(error: EndpointError) -> None:
    """The way to a new topic's endpoint is tried once before anything waits, and the status keeps what came of it."""
    store, endpoint = FakeStore(), FakeEndpoint()
    endpoint.opening = lambda _: error
    store.make("t")
    store.metadata["t"] = a_topic()

    worker = a_worker(store, endpoint)
    async with running(worker):
        await until(lambda: state(worker) is State.IDLE, within_s=6)
        [status] = worker.shards

    assert (status.reason, status.failures) == ("", 0)
    assert status.remarks == (f"nothing waits; the last attempt failed: {error}",)


@MODES
@in_virtual_time
async def test_a_quiet_queue_is_idle_where_nobody_tells_of_arrivals(mode: Mode) -> None:
    """A queue that is looked into again and again is idle from the look that finds it empty, and delivers from the next
    entry on."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()
    endpoint.fate = lambda *_: Fate(wait_s=2)

    worker = a_worker(store, endpoint, DeliverySettings(mode=mode))
    async with running(worker):
        await drained(store)
        await until(lambda: state(worker) is State.IDLE, within_s=2)
        await asyncio.sleep(605)
        assert state(worker) is State.IDLE
        [status] = worker.shards
        assert status.since_s == pytest.approx(605, abs=2)
        queue.append(raw_entry("k", 1))
        await until(lambda: state(worker) is State.DELIVERING, within_s=2)
        await drained(store)


@MODES
@in_virtual_time
async def test_a_ring_ends_the_wait_of_a_queue_that_is_polled(mode: Mode) -> None:
    """An entry that a store names its queue for is delivered at once, though the next look would come much later; one
    that nobody rings for is delivered after that look."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()
    settings = DeliverySettings(mode=mode, idle_min_s=5.0, idle_max_s=5.0)

    async with running(a_worker(store, endpoint, settings)):
        for quiet_s in (3, 13, 300):
            await drained(store)
            await asyncio.sleep(quiet_s)
            queue.append(raw_entry("k", 1))
            store.ring("t")
            await drained(store, within_s=0.1)
        queue.append(raw_entry("k", 2))
        await drained(store, within_s=11)


@in_virtual_time
async def test_rings_for_nothing_take_the_place_of_other_looks() -> None:
    """Rings for nothing make no more looks than there are without, and a queue is looked at by itself after twice its
    pause at the latest."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()

    async with running(a_worker(store, endpoint, DeliverySettings(idle_min_s=5.0, idle_max_s=5.0))):
        await drained(store)
        await asyncio.sleep(60)
        reads = store.calls["read"]
        for _ in range(100):
            await asyncio.sleep(12)
            store.ring("t")
        assert store.calls["read"] - reads <= 100 * 12 / 5 + 1
        store.queues["t"].append(raw_entry("k", 1))
        await drained(store, within_s=10.1)


@in_virtual_time
async def test_a_malformed_endpoint_of_an_empty_queue_is_not_looked_at_again() -> None:
    """A queue without entries is idle, also where its topic's endpoint can be used for nothing."""
    store, endpoint = FakeStore(), Useless()

    store.make("t")
    store.metadata["t"] = a_topic()

    worker = a_worker(store, endpoint)
    async with running(worker):
        await until(lambda: state(worker) is State.IDLE, within_s=6)
