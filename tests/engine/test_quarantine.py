"""Destinations that fail: one shard at a time tries them, and all use them again when they work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from devkit.testing.cases import MORE
from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate, Verdict
from engine.runs import SELDOM, a_topic, a_worker, drained, running, until
from remora.config import OwnershipSettings, QuarantineSettings
from remora.engine.quarantines import MOST_NAMED, Quarantines
from remora.engine.worker import Worker
from remora.metrics import Telemetry
from remora.model.caller import Caller
from remora.model.errors import EndpointError, EndpointUnavailable
from remora.policy.status.condition import State
from remora.ports.endpoint import Batch

BAD, GOOD = "kafka://bad:9092", "kafka://good:9092"
ALWAYS = QuarantineSettings(ratio=100)
LATE = EndpointUnavailable("no answer in time", "timeout")


def a_store(bad: int, good: int = 0) -> FakeStore:
    """A store with this many topics for each of two destinations, in which entries wait; the first have the oldest."""
    store = FakeStore(tells=True)
    for kind, uri, count in (("bad", BAD, bad), ("good", GOOD, good)):
        for number in range(count):
            name = f"{kind}{number:04}"
            store.make(name, *(raw_entry(f"k{i}", i, topic=name, created=1.7e9 + number) for i in range(5)))
            store.metadata[name] = a_topic(name, uri=uri, to=name)
    return store


class Broker:
    """Takes what comes, but for a destination that is away."""

    def __init__(self, error: EndpointError = LATE) -> None:
        self.error: EndpointError | None = error
        self.under_way = 0
        self.most = 0
        self.tried: list[str] = []
        self.endpoint = FakeEndpoint(lanes=1)
        self.endpoint.fate = self._fate
        self.endpoint.verdict = lambda *_: Verdict(happens=False, error=self.error) if self.error else Verdict()

    def _fate(self, route: FakeRoute, _: Batch) -> Fate:
        if route.target.uri != BAD or self.error is None:
            return Fate()
        self.tried.append(route.target.topic)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        asyncio.get_running_loop().call_later(5, self._answered)
        return Fate(arrives=0, error=self.error, wait_s=5)

    def _answered(self) -> None:
        self.under_way -= 1

    @property
    def tries(self) -> int:
        """How often a destination that is away was tried."""
        return len(self.tried)


def states(worker: Worker, prefix: str) -> list[State]:
    return [each.state for each in worker.shards if each.queue.startswith(prefix)]


@in_virtual_time
async def test_one_shard_at_a_time_tries_a_destination_in_quarantine() -> None:
    """Behind a destination that never answers a window long all shards try, then one at a time; others deliver."""
    store, broker, telemetry = a_store(50, 5), Broker(), Telemetry()

    async with running(a_worker(store, broker.endpoint, SELDOM, telemetry=telemetry, quarantine=ALWAYS)) as _:
        await drained(store, *(name for name in store.queues if name.startswith("good")), within_s=5)
        await asyncio.sleep(120)
        value = partial(sample_value, telemetry.registry)
        assert value("remora_quarantined_destinations") == value("remora_quarantines_total") == 1
        broker.most = broker.under_way
        before = broker.tries

        await asyncio.sleep(600)

        assert broker.most == 1
        assert 10 <= broker.tries - before <= 120


@in_virtual_time
async def test_shards_that_wait_for_their_turn_hold_nothing_and_say_why() -> None:
    """The status has them quarantined, without memory, and without an attempt counted meanwhile."""
    store, broker = a_store(20), Broker()
    worker = a_worker(store, broker.endpoint, SELDOM, quarantine=ALWAYS)

    async with running(worker):
        await asyncio.sleep(120)
        waiting = [each for each in worker.shards if each.state is State.QUARANTINED]
        assert len(waiting) >= 19
        assert {each.reason for each in waiting} == {"its destination fails, and another queue tries it"}
        assert sum(each.in_flight_bytes for each in waiting) == 0
        failures = sum(each.failures for each in worker.shards)
        tries = broker.tries

        await asyncio.sleep(300)

        assert sum(each.failures for each in worker.shards) - failures <= broker.tries - tries + 1


@in_virtual_time
async def test_every_shard_gets_its_turn() -> None:
    """No shard of a destination in quarantine waits for ever while others fail again and again."""
    store, broker = a_store(5), Broker()
    tried: set[str] = set()
    fate = broker.endpoint.fate

    def noted(route: FakeRoute, batch: Batch) -> Fate:
        tried.add(route.target.topic)
        return fate(route, batch)

    broker.endpoint.fate = noted
    async with running(a_worker(store, broker.endpoint, SELDOM, quarantine=ALWAYS)):
        await asyncio.sleep(120)
        tried.clear()
        await asyncio.sleep(900)

        assert len(tried) == 5


@in_virtual_time
async def test_the_first_success_brings_all_shards_back() -> None:
    """Within a second of the first success all shards of the destination deliver, long before the time is over."""
    store, broker = a_store(30), Broker()

    async with running(a_worker(store, broker.endpoint, SELDOM, quarantine=ALWAYS)):
        await asyncio.sleep(300)
        broker.error = None
        await until(lambda: broker.endpoint.arrived, within_s=60)
        await drained(store, within_s=1.5)


@in_virtual_time
async def test_other_workers_hear_of_the_worst_destinations() -> None:
    """Of twenty destinations in quarantine a row names the sixteen with the most errors in the window that began it,
    whichever came last; one that is released is not among them."""
    errors = {f"kafka://b{number:02}:9092": 5 + 7 * number % 20 for number in range(20)}
    quarantines = Quarantines(ALWAYS, Telemetry(), Random(7), lambda: [(name, "t") for name in errors])
    for half in (list(errors)[:10], list(errors)[10:]):
        for name in half:
            for _ in range(errors[name]):
                quarantines.failed(a_topic(uri=name), "timeout")
        quarantines.close(asyncio.get_running_loop().time())
        await asyncio.sleep(60)
    by_errors = sorted(errors, key=lambda name: -errors[name])

    assert len(quarantines.left_s) == 20
    assert quarantines.named == tuple(sorted(by_errors[:MOST_NAMED]))
    quarantines.release(by_errors[0])
    assert quarantines.named == tuple(sorted(by_errors[1 : MOST_NAMED + 1]))


@in_virtual_time
async def test_the_shards_whose_oldest_entries_wait_longest_try() -> None:
    """Of a hundred shards, which all had their last progress at once, that with the oldest entry tries first, then that
    with the next one, however they are called and whichever came first."""
    store, broker, count, now = a_store(0), Broker(), 100, time.time()
    ages = {f"bad{number:04}": 37 * number % count for number in range(count)}
    for name, age in ages.items():
        store.make(name, raw_entry("k", 1, topic=name, created=now - 100 - age))
        store.metadata[name] = a_topic(name, uri=BAD, to=name)

    async with running(a_worker(store, broker.endpoint, SELDOM, quarantine=ALWAYS)) as _:
        await asyncio.sleep(300)
        broker.tried.clear()
        await asyncio.sleep(600)

        tried = [ages[name] for name in broker.tried]
        assert len(tried) > 20
        assert tried == sorted(tried, reverse=True)
        broker.error = None


@pytest.mark.parametrize(("shards", "looks"), [(200, 2), pytest.param(1_000, 12, marks=MORE)])
@in_virtual_time
async def test_many_shards_wait_for_one_that_tries(shards: int, looks: int) -> None:
    """Behind a broker that never answers one of many shards tries at a time, and holds its entries; a second after the
    first success all of them have delivered."""
    store, broker, telemetry = a_store(shards), Broker(), Telemetry()
    long = replace(ALWAYS, interval_s=10.0, time_s=7_200.0)
    usual = OwnershipSettings()
    worker = a_worker(store, broker.endpoint, SELDOM, telemetry=telemetry, ownership=usual, quarantine=long)

    async with running(worker):
        await asyncio.sleep(300)
        assert states(worker, "bad").count(State.QUARANTINED) >= shards - 1
        broker.most = broker.under_way
        for _ in range(looks):
            await asyncio.sleep(300)
            held = [each.in_flight_bytes for each in worker.shards]
            assert sum(each > 0 for each in held) <= 1
        assert broker.most == 1
        assert sample_value(telemetry.registry, "remora_quarantined_destinations") == 1

        broker.error = None
        await until(lambda: broker.endpoint.arrived, within_s=60)
        await drained(store, within_s=1.5)


@in_virtual_time
async def test_the_end_of_a_quarantine_by_command_leaves_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    """The log names the destination, how long its quarantine would have lasted, and who asked for its end."""
    quarantines = Quarantines(ALWAYS, Telemetry(), Random(7), lambda: [(BAD, "t")])
    for _ in range(20):
        quarantines.failed(a_topic(uri=BAD), "timeout")
    quarantines.close(asyncio.get_running_loop().time())
    await asyncio.sleep(30)

    with caplog.at_level(logging.INFO, "remora"):
        quarantines.release(None, Caller(uid=1000, pid=4711))

    [line] = [each for each in caplog.records if getattr(each, "event", "") == "destination_released"]
    left_s = ALWAYS.time_s - 30
    asked = {"destination": BAD, "reason": "by command", "seconds_left": left_s, "uid": 1000, "pid": 4711}
    assert line.__dict__["fields"] == asked


def commanded(worker: Worker) -> None:
    worker.quarantines.release(BAD)


def switched_off(worker: Worker) -> None:
    worker.reload(SELDOM, quarantine=QuarantineSettings(enabled=False))


@pytest.mark.parametrize(("end", "within_s"), [(commanded, 20), (switched_off, 80), (lambda _: None, 300)])
@in_virtual_time
async def test_a_quarantine_ends(end: Callable[[Worker], None], within_s: float) -> None:
    """By command at once, switched off at the next window's end, else after its time, all shards try again."""
    store, broker = a_store(20), Broker()
    settings = QuarantineSettings(ratio=100, time_s=300, threshold=1000)
    worker = a_worker(store, broker.endpoint, SELDOM, quarantine=QuarantineSettings(ratio=100, time_s=300))

    async with running(worker):
        await until(lambda: states(worker, "bad").count(State.QUARANTINED) >= 19, within_s=200)
        worker.reload(SELDOM, quarantine=settings)  # it is not entered a second time
        end(worker)

        await until(lambda: State.QUARANTINED not in states(worker, "bad"), within_s=within_s)
        await until(lambda: broker.under_way > 1, within_s=60)
        assert worker.quarantines.left_s == {}


