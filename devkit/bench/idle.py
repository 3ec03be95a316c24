"""What a daemon costs that has nothing to do, and how soon it delivers after it was killed.

The idle daemon serves many topics with many shards in its embedded store; its processor time is counted over a
minute. The other one has a backlog in one topic, whose endpoint, a real broker, was frozen: it is killed with SIGKILL
and started again while the broker goes on, and the time counts from the start of the process until a consumer gets
the first record. In the end all of the backlog must be in Kafka.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.bench import programs
from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.delivered import kafka_topics, read_back
from devkit.bench.embedded import NOBODY, Embedded
from devkit.bench.load import Load
from devkit.processes.processes import cpu_s, memory_bytes
from remora.model.ingest import RoutedEvent
from remora.model.topic import Topic

TITLE = "idle: a daemon with a thousand idle topics, and a restart with a backlog"

PARTITIONS = 11
HELD = "remora_owned_shards"
START_S, A_SHARD_S = 120.0, 0.01
"""How long a daemon may take to serve its shards, and more for each: its processor time is 0.2 ms a shard, so that a
machine may be busy with much else."""
STORED_AT_ONCE = 2000


@dataclass(frozen=True)
class Idle:
    """A daemon that serves all its shards and has nothing to do. `cpu` is its share of one processor."""

    topics: int
    shards: int
    served_after_s: float
    cpu: float
    rss_bytes: int
    peak_rss_bytes: int


@dataclass(frozen=True)
class Restart:
    """A daemon killed and started again on a backlog: seconds from each start until a consumer had the first record.

    `last_s` is the time from the last start until Kafka had all.
    """

    entries: int
    firsts_s: list[float]
    last_s: float
    delivered: int
    copies: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench idle` understands."""
    parser.add_argument("--topics", type=int, default=1000, help="idle topics (default: 1000)")
    parser.add_argument("--shards", type=int, default=11, help="of each topic (default: 11)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long is counted (default: 60)")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds before, that are not (default: 10)")
    parser.add_argument("--entries", type=int, default=500_000, help="of the backlog (default: 500,000)")
    parser.add_argument("--restarts", type=int, default=3, help="how often it is killed (default: 3)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(options.name, options.keep, ["kafka"]) as clusters,
    ):
        return asyncio.run(_run(clusters, options, Path(folder)))


