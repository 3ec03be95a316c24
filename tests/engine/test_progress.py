"""Whether a worker calls itself stalled: what `/-/ready` tells."""

from __future__ import annotations

import asyncio

import pytest

from engine.fakes import FakeEndpoint, FakeStore, Fate
from engine.runs import a_topic, a_worker, drained, running
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable
from support.clock import in_virtual_time
from support.entries import raw_entry


@pytest.mark.parametrize("error", [EndpointUnavailable("refused"), EndpointMisconfigured("no such topic")])
@in_virtual_time
async def test_a_way_that_never_opens_is_a_stall(error: EndpointError) -> None:
    """Entries that wait before an endpoint that cannot be reached at all make a worker stalled, until it delivers."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint()
    store.make("t", raw_entry("k", 1))
    store.metadata["t"] = a_topic()
    away = True
    endpoint.opening = lambda _: error if away else None

    worker = a_worker(store, endpoint)
    async with running(worker):
        await asyncio.sleep(5)
        assert not worker.progress().is_stalled
        await asyncio.sleep(25)
        assert worker.progress().is_stalled
        away = False
        await drained(store, within_s=60)
        await asyncio.sleep(5)
        assert not worker.progress().is_stalled


@in_virtual_time
async def test_nothing_to_deliver_is_no_stall() -> None:
    """An endpoint that cannot be reached makes no worker stalled whose queues are empty."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t")
    store.metadata["t"] = a_topic()
    endpoint.opening = lambda _: EndpointUnavailable("refused")

    worker = a_worker(store, endpoint)
    async with running(worker):
        await asyncio.sleep(60)
        assert not worker.progress().is_stalled


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
            assert not worker.progress().is_stalled
        await drained(store, within_s=5)