@in_virtual_time
async def test_a_reload_changes_the_window_under_way() -> None:
    """A window of an hour that becomes one of a minute ends then: the destination is quarantined without a restart."""
    store, broker = a_store(10), Broker()
    worker = a_worker(store, broker.endpoint, SELDOM, quarantine=replace(ALWAYS, interval_s=3600))

    async with running(worker):
        await asyncio.sleep(300)
        assert worker.quarantines.left_s == {}
        worker.reload(SELDOM, quarantine=replace(ALWAYS, interval_s=60))

        await until(lambda: State.QUARANTINED in states(worker, "bad"), within_s=90)


@pytest.mark.parametrize("kind", ["leader_moved", "too_large", "fenced", "connect"])
@in_virtual_time
async def test_errors_about_something_else_quarantine_nothing(kind: str) -> None:
    """A routine move, a record or a producer says nothing of a destination; nor a connection, unless configured."""
    store, broker = a_store(10), Broker(EndpointUnavailable("no", kind))

    worker = a_worker(store, broker.endpoint, SELDOM, quarantine=ALWAYS)
    async with running(worker):
        await asyncio.sleep(600)

        assert broker.tries > 20
        assert worker.quarantines.left_s == {}


@in_virtual_time
async def test_a_draw_above_the_ratio_quarantines_nothing() -> None:
    """With a ratio of 0 no worker leaves a destination, and each bad window is counted."""
    store, broker, telemetry = a_store(10), Broker(), Telemetry()
    worker = a_worker(store, broker.endpoint, SELDOM, telemetry=telemetry, quarantine=QuarantineSettings(ratio=0))

    async with running(worker):
        await asyncio.sleep(200)

        assert worker.quarantines.left_s == {}
        assert (sample_value(telemetry.registry, "remora_quarantine_skips_total") or 0) >= 2


