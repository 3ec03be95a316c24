"""A standing backlog delivered in exactly-once and in at-least-once mode, in turns: what transactions cost.

Each turn has a daemon, an embedded store and a Kafka topic of its own, with eleven queues and as many partitions. The
rate is that at which entries leave the queues, from the first that is seen to have left until none is there. What is
in the Kafka topic is counted afterwards. The ratio compares the medians of the turns.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench_lib import programs
from bench_lib.clusters import BenchError, Clusters, running_clusters
from bench_lib.delivered import kafka_topics, read_back
from bench_lib.embedded import Embedded, own_topic
from bench_lib.load import Load
from bench_lib.processes import cpu_s
from remora.codec.topic import DELIVERY
from remora.model.ingest import Placed
from remora.model.topic import Delivery, Topic
from remora.ports import ShardStore

TITLE = "exactly-once: a backlog delivered in transactions, and at least once"

SHARDS = PARTITIONS = 11
STORED_AT_ONCE = 2000
PATIENCE_S = 180.0


@dataclass(frozen=True)
class Turn:
    """One daemon's delivery of the backlog; processor seconds are those of the broker."""

    rate: float
    broker_cpu_s: float
    copies: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench exactly-once` understands."""
    parser.add_argument("--entries", type=int, default=300_000, help="of the backlog (default: 300,000)")
    parser.add_argument("--workers", type=int, default=1, help="processes of the daemon (default: 1)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each mode (default: 3)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(options.name, options.keep, ["kafka"]) as clusters,
    ):
        return asyncio.run(_run(clusters, options, Path(folder)))


async def _run(clusters: Clusters, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    turns: dict[str, list[Turn]] = {str(each): [] for each in Delivery}
    for number in range(options.rounds):
        for mode, found in turns.items():
            place = folder / f"{mode}{number}"
            place.mkdir()
            found.append(await _turn(clusters, options, place, mode))
            print(
                f"{mode:14} {found[-1].rate:9,.0f} entries/s   broker CPU {found[-1].broker_cpu_s:.2f} s"
                f"   copies {found[-1].copies}",
                flush=True,
            )
    medians = {mode: statistics.median(turn.rate for turn in each) for mode, each in turns.items()}
    ratio = medians[Delivery.EXACTLY_ONCE] / medians[Delivery.AT_LEAST_ONCE]
    print(f"exactly-once / at-least-once:  rate {ratio:.2f}")
    return {"turns": {mode: [asdict(turn) for turn in each] for mode, each in turns.items()}, "ratio": ratio}


async def _turn(clusters: Clusters, options: argparse.Namespace, folder: Path, mode: str) -> Turn:
    address, name = clusters.kafka["bootstrap"], f"bench-{uuid.uuid4().hex[:8]}"
    embedded = Embedded(folder, queue_bytes=1 << 30, more=f"\n[supervisor]\nworkers = {options.workers}\n")
    broker = clusters.kafka["pids"]["broker.1"]
    async with kafka_topics(address, [name], PARTITIONS), embedded.store() as store:
        plain = own_topic(name, f"kafka://{address}", SHARDS)
        topic = await store.create_topic(replace(plain, target=replace(plain.target, args=f"{DELIVERY}={mode}")))
        await _store(store, topic, options.entries)
        used = cpu_s(broker)
        with programs.remora_on(embedded):
            rate = await _rate(store, topic, options.entries)
        used = cpu_s(broker) - used
        found = await read_back(address, [name], PARTITIONS)
    if found.events != options.entries:
        raise BenchError(f"{found.events:,} of {options.entries:,} events are in the Kafka topic")
    return Turn(rate, used, found.copies)


async def _store(store: ShardStore, topic: Topic, entries: int) -> None:
    """Store a backlog, evenly over the shards."""
    load = Load(0, topic.target, 1000)
    for first in range(0, entries, STORED_AT_ONCE):
        payloads = load.entries(first, min(STORED_AT_ONCE, entries - first))
        events = [Placed(n % topic.shards, b"bench:%d" % n, payload) for n, payload in enumerate(payloads, first)]
        await store.publish(topic, events)


async def _rate(store: ShardStore, topic: Topic, entries: int) -> float:
    """Entries in a second, from the first that is seen to have left until none is there."""
    began, left_then, deadline = 0.0, entries, time.monotonic() + PATIENCE_S
    while True:
        left, now = sum(each.entries for each in await store.survey(topic.all_shards())), time.monotonic()
        if left < entries and not began:
            began, left_then = now, left
        if not left:
            return left_then / max(now - began, 1e-3)
        if now > deadline:
            raise BenchError(f"{left:,} of {entries:,} entries wait after {PATIENCE_S:.0f} s")
        await asyncio.sleep(0.02)
