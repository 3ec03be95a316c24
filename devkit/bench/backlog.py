"""A standing backlog in the embedded store, delivered by a daemon of its own, as `exactly-once` and `scale` have it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from devkit.bench import programs
from devkit.bench.clusters import BenchError, Clusters
from devkit.bench.delivered import kafka_topics, read_back
from devkit.bench.embedded import Embedded, own_topic
from devkit.bench.load import Load
from devkit.processes.processes import cpu_s, memory_bytes
from remora.codec.topic import DELIVERY
from remora.model.ingest import RoutedEvent
from remora.model.topic import Delivery, Topic
from remora.ports.store import ShardStore

PARTITIONS = 11
STORED_BYTES = 4 << 20
"""So much is stored at once."""

PATIENCE_S = 180.0


@dataclass(frozen=True)
class Shape:
    """What waits, and for whom. All topics have the same Kafka topic; `payload` are bytes of a record's body.

    `more` are further sections of the daemon's configuration. So many `objects` are written again and again, each in
    one shard where that many divide among the shards; with 0 each entry has an object of its own.
    """

    topics: int = 1
    shards: int = 11
    payload: int = 1000
    workers: int = 1
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    more: str = ""
    objects: int = 0


@dataclass(frozen=True)
class Turn:
    """One daemon's delivery of a backlog; processor time is that of the interval that gave the rate."""

    entries: int
    rate: float
    daemon_cpu_s_per_1000: float
    broker_cpu_s_per_1000: float
    peak_rss_bytes: int
    copies: int


@dataclass(frozen=True)
class Backlog:
    """What waits in a store for a daemon on it; `name` is that of the Kafka topic."""

    name: str
    store: ShardStore
    embedded: Embedded
    topics: Sequence[Topic]


@asynccontextmanager
async def backlog(clusters: Clusters, folder: Path, entries: int, shape: Shape) -> AsyncIterator[Backlog]:
    """A store with this many entries, evenly over all shards, and an empty Kafka topic for them.

    The store and the daemon's files go into a folder of their own in this one.
    """
    address, name = clusters.kafka["bootstrap"], f"bench-{uuid.uuid4().hex[:8]}"
    place = folder / name
    place.mkdir()
    more = f"\n[supervisor]\nworkers = {shape.workers}\n{shape.more}"
    embedded = Embedded(place, queue_bytes=1 << 30, more=more)
    async with kafka_topics(address, [name], PARTITIONS), embedded.store() as store:
        topics = [await _made(store, name, number, address, shape) for number in range(shape.topics)]
        for number, topic in enumerate(topics):
            share = entries // shape.topics + (number < entries % shape.topics)
            await store_backlog(store, topic, share, shape.payload, number, shape.objects)
        yield Backlog(name, store, embedded, topics)


async def deliver(clusters: Clusters, folder: Path, entries: int, shape: Shape) -> Turn:
    """Store a backlog of this many entries, evenly over all shards, have it delivered, and read it back."""
    kafka = clusters.kafka
    async with backlog(clusters, folder, entries, shape) as stored:
        with programs.remora_on(stored.embedded) as process:
            pids = {"daemon": process.pid, "broker": kafka["pids"]["broker.1"]}
            turn = await measured(stored.store, stored.topics, entries, pids)
        found = await read_back(kafka["bootstrap"], [stored.name], PARTITIONS)
    if found.events != entries:
        raise BenchError(f"{found.events:,} of {entries:,} events are in the Kafka topic")
    return replace(turn, copies=found.copies)


async def _made(store: ShardStore, name: str, number: int, address: str, shape: Shape) -> Topic:
    topic = own_topic(f"{name}-{number}", f"kafka://{address}", shape.shards)
    target = replace(topic.target, topic=name, args=f"{DELIVERY}={shape.delivery}")
    return await store.own_topics.create(replace(topic, target=target))


async def store_backlog(
    store: ShardStore, topic: Topic, entries: int, payload: int, number: int, objects: int = 0
) -> None:
    """Store this many entries, evenly over the shards; `number` tells loads apart."""
    load, at_once = Load(number, topic.target, payload, objects=objects), max(1, STORED_BYTES // payload)
    for first in range(0, entries, at_once):
        made = enumerate(load.entries(first, min(at_once, entries - first)), first)
        await store.ingest.publish(topic, [RoutedEvent(n % topic.shards, b"bench:%d" % n, entry) for n, entry in made])


async def measured(store: ShardStore, topics: Sequence[Topic], entries: int, pids: dict[str, int]) -> Turn:
    """From the first look that finds some gone until none is there; if that finds all gone, from the look before."""
    shards = [shard for topic in topics for shard in topic.all_shards()]
    began = before = time.monotonic()
    left_then, deadline = entries, began + PATIENCE_S
    used: dict[str, float] = {}
    while True:
        left, now = sum(each.entries for each in await store.inspection.backlog(shards)), time.monotonic()
        if left == entries:
            before = now
        elif not used:
            began, left_then = (now, left) if left else (before, entries)
            used = {name: cpu_s(pid) for name, pid in pids.items()}
        if not left:
            spent = {name: (cpu_s(pid) - used[name]) * 1000 / left_then for name, pid in pids.items()}
            peak = memory_bytes(pids["daemon"])[1]
            return Turn(entries, left_then / (now - began), spent["daemon"], spent.get("broker", 0.0), peak, 0)
        if now > deadline:
            raise BenchError(f"{left:,} of {entries:,} entries wait after {PATIENCE_S:.0f} s")
        await asyncio.sleep(0.02)


def print_turn(name: str, turn: Turn) -> None:
    """A line for people."""
    print(
        f"{name:22} {turn.rate:9,.0f} entries/s   CPU s per 1,000: daemon {turn.daemon_cpu_s_per_1000:.4f}, "
        f"broker {turn.broker_cpu_s_per_1000:.4f}   {turn.peak_rss_bytes / 1e6:,.0f} MB   copies {turn.copies}",
        flush=True,
    )