@in_virtual_time
async def test_the_ratio_is_the_part_of_the_workers_that_quarantine() -> None:
    """Each worker draws for itself: about the configured part of many leaves the destination, and the others stay."""
    settings = QuarantineSettings(ratio=30)
    workers = [Quarantines(settings, Telemetry(), Random(seed)) for seed in range(400)]
    for each in workers:
        for _ in range(settings.options.threshold):
            each.failed(a_topic("t"), "timeout")
        each.close(asyncio.get_running_loop().time())

    assert 80 < sum(bool(each.left_s) for each in workers) < 160


@in_virtual_time
async def test_exactly_once_is_quarantined_alike() -> None:
    """Commits that get no answer count as batches do, and the first commit that does brings all shards back."""
    store, broker = a_store(10), Broker()
    worker = a_worker(store, broker.endpoint, replace(SELDOM, mode="exactly-once"), quarantine=ALWAYS)

    async with running(worker):
        await until(lambda: states(worker, "bad").count(State.QUARANTINED) >= 9, within_s=200)
        broker.error = None
        await drained(store, within_s=60)

        assert worker.quarantines.left_s == {}


@pytest.mark.guarantee("many-workers-and-hosts")
@in_virtual_time
async def test_shards_go_to_a_worker_that_their_destination_does_not_fail() -> None:
    """A destination that one worker cannot reach is delivered by the other; with none of its queues left that worker
    forgets it after a window, and numbers are even again."""
    store, broker, telemetries = a_store(8, 4), Broker(), [Telemetry(), Telemetry()]
    async with AsyncExitStack() as stack:
        workers = [
            a_worker(
                store,
                endpoint,
                SELDOM,
                cookie=f"remora/h/b/w{n}",
                group_size=2,
                quarantine=ALWAYS,
                telemetry=telemetries[n],
            )
            for n, endpoint in enumerate((broker.endpoint, FakeEndpoint(lanes=1)))
        ]
        for each in workers:
            await stack.enter_async_context(running(each))
        await until(lambda: [each.held_shards for each in workers] == [6, 6], within_s=30)
        assert states(workers[0], "bad")

        await until(lambda: not states(workers[0], "bad"), within_s=200)
        await drained(store, within_s=10)
        await asyncio.sleep(30)
        assert len(states(workers[1], "bad")) == 8
        assert [each.held_shards for each in workers] == [4, 8]
        assert BAD in workers[0].quarantines.left_s

        await until(lambda: not workers[0].quarantines.left_s, within_s=60)
        await until(lambda: [each.held_shards for each in workers] == [6, 6], within_s=30)
        assert states(workers[0], "bad")


def moved(telemetries: list[Telemetry]) -> float:
    value = [sample_value(each.registry, "remora_shard_moves_total", {"kind": "planned"}) for each in telemetries]
    return sum(each or 0 for each in value)


@in_virtual_time
async def test_a_destination_that_fails_all_workers_stays_where_it_is() -> None:
    """Where no worker is free of it, none gives its shards away, each lets one try, and all deliver when it is back."""
    store, broker, telemetries = a_store(12), Broker(), [Telemetry(), Telemetry()]
    async with AsyncExitStack() as stack:
        workers = [
            a_worker(
                store,
                broker.endpoint,
                SELDOM,
                cookie=f"remora/h/b/w{n}",
                group_size=2,
                quarantine=ALWAYS,
                telemetry=telemetries[n],
            )
            for n in range(2)
        ]
        for each in workers:
            await stack.enter_async_context(running(each))
        await until(lambda: all(each.quarantines.left_s for each in workers), within_s=200)
        moves = moved(telemetries)
        await asyncio.sleep(300)

        assert [each.held_shards for each in workers] == [6, 6]
        assert moved(telemetries) == moves
        broker.error = None
        await drained(store, within_s=60)
