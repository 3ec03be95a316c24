"""An unexpected exception, wherever the endpoint waits for something, on the way to a topic of each kind."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from contract.test_kafka_memory import rude_port
from devkit.awaits import Awaits, loaded_with_places
from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from devkit.receivers.bad_endpoints import hanging_endpoint
from devkit.testing.cases import cases
from devkit.waits import until
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import QUICK, a_topic, running
from engine.test_defects import FAILURES, marked
from remora.config import DeliverySettings, KafkaSettings
from remora.engine.ownership import roster
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.topic import Target

pytestmark = [
    pytest.mark.timeout(900),
    # A defect while something is closed leaves it open: that is told, and is no fault of the test.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def no_garbage(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What such defects leave open is found here, and not during another test: log records hold tracebacks."""
    yield
    for phase in ("setup", "call"):
        caplog.get_records(phase).clear()
    gc.collect()


BOTH = pytest.mark.parametrize("mode", cases("exactly-once", more=["at-least-once"]))

OWNERSHIP = replace(QUICK, discovery_interval_s=0.05, schemes=("kafka", "amqp"))

DELIVERY = DeliverySettings(retry_base_s=0.01, retry_cap_s=0.02, configuration_recheck_s=0.02)

KAFKA = KafkaSettings(connect_timeout_s=2, delivery_timeout_s=2, idle_timeout_s=0.2, ca_directories="/")

SHORT = replace(KAFKA, connect_timeout_s=0.1)

WAIT_S = 60.0

LIFE = ("endpoints.kafka.endpoint.KafkaEndpoint.__a", "endpoints.tasks.Tasks.__a")
"""Where the endpoint itself begins and ends, and no topic is served."""


class GoodEndpoint(FakeEndpoint):
    """Takes what is sent to another kind of endpoint."""

    schemes = frozenset({"amqp"})


@dataclass(frozen=True)
class Way:
    """How a bad topic is to be reached, and whether it can be."""

    hosts: str
    args: str = ""
    works: bool = False
    topic: str = "t"
    entries: int = 5


@pytest.fixture(scope="module")
def awaits() -> Iterator[Awaits]:
    """The endpoint, with a place at each of its waits."""
    with loaded_with_places("remora.endpoints.kafka") as found:
        yield found


class Trials:
    """Delivers a bad topic beside a good one, again and again, each time by a worker and an endpoint of its own."""

    def __init__(self, awaits: Awaits, settings: KafkaSettings, good_uri: str, good_topic: str) -> None:
        self._awaits = awaits
        self._settings = settings
        self._good = (good_uri, good_topic)
        self._numbers = itertools.count()
        self.missed: list[str] = []

    async def run(self, way: Way, mode: str, place: str = "", shard: str = "") -> None:
        """Let a defect happen once at this place; the good topic is delivered, and the bad one too where it can be."""
        store, other, telemetry = FakeStore(tells=True), GoodEndpoint(), Telemetry()
        store._made = next(self._numbers)  # queues of an incarnation that Kafka knows no position of
        delivery = f"remora-delivery={mode}"
        # Each time it is another connection, so that all is opened anew: arguments are part of it, if only by a user.
        fresh = f"kafka-brokers=127.0.0.1:{next(self._numbers) % 1000 + 1}" if way.works else ""
        args = "&".join(filter(None, [way.args, fresh, delivery]))
        targets = {
            "bad": Target(f"kafka://{way.hosts}", args, way.topic),
            "good": Target(self._good[0], "", self._good[1]),
        }
        for queue, target in targets.items():
            store.make(queue, *(raw_entry(f"k{i}", i, topic=queue) for i in range(way.entries)))
            store.metadata[queue] = replace(a_topic(queue), target=target)
        if way.topic != "t" and "letter" in way.args:
            store.queues["bad"].append(b"no entry")
        self._awaits.arm(place, shard, FAILURES[next(self._numbers) % len(FAILURES)])
        kafka_endpoint = importlib.import_module("remora.endpoints.kafka").KafkaEndpoint
        async with kafka_endpoint(self._settings, telemetry) as endpoint:
            worker = Worker(
                store, [endpoint, other], telemetry, WorkerSetup("remora/h/b/w", OWNERSHIP, DELIVERY), Random(7)
            )
            async with running(marked(worker)) as task:
                await until(lambda: not store.queues["good"].waiting, f"{place}: the good topic is delivered", WAIT_S)
                if way.works:
                    await until(lambda: not store.queues["bad"].waiting, f"{place}: the bad topic comes back", WAIT_S)
                else:
                    await until(lambda: trouble(telemetry) >= 3, f"{place}: the bad topic fails on and on", WAIT_S)
                store.queues["good"].append(raw_entry("k", 100, topic="good"))
                await until(lambda: not store.queues["good"].waiting, f"{place}: the good topic still is", WAIT_S)
                assert not task.done(), place
                if not way.works:
                    task.cancel()
        if place and not self._awaits.hits:
            self.missed.append(place)  # a broker is not always busy, for example

    async def run_all(self, way: Way, mode: str, tried: set[str]) -> int:
        """Try each place that this way passes and that was not tried before; returns how many these are."""
        self._awaits.passed.clear()
        await self.run(way, mode)
        by_shard = {place: shard for shard in ("", "bad") for place in self._awaits.passed.get(shard, ())}
        new = {
            place: shard
            for place, shard in sorted(by_shard.items())
            if place not in tried and not place.startswith(LIFE)
        }
        for place, shard in new.items():
            await self.run(way, mode, place, shard)
        tried.update(new)
        return len(new)


