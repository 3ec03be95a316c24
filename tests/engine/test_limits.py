"""Size limits of the endpoint that change while a route is open: nothing is given up by one that does not hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore, Fate
from engine.runs import a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings
from remora.model.errors import EndpointError, EndpointUnavailable
from remora.model.record import Record
from remora.model.topic import Delivery

BOTH = pytest.mark.parametrize("mode", Delivery)


def above(limit: int) -> Callable[[Record], bool]:
    return lambda record: len(record.body) > limit


def a_scene(*entries: bytes, limit: int = 4000) -> tuple[FakeStore, FakeEndpoint]:
    store, endpoint = FakeStore(tells=True), FakeEndpoint()
    store.make("t", *entries)
    store.metadata["t"] = a_topic()
    endpoint.too_large = above(limit)
    return store, endpoint


def opened(endpoint: FakeEndpoint) -> int:
    return len(endpoint.routes) + len(endpoint.exact_routes)


@BOTH
@in_virtual_time
async def test_a_limit_that_is_raised_while_a_route_is_open(mode: Delivery) -> None:
    """An entry that fits by now is delivered on the route that was opened when it did not; nothing is given up."""
    store, endpoint = a_scene(raw_entry("k", 0))
    async with running(a_worker(store, endpoint, DeliverySettings(mode=mode.value))):
        await until(lambda: endpoint.arrived)
        endpoint.too_large = above(10_000)
        store.queues["t"].append(raw_entry("k", 1, padding=5000), raw_entry("k", 2))
        await drained(store)

    assert endpoint.events() == [b"id-0", b"id-1", b"id-2"]
    assert store.parked == {}
    assert opened(endpoint) == 1


@BOTH
@in_virtual_time
async def test_nothing_is_looked_up_without_need(mode: Delivery) -> None:
    """One look serves all entries of a listing that are too large, and where all fit there is none."""
    store, endpoint = a_scene(*(raw_entry("k", i) for i in range(500)))
    async with running(a_worker(store, endpoint, DeliverySettings(mode=mode.value))):
        await drained(store)
        assert endpoint.looks == 0
        store.queues["t"].append(*(raw_entry("k", i, padding=5000) for i in range(500, 600)))
        await drained(store)

    assert len(store.parked) == 100
    assert endpoint.looks == 1


@BOTH
@in_virtual_time
async def test_nothing_is_given_up_while_the_limit_cannot_be_looked_up(mode: Delivery) -> None:
    """Where the limit cannot be looked up what seems too large waits, and all behind it; then it is delivered."""
    store, endpoint = a_scene(raw_entry("k", 0))
    failures = 0

    def away() -> EndpointError | None:
        nonlocal failures
        failures += 1
        return EndpointUnavailable("away") if failures < 4 else None

    endpoint.looking = away
    async with running(a_worker(store, endpoint, DeliverySettings(mode=mode.value))):
        await until(lambda: endpoint.arrived)
        store.queues["t"].append(raw_entry("k", 1, padding=5000), raw_entry("k", 2))
        await until(lambda: failures >= 3)
        assert endpoint.events() == [b"id-0"]
        assert store.parked == {}
        endpoint.too_large = above(10_000)
        await drained(store)

    assert endpoint.events() == [b"id-0", b"id-1", b"id-2"]
    assert store.parked == {}


@in_virtual_time
async def test_what_is_looked_up_behind_a_failure_does_not_pass_it() -> None:
    """A listing whose limit is being looked up when an earlier batch fails is read again behind that one."""
    store, endpoint = a_scene(*(raw_entry("k", i) for i in range(8)))
    failed: list[int] = []

    def fate(_: object, batch: object) -> Fate:
        if endpoint.looks and not failed:
            failed.append(1)
            return Fate(wait_s=0.005, arrives=0, error=EndpointUnavailable("away"))
        return Fate(wait_s=0.0)

    endpoint.fate = fate
    async with running(a_worker(store, endpoint, DeliverySettings(list_entries=4))):
        await until(lambda: not store.queues["t"].waiting)
        endpoint.batch_records = 1
        store.queues["t"].append(*(raw_entry("k", i, padding=5000 if i == 13 else 0) for i in range(8, 16)))
        await drained(store)

    assert failed
    order = list(dict.fromkeys(endpoint.events()))
    assert order == [b"id-%d" % i for i in range(16) if i != 13]
    assert [letter.cause for letter in store.parked.values()] == ["too_large"]


@BOTH
@in_virtual_time
async def test_the_last_listing_for_a_target(mode: Delivery) -> None:
    """Where entries say themselves where they go, one that is too large is given up in front of another target's."""
    store, endpoint = a_scene()
    del store.metadata["t"]
    store.queues["t"].append(
        raw_entry("k", 0, topic="a", padding=5000), raw_entry("k", 1, topic="a"), raw_entry("k", 2, topic="b")
    )
    async with running(a_worker(store, endpoint, DeliverySettings(mode=mode.value))):
        await drained(store, within_s=60)

    assert endpoint.events() == [b"id-1", b"id-2"]
    assert [letter.cause for letter in store.parked.values()] == ["too_large"]