async def _run(clusters: Clusters, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    idle = await _idle(options, folder)
    print(
        f"{idle.topics:,} idle topics of {options.shards} shards: {idle.cpu:.1%} of one processor, "
        f"{idle.rss_bytes / 1e6:.0f} MB resident, {idle.peak_rss_bytes / 1e6:.0f} MB at most; "
        f"all {idle.shards:,} shards served {idle.served_after_s:.1f} s after the start",
        flush=True,
    )
    restart = await _restart(clusters, options, folder)
    print(
        f"killed and started again with {restart.entries:,} entries: the first in Kafka after "
        f"{', '.join(f'{each:.2f}' for each in restart.firsts_s)} s, the last after {restart.last_s:.1f} s; "
        f"{restart.delivered:,} events read back, {restart.copies:,} further copies"
    )
    if restart.delivered != restart.entries:
        raise BenchError(f"{restart.entries - restart.delivered} events are missing")
    return {"idle": asdict(idle), "restart": asdict(restart)}


# ------------------------------------------------------------------------------------------------ idle


async def _idle(options: argparse.Namespace, folder: Path) -> Idle:
    (folder / "idle").mkdir()
    embedded = Embedded(folder / "idle")
    began = time.monotonic()
    await embedded.make_topics([f"idle-{number:04}" for number in range(options.topics)], NOBODY, options.shards)
    print(f"{options.topics:,} topics were made in {time.monotonic() - began:.1f} s", flush=True)
    shards = options.topics * options.shards
    with programs.remora_on(embedded) as process:
        began = time.monotonic()
        await _serves(process, embedded, shards)
        served_after_s = time.monotonic() - began
        await asyncio.sleep(options.settle)
        before, began = cpu_s(process.pid), time.monotonic()
        await asyncio.sleep(options.seconds)
        cpu = (cpu_s(process.pid) - before) / (time.monotonic() - began)
        return Idle(options.topics, shards, served_after_s, cpu, *memory_bytes(process.pid))


async def _serves(process: subprocess.Popen[bytes], embedded: Embedded, shards: int) -> None:
    """Return when the daemon holds this many shards."""
    await programs.listening(process, embedded)
    patience_s = START_S + A_SHARD_S * shards
    deadline = time.monotonic() + patience_s
    while (held := await embedded.metric(HELD)) < shards:
        if time.monotonic() > deadline:
            raise BenchError(f"{held:.0f} of {shards} shards are held {patience_s:.0f} s after the start")
        await asyncio.sleep(0.2)


# --------------------------------------------------------------------------------------------- restart


async def _restart(clusters: Clusters, options: argparse.Namespace, folder: Path) -> Restart:
    (folder / "restart").mkdir()
    embedded = Embedded(folder / "restart", queue_bytes=1 << 30)
    address, name = clusters.kafka["bootstrap"], f"bench-{uuid.uuid4().hex[:8]}"
    async with kafka_topics(address, [name], PARTITIONS), _newest(address, name) as newest:
        (topic,) = await embedded.make_topics([name], f"kafka://{address}", options.shards)
        await _store(embedded, topic, options.entries)
        clusters.stop("kafka", "broker.1", "STOP")
        with programs.remora_on(embedded) as process:
            await _serves(process, embedded, options.shards)
            programs.kill(process)
        firsts_s = []
        for number in range(options.restarts):
            clusters.stop("kafka", "broker.1", "CONT")
            await newest.rest()
            began = time.monotonic()
            with programs.remora_on(embedded) as process:
                await newest.record()
                firsts_s.append(time.monotonic() - began)
                if number == options.restarts - 1:
                    await newest.records(options.entries)
                    last_s = time.monotonic() - began
                else:
                    clusters.stop("kafka", "broker.1", "STOP")
                    programs.kill(process)
        delivered = await read_back(address, [name], PARTITIONS)
    return Restart(options.entries, firsts_s, last_s, delivered.events, delivered.copies)


async def _store(embedded: Embedded, topic: Topic, entries: int) -> None:
    """Store a backlog, evenly over the shards."""
    load = Load(0, topic.target, 1000)
    async with embedded.store() as store:
        for first in range(0, entries, STORED_AT_ONCE):
            payloads = load.entries(first, min(STORED_AT_ONCE, entries - first))
            placed = [
                RoutedEvent(n % topic.shards, b"bench:%d" % n, payload) for n, payload in enumerate(payloads, first)
            ]
            await store.ingest.publish(topic, placed)


class _Newest:
    """A consumer of what comes into a Kafka topic from now on."""

    def __init__(self, consumer: AIOKafkaConsumer, places: Sequence[TopicPartition]) -> None:
        self._consumer = consumer
        self._places = places

    async def rest(self) -> None:
        """Pass over all that a sender which has died left on its way: until nothing came for a second."""
        while await self._consumer.getmany(timeout_ms=1000):
            pass

    async def record(self) -> None:
        """Return when a record has come."""
        if not await self._consumer.getmany(timeout_ms=int(START_S * 1000)):
            raise BenchError(f"nothing was delivered within {START_S:.0f} s")

    async def records(self, count: int) -> None:
        """Return when the topic has this many records."""
        deadline = time.monotonic() + START_S
        while sum((await self._consumer.end_offsets(self._places)).values()) < count:
            if time.monotonic() > deadline:
                raise BenchError(f"not all was delivered within {START_S:.0f} s")
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _newest(address: str, name: str) -> AsyncIterator[_Newest]:
    places = [TopicPartition(name, number) for number in range(PARTITIONS)]
    async with AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False) as consumer:
        consumer.assign(places)
        await consumer.seek_to_end(*places)
        yield _Newest(consumer, places)