def trouble(telemetry: Telemetry) -> int:
    """How often the bad topic failed, foreseen or not."""
    values = [
        sample_value(telemetry.registry, "remora_failures_total", {"topic": "bad", "kind": kind})
        for kind in ("transient", "configuration", "fenced")
    ]
    return int(sum(filter(None, [*values, sample_value(telemetry.registry, "remora_crashes_total")])))


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
@BOTH
async def test_defects_on_the_way_to_nowhere(
    awaits: Awaits, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a topic cannot be reached in the first place, no defect on the way ends the endpoint or another topic."""
    monkeypatch.setattr(roster, "CRASH_PAUSE_S", 0.05)
    (tmp_path / "junk").write_bytes(os.urandom(1000))
    tried: set[str] = set()
    trials = Trials(awaits, SHORT, "amqp://good", "good")
    async with rude_port() as rude, hanging_endpoint() as mute:
        for way in (
            Way("127.0.0.1:1", f"use-ssl=true&ca-location={tmp_path}/junk"),
            Way("127.0.0.1:1,localhost:1"),
            Way(rude),
            Way(rude, "use-ssl=true&verify-ssl=false"),
            Way(mute.address),
        ):
            await trials.run_all(way, mode, tried)
    assert len(trials.missed) < len(tried) / 10, trials.missed
    assert len(tried) > 15


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
@pytest.mark.kafka
@BOTH
async def test_defects_on_the_way_to_a_broker(
    kafka: Kafka, awaits: Awaits, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a defect happens, topics of the same broker are delivered, and so is its own after a pause."""
    monkeypatch.setattr(roster, "CRASH_PAUSE_S", 0.05)
    good, topic, letters = [await create_topic(kafka.address) for _ in range(3)]
    login = f"user-name={kafka.env['user']}&password={kafka.env['password']}"
    tried: set[str] = set()
    trials = Trials(awaits, KAFKA, f"kafka://{kafka.address}", good)
    for way in (
        Way(kafka.address, f"remora-dead-letter-topic={letters}", works=True, topic=topic),
        Way(
            kafka.env["sasl_ssl_bootstrap"],
            f"use-ssl=true&ca-location={kafka.env['ca']}&{login}", works=True, topic=topic,
        ),
        Way(kafka.address, topic="missing"),
        Way(kafka.env["ssl_bootstrap"]),
        Way(kafka.env["sasl_plaintext_bootstrap"]),
    ):  # fmt: skip
        await trials.run_all(way, mode, tried)
    assert len(trials.missed) < len(tried) / 10, trials.missed
    assert len(tried) > 40
