"""Topics of one destination, one of which fails: the others are delivered as if it were not there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from devkit.testing.cases import MORE
from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate
from engine.runs import SELDOM, a_topic, a_worker, drained, running, until
from remora.config import OwnershipSettings, QuarantineSettings
from remora.engine.quarantines import Quarantines
from remora.metrics import Telemetry
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable
from remora.model.topic import Topic
from remora.policy.status.condition import State
from remora.ports.endpoint import Batch

HOST = "kafka://h:9092"
GOOD = "good"


def busy(retry_after_s: float | None = None) -> EndpointUnavailable:
    """What a path answers, for 503 and the like."""
    found = EndpointUnavailable("it answers with 503", "answered")
    found.retry_after_s = retry_after_s
    return found


NEIGHBOURS: dict[str, tuple[EndpointError, float]] = {
    "busy": (busy(), 0.01),
    "asks for an hour": (busy(300), 0.01),
    "no such exchange": (EndpointMisconfigured("there is no such exchange"), 0.01),
    "silent": (EndpointUnavailable("no answer in time", "timeout"), 1.0),
    "cut": (EndpointUnavailable("the connection broke"), 0.01),
}
"""What becomes of each push to the failing topic, and how long that takes."""


LOOKS = pytest.mark.full("330 queues look for news of a silent host all the while, which takes 10 s of processor time")


def a_store(queues: int) -> FakeStore:
    """A store in which entries wait in so many queues of a topic that fails; that of its neighbour is empty."""
    store = FakeStore(tells=True)
    for number in range(queues):
        name = f"bad{number:04}"
        store.make(name, *(raw_entry(f"k{i}", i, topic="bad") for i in range(3)))
        store.metadata[name] = replace(a_topic(name, HOST, "bad"), name="bad")
    store.make(GOOD)
    store.metadata[GOOD] = a_topic(GOOD, HOST, GOOD)
    return store


def an_endpoint(error: EndpointError, seconds: float) -> FakeEndpoint:
    """It takes what comes, but of the failing topic."""
    endpoint = FakeEndpoint(lanes=1)
    endpoint.shared_fate = lambda target: target.uri

    def fate(route: FakeRoute, _: Batch) -> Fate:
        return Fate() if route.target.topic == GOOD else Fate(seconds, 0, error)

    endpoint.fate = fate
    return endpoint


@pytest.mark.parametrize(
    ("neighbour", "queues", "ratio"),
    [
        *((each, 1, ratio) for each in NEIGHBOURS for ratio in (0, 100)),
        ("busy", 330, 100),
        *(pytest.param(each, 330, 100, marks=MORE) for each in NEIGHBOURS if each not in ("busy", "silent")),
        ("silent", 60, 100),
        *(pytest.param("silent", 330, ratio, marks=LOOKS) for ratio in (0, 30, 100)),
    ],
)
@in_virtual_time
async def test_a_topic_is_delivered_whatever_its_neighbour_does(neighbour: str, queues: int, ratio: int) -> None:
    """Each of three events, one every 30 s, is delivered within two seconds beside a topic that fails in this way with
    this many queues, whether or not the worker quarantines what fails it."""
    store, endpoint = a_store(queues), an_endpoint(*NEIGHBOURS[neighbour])
    few = replace(SELDOM, list_entries=16)  # of which all queues may hold some at once
    worker = a_worker(store, endpoint, few, ownership=OwnershipSettings(), quarantine=QuarantineSettings(ratio=ratio))

    async with running(worker):
        await until(lambda: worker.held_shards == queues + 1, within_s=60)
        for number in range(3):
            await asyncio.sleep(30)
            store.queues[GOOD].append(raw_entry("k", number, topic=GOOD))
            await drained(store, GOOD, within_s=2)
        assert HOST not in worker.quarantines.left_s


@in_virtual_time
async def test_a_topic_whose_endpoint_refuses_is_tried_by_one_queue_at_a_time() -> None:
    """A path that answers 503 to all queues of its topic is tried by one of them, which says so, and by no other while
    that one is asked to wait; its first success brings all back."""
    store, telemetry, tried = a_store(20), Telemetry(), list[float]()
    endpoint = an_endpoint(busy(300), 0.01)
    fate, works = endpoint.fate, False

    def noted(route: FakeRoute, batch: Batch) -> Fate:
        if route.target.topic != GOOD:
            tried.append(asyncio.get_running_loop().time())
        return Fate() if works else fate(route, batch)

    endpoint.fate = noted
    worker = a_worker(store, endpoint, SELDOM, telemetry=telemetry, quarantine=QuarantineSettings(ratio=100))
    async with running(worker):
        await asyncio.sleep(400)
        assert sum(each.state is State.QUARANTINED for each in worker.shards) == 19
        assert list(worker.quarantines.left_s) == [f"{HOST}#bad"]
        assert worker.quarantines.named == ()
        assert sample_value(telemetry.registry, "remora_quarantined_destinations") == 1
        reasons = {each.reason for each in worker.shards if each.state is State.QUARANTINED}
        assert reasons == {"its endpoint refuses the topic's events, and another of its queues tries it"}
        began = len(tried)
        await asyncio.sleep(900)
        assert 2 <= len(tried) - began <= 4

        works = True
        await until(lambda: endpoint.arrived, within_s=320)
        await drained(store, within_s=2)
        assert worker.quarantines.left_s == {}


@in_virtual_time
async def test_a_silent_topic_beside_one_that_is_delivered_is_quarantined_alone() -> None:
    """Time-outs of a path whose host delivers others count for the path: its host is in use, and one queue tries it."""
    store, endpoint = a_store(20), an_endpoint(*NEIGHBOURS["silent"])
    worker = a_worker(store, endpoint, SELDOM, quarantine=QuarantineSettings(ratio=100))

    async with running(worker):
        for number in range(30):
            await asyncio.sleep(10)
            store.queues[GOOD].append(raw_entry("k", number, topic=GOOD))
            await drained(store, GOOD, within_s=2)

        assert list(worker.quarantines.left_s) == [f"{HOST}#bad"]
        assert sum(each.state is State.QUARANTINED for each in worker.shards) == 19


@in_virtual_time
async def test_a_topic_that_its_host_failed_takes_turns_with_its_neighbour() -> None:
    """Of a topic with one queue and one with 50, which a host failed both, each tries every other time."""
    store, tried = a_store(50), list[str]()
    endpoint = FakeEndpoint(lanes=1)

    def fate(route: FakeRoute, _: Batch) -> Fate:
        tried.append(route.target.topic)
        return Fate(1.0, 0, EndpointUnavailable("no answer in time", "timeout"))

    endpoint.fate = fate
    store.queues[GOOD].append(raw_entry("k", 1, topic=GOOD))
    worker = a_worker(store, endpoint, SELDOM, quarantine=QuarantineSettings(ratio=100))
    async with running(worker):
        await asyncio.sleep(100)
        assert sum(each.state is State.QUARANTINED for each in worker.shards) == 50
        tried.clear()
        await asyncio.sleep(400)

        assert len(tried) >= 10
        assert abs(2 * tried.count(GOOD) - len(tried)) <= 2


def quarantines(ratio: int, telemetry: Telemetry, rng: Random, topic: Topic) -> Quarantines:
    """Those of a worker with a queue of this topic."""
    place = topic.target.redacted, topic.label
    return Quarantines(QuarantineSettings(ratio=ratio), telemetry, rng, lambda: [place])


def failing(where: Quarantines, topic: Topic, kind: str = "timeout") -> None:
    """As often as makes a window bad."""
    for _ in range(5):
        where.failed(topic, kind)


@pytest.mark.parametrize("kind", ["timeout", "answered"])
@in_virtual_time
async def test_a_part_of_the_workers_quarantines_what_fails_all(kind: str) -> None:
    """Of 300 workers, all of whose windows are bad, about the `ratio` quarantine the destination, or the topic."""
    topic, telemetry, rng = a_topic(uri=HOST), Telemetry(), Random(7)
    fleet = [quarantines(30, telemetry, rng, topic) for _ in range(300)]
    for each in fleet:
        failing(each, topic, kind)
        each.close(asyncio.get_running_loop().time())

    assert 60 <= sum(bool(each.left_s) for each in fleet) <= 120


@pytest.mark.parametrize("kind", ["timeout", "answered"])
@in_virtual_time
async def test_what_works_again_before_its_window_ends_is_not_quarantined(kind: str) -> None:
    """Errors before a success are no reason for a quarantine, whether one is over or none began."""
    topic, now = a_topic(uri=HOST), asyncio.get_running_loop().time()
    where = quarantines(100, Telemetry(), Random(7), topic)
    failing(where, topic, kind)
    where.succeeded(topic)
    where.close(now)
    assert where.left_s == {}

    failing(where, topic, kind)
    where.close(now)
    assert len(where.left_s) == 1
    failing(where, topic, kind)
    where.succeeded(topic)
    where.close(now)
    assert where.left_s == {}


@pytest.mark.parametrize(("before_s", "after_s", "within_s"), [(3600.0, 10.0, 10.1), (60.0, 120.0, 120.1)])
@in_virtual_time
async def test_another_interval_holds_for_the_window_under_way(
    before_s: float, after_s: float, within_s: float
) -> None:
    """After a reload a window ends when the new interval is over since its beginning, be it shorter or longer."""
    store, endpoint = a_store(3), an_endpoint(*NEIGHBOURS["silent"])
    settings = QuarantineSettings(ratio=100, interval_s=before_s)
    worker = a_worker(store, endpoint, SELDOM, quarantine=settings)

    async with running(worker):
        await asyncio.sleep(5)
        failing(worker.quarantines, store.metadata["bad0000"])
        worker.reload(SELDOM, quarantine=replace(settings, interval_s=after_s))
        await asyncio.sleep(within_s - 5.2)
        assert worker.quarantines.left_s == {}
        failing(worker.quarantines, store.metadata["bad0000"])
        await asyncio.sleep(0.3)

        assert HOST in worker.quarantines.left_s


@in_virtual_time
async def test_a_destination_that_no_queue_goes_to_is_forgotten() -> None:
    """When the topics of a destination are gone, its quarantine is over after a window and not after half an hour."""
    store, endpoint = a_store(3), an_endpoint(*NEIGHBOURS["silent"])
    worker = a_worker(store, endpoint, SELDOM, quarantine=QuarantineSettings(ratio=100))

    async with running(worker):
        await until(lambda: HOST in worker.quarantines.left_s, within_s=100)
        for name in list(store.queues):
            del store.queues[name], store.metadata[name]
        await until(lambda: not worker.shards, within_s=60)

        await until(lambda: not worker.quarantines.left_s, within_s=61)
