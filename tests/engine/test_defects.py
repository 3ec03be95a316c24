"""An unexpected exception, wherever something is waited for in the service of a shard."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from devkit.awaits import SHARD, Awaits, loaded_with_places
from devkit.clock import ClockLoop
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeStore, Fate, Verdict
from engine.runs import QUICK, a_topic, drained, running
from remora.config import DeliverySettings
from remora.metrics import Telemetry
from remora.model.errors import EndpointUnavailable, EntryRefused
from remora.model.topic import Source

MODES = [(mode, tells) for mode in ("at-least-once", "exactly-once") for tells in (True, False)]

FAILURES = (RuntimeError, TypeError, ValueError)

ENTRIES = 60


@pytest.fixture(scope="module")
def awaits() -> Iterator[Awaits]:
    """The engine, with a place at each of its waits."""
    with loaded_with_places("remora.engine") as found:
        yield found


@pytest.fixture(scope="module")
def tried() -> set[str]:
    """The places where a defect happened before."""
    return set()


def marked(worker: Any) -> Any:
    """The same worker; its services say which shard they are for."""
    serve = worker.ownership._roster._serve

    def serve_marked(lease: Any) -> Any:
        service = serve(lease)
        run = service.run

        async def run_marked() -> None:
            SHARD.set(lease.shard.queue)
            await run()

        service.run = run_marked
        return service

    worker.ownership._roster._serve = serve_marked
    return worker


def misfortunes(endpoint: FakeEndpoint) -> None:
    """Have the shard called bad pass all that a session knows: failures, refusals, records that are too large."""
    tries: dict[str, int] = {}

    def error(queue: str, records: list[Any]) -> EndpointUnavailable | EntryRefused | None:
        tries[queue] = tries.get(queue, 0) + 1
        if queue == "bad" and tries[queue] <= 2:
            return EndpointUnavailable("away")
        if queue == "bad" and any(each.event_id == b"id-7" for each in records):
            return EntryRefused("never")
        return None

    def fate(route: Any, batch: Any) -> Fate:
        failure = error(route.shard.queue, list(batch.records))
        return Fate(arrives=0 if failure else None, error=failure)

    def verdict(route: Any, batches: Any) -> Verdict:
        failure = error(route.shard[0], [each for batch in batches for each in batch.records])
        return Verdict(happens=failure is None, error=failure)

    endpoint.too_large = lambda record: record.event_id == b"id-11"
    endpoint.fate, endpoint.verdict = fate, verdict


async def run_once(awaits: Awaits, mode: str, tells: bool) -> tuple[int, int]:
    """Deliver a good and a bad queue to their ends beside each other; returns the defects, and how often one hit."""
    module = importlib.import_module("remora.engine.worker")
    store, endpoint, telemetry = FakeStore(tells=tells), FakeEndpoint(), Telemetry()
    misfortunes(endpoint)
    for queue in ("bad", "good"):
        store.make(queue, *(raw_entry(f"k{i % 5}", i, topic=queue) for i in range(ENTRIES)))
        store.metadata[queue] = replace(a_topic(queue, to=queue, max_retries=50), source=Source.METADATA)
    store.queues["bad"].append(b"no entry")
    settings = DeliverySettings(mode=mode, list_entries=20)  # type: ignore[arg-type]  # one of the two
    setup = module.WorkerSetup("remora/h/b/w1", QUICK, settings)
    worker = marked(module.Worker(store, [endpoint], telemetry, setup, Random(7)))
    async with running(worker) as task:
        await drained(store, "good", within_s=20)
        await drained(store, within_s=600)
        for queue in ("bad", "good"):
            store.queues[queue].append(*(raw_entry(f"k{i}", 100 + i, topic=queue) for i in range(5)))
        await drained(store, within_s=600)
        store.metadata["bad"] = replace(store.metadata["bad"], max_retries=40)
        await asyncio.sleep(40)
        assert not task.done()
    assert {int(each[3:]) for each in endpoint.events("good")} == set(range(ENTRIES)) - {11} | set(range(100, 105))
    assert {int(each[3:]) for each in endpoint.events("bad")} == set(range(ENTRIES)) - {7, 11} | set(range(100, 105))
    assert {(letter.queue, letter.cause) for letter in store.parked.values()} == {
        ("bad", "undecodable"), ("bad", "refused"), ("bad", "too_large"), ("good", "too_large"),
    }  # fmt: skip
    crashes = sample_value(telemetry.registry, "remora_crashes_total")
    assert crashes is not None
    return int(crashes), awaits.hits


def passed(awaits: Awaits, mode: str, tells: bool) -> set[str]:
    """The places that the bad shard passes where nothing is wrong with the code."""
    awaits.passed.clear()
    awaits.arm("", "", RuntimeError)
    with asyncio.Runner(loop_factory=ClockLoop) as runner:
        assert runner.run(run_once(awaits, mode, tells)) == (0, 0)
    return set(awaits.passed["bad"])


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
@pytest.mark.parametrize(("mode", "tells"), MODES)
def test_a_defect_costs_its_shard_only(awaits: Awaits, tried: set[str], mode: str, tells: bool) -> None:
    """Wherever it happens, others deliver, it is told as a defect, and its own shard comes back and delivers all."""
    places = passed(awaits, mode, tells)
    assert len(places) > 25
    places -= tried
    tried |= places

    for number, place in enumerate(sorted(places)):
        awaits.arm(place, "bad", FAILURES[number % len(FAILURES)])
        with asyncio.Runner(loop_factory=ClockLoop) as runner:
            crashes, hits = runner.run(run_once(awaits, mode, tells))
        assert (crashes, hits) == (1, 1), place
