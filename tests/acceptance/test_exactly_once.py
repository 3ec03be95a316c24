"""Topics in exactly-once mode, read as readers of committed records do, while daemons and brokers are hurt."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.entries import raw_entry
from devkit.entries.queues import LEASE_S, Queues, assert_clean, delivers, numbered, quick
from devkit.processes.daemon import Daemon, running_daemon
from devkit.testing.cases import MORE
from devkit.waits import PATIENT_S
from remora.config import SqliteSettings
from remora.model.exits import Exit
from remora.model.ingest import RoutedEvent
from remora.model.shard import Origin, Shard
from remora.model.topic import Target, Topic
from remora.ports.store import ShardStore
from remora.storage.sqlite import SqliteStore

pytestmark = pytest.mark.kafka

EXACT = "remora-delivery=exactly-once"
Sections = dict[str, dict[str, object]]


class Source(Protocol):
    """A topic with one queue, in one of the stores."""

    sections: Sections

    async def begin(self, kafka: Kafka) -> str: ...

    async def store(self, count: int, start: int) -> None: ...

    async def waiting(self) -> int: ...


class OnRados:
    """A queue that is filled as a radosgw does."""

    def __init__(self, queues: Queues) -> None:
        self._queues, self._topic = queues, ""
        self.sections: Sections = quick(queues)

    async def begin(self, kafka: Kafka) -> str:
        self._topic = self._queues.make(f"kafka://{kafka.address}", EXACT, name=await create_topic(kafka.address))
        return self._topic

    async def store(self, count: int, start: int) -> None:
        await self._queues.fill(self._topic, count, start=start)

    async def waiting(self) -> int:
        return (await self._queues.store.inspection.stats(Shard(self._topic))).entries


class Embedded:
    """A topic of remora's own in the embedded store."""

    def __init__(self, store: ShardStore, directory: Path) -> None:
        self._store = store
        self._topic: Topic | None = None
        self.sections: Sections = {
            "supervisor": {"watchdog": "4s"},
            "rados": {"op_timeout": "1500ms"},
            "sqlite": {"directory": str(directory)},
            "ingest": {"listen": ""},
            "ownership": {
                "lease": f"{LEASE_S:g}s",
                "renew_interval": "1500ms",
                "trust_margin": "500ms",
                "discovery_interval": "500ms",
            },
            "delivery": {"retry_cap": "1s", "configuration_recheck": "1s"},
            "kafka": {"delivery_timeout": "5s", "connect_timeout": "3s"},
        }

    async def begin(self, kafka: Kafka) -> str:
        name = await create_topic(kafka.address)
        target = Target(f"kafka://{kafka.address}", EXACT, name)
        self._topic = await self._store.own_topics.create(Topic(name, "", name, target, shards=1, origin=Origin.REMORA))
        return name

    async def store(self, count: int, start: int) -> None:
        assert self._topic is not None
        numbers = range(start, start + count)
        events = [
            RoutedEvent(0, b"k%d" % (i % 20), raw_entry(f"k{i % 20}", i, topic=self._topic.name)) for i in numbers
        ]
        await self._store.ingest.publish(self._topic, events)

    async def waiting(self) -> int:
        assert self._topic is not None
        return (await self._store.inspection.stats(self._topic.first_shard)).entries


@contextlib.asynccontextmanager
async def under_load(source: Source) -> AsyncIterator[Mapping[str, int]]:
    """Store events, numbered from 0 on, for as long as the block runs; `end` counts them."""
    stored, over = {"end": 0}, asyncio.Event()

    async def load() -> None:
        while not over.is_set():
            await source.store(10, stored["end"])
            stored["end"] += 10
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 0.02)

    task = asyncio.create_task(load(), name="load")
    try:
        yield stored
    finally:
        over.set()
        await task


async def drained(daemon: Daemon, source: Source) -> None:
    async def empty() -> bool:
        return not await source.waiting()

    await daemon.until(empty, "an empty queue", PATIENT_S)


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Embedded]:
    """An embedded store, beside the daemons' configurations."""
    directory = tmp_path / "store"
    async with SqliteStore(SqliteSettings(directory=str(directory), files=2)) as store:
        yield Embedded(store, directory)


@pytest.fixture(params=["sqlite", pytest.param("rados", marks=[pytest.mark.ceph, MORE])])
def source(request: pytest.FixtureRequest) -> Source:
    """Each of the stores in turn."""
    if request.param == "rados":
        return OnRados(request.getfixturevalue("queues"))
    found: Embedded = request.getfixturevalue("embedded")
    return found


@pytest.mark.guarantee("exactly-once")
async def test_each_event_is_seen_once_though_daemon_and_broker_are_killed(
    source: Source, fragile_kafka: Kafka, tmp_path: Path
) -> None:
    """Killed under load, daemon, broker, and daemon again: committed records have each event once, and in order."""
    kafka = fragile_kafka
    topic = await source.begin(kafka)

    async with running_daemon(tmp_path, source.sections) as daemon:
        async with under_load(source) as stored:
            await delivers(daemon, topic, 100, PATIENT_S)
            await daemon.kill_all()
            await daemon.start()
            await delivers(daemon, topic, 1, PATIENT_S)
            await asyncio.to_thread(kafka.stop)
            await kafka.start()
            before = await daemon.metric("remora_delivered_entries_total", topic=topic)
            await delivers(daemon, topic, int(before) + 1, PATIENT_S)
            await daemon.kill_all()
            await daemon.start()
            await delivers(daemon, topic, 1, PATIENT_S)
        await drained(daemon, source)
        shard = await daemon.until(lambda: daemon.shard(topic), "its owner")
        assert shard["delivery"] in ("exactly-once", "")
        assert await daemon.stop() == Exit.OK

    assert_clean(await numbered(kafka.address, topic, stored["end"], committed=True))


@pytest.mark.guarantee("exactly-once")
async def test_a_frozen_owner_doubles_nothing(source: Source, kafka: Kafka, tmp_path: Path) -> None:
    """An owner that sleeps through its lease makes nothing visible when it wakes, and removes nothing."""
    topic = await source.begin(kafka)

    async with running_daemon(tmp_path, source.sections) as first:
        async with under_load(source) as stored, running_daemon(tmp_path, source.sections) as second:
            await delivers(first, topic, 100, PATIENT_S)
            await first.freeze_all()
            await delivers(second, topic, 100, PATIENT_S)
            first.thaw_all()
            await first.until(lambda: first.left(topic), "letting go", PATIENT_S)
            at = await second.metric("remora_delivered_entries_total", topic=topic)
            await delivers(second, topic, int(at) + 100, PATIENT_S)
            await second.until(lambda: second.shard(topic), "its owner")
            assert await second.stop() == Exit.OK
        await drained(first, source)
        assert await first.stop() == Exit.OK

    assert_clean(await numbered(kafka.address, topic, stored["end"], committed=True))
