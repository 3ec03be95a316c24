"""What a worker tells of entries that wait: what `/-/ready/delivery` goes by."""

from __future__ import annotations

import asyncio

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore, Fate
from engine.runs import a_topic, a_worker, drained, running
from remora.config import DeliverySettings
from remora.engine.worker import Worker
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, StoreUnavailable
from remora.model.health import Use
from remora.policy.status.readiness import HostReadiness, ready_to_deliver


def delivers(worker: Worker) -> bool:
    """Whether a host of this worker alone says that it delivers."""
    use = Use(has_way=worker.has_way(), waiting=worker.waiting())
    return ready_to_deliver(HostReadiness(has_started=True, workers=[use])).ok


@pytest.mark.parametrize(
    ("error", "cause"), [(EndpointUnavailable("refused"), "away"), (EndpointMisconfigured("no such topic"), "refused")]
)
@in_virtual_time
async def test_a_way_that_never_opens_is_told_with_its_cause(error: EndpointError, cause: str) -> None:
    """Entries that wait before an endpoint which fails are told, with the reason and their age, and stop no host."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint()
    store.make("t", raw_entry("k", 1))
    store.metadata["t"] = a_topic()
    away = True
    endpoint.opening = lambda _: error if away else None

    worker = a_worker(store, endpoint)
    async with running(worker):
        await asyncio.sleep(30)
        [waiting] = worker.waiting()
        assert (waiting.destination, waiting.cause, waiting.reasons) == ("kafka://b:9092", cause, (f"t: {error}",))
        assert waiting.progress_age_s == pytest.approx(30, abs=2)
        assert delivers(worker)
        away = False
        await drained(store, within_s=60)
        await asyncio.sleep(5)
        assert worker.waiting() == ()


@in_virtual_time
async def test_an_endpoint_that_hangs_keeps_its_cause_through_each_attempt() -> None:
    """While another attempt is under way the last failure still explains why nothing gets on."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 1))
    store.metadata["t"] = a_topic()
    endpoint.fate = lambda *_: Fate(arrives=0, wait_s=10, error=EndpointUnavailable("no answer"))

    worker = a_worker(store, endpoint)
    async with running(worker):
        await asyncio.sleep(11)
        for _ in range(600):
            await asyncio.sleep(0.5)
            assert delivers(worker)
            assert [each.cause for each in worker.waiting()] == ["away"]


@in_virtual_time
async def test_a_host_that_reaches_none_of_several_destinations_says_so() -> None:
    """Where every destination with entries is away the host may be cut off; one that works shows that it is not."""
    store, endpoint = FakeStore(), FakeEndpoint()
    for name in ("a", "b", "c"):
        store.make(name)
        store.metadata[name] = a_topic(name, f"kafka://{name}:9092", to=name)
    for name in ("a", "b"):
        store.queues[name].append(raw_entry("k", topic=name))
    away = {"a", "b", "c"}
    endpoint.opening = lambda target: EndpointUnavailable("no") if target.topic in away else None

    worker = a_worker(store, endpoint)
    async with running(worker):
        await asyncio.sleep(30)
        assert not delivers(worker)
        away.remove("c")
        store.queues["c"].append(raw_entry("k", topic="c"))
        await drained(store, "c", within_s=60)
        await asyncio.sleep(30)
        assert delivers(worker)


@in_virtual_time
async def test_a_store_that_gives_no_entries_is_the_host_s_affair() -> None:
    """Entries that wait because the store fails are a stall of the host, whatever their endpoint does."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *(raw_entry("k", i) for i in range(100)))
    store.metadata["t"] = a_topic()

    worker = a_worker(store, endpoint, DeliverySettings(list_entries=10))
    async with running(worker):
        endpoint.fate = lambda *_: Fate(wait_s=1)
        await asyncio.sleep(3)
        store.before = lambda call: StoreUnavailable("away") if call == "read" else None
        await asyncio.sleep(60)
        assert not delivers(worker)


@in_virtual_time
async def test_nothing_to_deliver_is_no_stall() -> None:
    """An endpoint that cannot be reached makes no host unready whose queues are empty."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t")
    store.metadata["t"] = a_topic()
    endpoint.opening = lambda _: EndpointUnavailable("refused")

    worker = a_worker(store, endpoint)
    async with running(worker):
        await asyncio.sleep(60)
        assert worker.waiting() == ()


@in_virtual_time
async def test_the_first_entry_after_a_long_quiet_is_no_stall() -> None:
    """The time without progress counts from when there was something to do, not from the last entry long ago."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t")
    store.metadata["t"] = a_topic()
    endpoint.fate = lambda *_: Fate(wait_s=10)

    worker = a_worker(store, endpoint)
    async with running(worker):
        await asyncio.sleep(600)
        store.queues["t"].append(raw_entry("k", 1))
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert all(each.progress_age_s < 15 for each in worker.waiting())
        await drained(store, within_s=5)
