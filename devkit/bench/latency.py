"""How old events are when the broker has them: in idle queues, and under a steady load.

A client hands events to a daemon on a schedule of its own, whatever becomes of them: single ones at random moments, so
that a period of looking would show; then batches at a steady rate. On the embedded store they come through the ingest
API; on a cluster this program reserves and commits them in the queues, as a radosgw does. The age of an event is from
the moment that it is handed over until the broker's own time stamp, which is cut to whole milliseconds. Client, daemon,
broker and OSDs share this host's processors.

With `--spans` the client samples some of its requests, and the daemon sends a span for each of their events. Printed is
what the stages in a span add up to, as a part of its event's age: the least of all.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
import uuid
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.bench import programs
from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.delivered import arrived, kafka_topics
from devkit.bench.embedded import Embedded
from devkit.bench.events import NUMBERS_A_BODY, Bodies
from devkit.bench.load import Load
from devkit.processes.processes import cpu_s
from devkit.receivers.otlp import collecting, covered
from remora.client import IngestClient
from remora.model.ingest import RoutedEvent
from remora.model.topic import Topic

TITLE = "latency: how old events are when the broker has them, idle and under load"

PARTITIONS = 11
RECORD_BYTES = 900
BATCH = 100
"""Events of a batch of the steady load; idle queues get one at a time."""

WARM_UP_S = 3.0
"""Of the same load, before it counts."""

PATIENCE_S = 60.0

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
"""The trace context of a request that its client samples."""


@dataclass(frozen=True)
class Turn:
    """One load. `cpu` is the daemon's share of one processor.

    Of the events with spans `least_covered` is the least part of an age that stages name.
    """

    load: str
    events: int
    rate: float
    p50_s: float
    p99_s: float
    p999_s: float
    cpu: float
    spans: int = 0
    least_covered: float = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench latency` understands."""
    parser.add_argument("--store", choices=("sqlite", "rados"), default="sqlite", help="default: sqlite")
    parser.add_argument("--shards", type=int, default=11, help="queues of the topic (default: 11)")
    parser.add_argument("--idle", type=float, default=10.0, help="single events a second (default: 10)")
    text = "events a second of the steady load (default: 15000, and 5000 with rados)"
    parser.add_argument("--rate", type=float, help=text)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load (default: 30)")
    text = "events of each load that get spans, at least (default: 0; only of the embedded store)"
    parser.add_argument("--spans", type=int, default=0, help=text)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    if options.spans and options.store == "rados":
        raise BenchError("--spans goes by requests of the ingest API: it needs the embedded store")
    kinds = ["kafka", "ceph"] if options.store == "rados" else ["kafka"]
    rate = options.rate or (5000 if options.store == "rados" else 15_000)
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(options.name, options.keep, kinds) as clusters,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        turns = []
        for name, batch, per_s in (("idle", 1, options.idle), ("steady load", BATCH, rate)):
            place = Path(folder) / f"{batch}"
            place.mkdir()
            turns.append(runner.run(_turn(clusters, options, place, name, batch, per_s)))
            _print_turn(turns[-1])
    return {"store": options.store, "turns": [asdict(turn) for turn in turns]}


async def _turn(
    clusters: Clusters, options: argparse.Namespace, folder: Path, load: str, batch: int, per_s: float
) -> Turn:
    address, name = clusters.kafka["bootstrap"], f"bench-{uuid.uuid4().hex[:8]}"
    is_rados = options.store == "rados"
    schedule = _schedule(per_s / batch, WARM_UP_S + options.seconds, at_random=batch == 1)
    async with AsyncExitStack() as stack:
        spans, url = await stack.enter_async_context(collecting())
        more = f'\n[traces]\nendpoint = "{url}"\nsample = 0\n' if options.spans else ""
        embedded = Embedded(
            folder, queue_bytes=1 << 30, more=more, rados=clusters.place_of_its_own(name) if is_rados else None
        )
        await stack.enter_async_context(
            kafka_topics(address, [name], PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
        )
        (topic,) = await embedded.make_topics([name], f"kafka://{address}", options.shards)
        process = stack.enter_context(programs.remora_on(embedded))
        await programs.listening(process, embedded)
        every = max(1, len(schedule) * batch // options.spans) if options.spans else 0
        sender = _committing(embedded, topic, batch) if is_rados else _posting(embedded, topic, batch, every)
        publish = await stack.enter_async_context(sender)
        used, began, handed = cpu_s(process.pid), time.monotonic(), await _hand_over(publish, schedule)
        cpu = (cpu_s(process.pid) - used) / (time.monotonic() - began)
        await arrived(address, [name], PARTITIONS, len(handed) * batch, PATIENCE_S)
        first, step = bisect_left(schedule, WARM_UP_S), batch if is_rados else NUMBERS_A_BODY
        ages = [at_s - handed[n // step] async for n, at_s in _arrivals(address, name) if n // step >= first]
        parts = (
            [covered(each) for each in await spans.delivered(name, len(range(0, len(schedule), every)) * batch)]
            if every
            else []
        )
    cuts = statistics.quantiles(ages, n=1000, method="inclusive")
    known = len(ages), len(ages) / options.seconds, cuts[499], cuts[989], cuts[998], cpu
    return Turn(load, *known, len(parts), min(parts, default=1.0))


# ---------------------------------------------------------------------------------------------- what is handed over

Publish = Callable[[int], Awaitable[object]]
"""Hands the batch of that number over; returns when it is stored."""


@asynccontextmanager
async def _posting(embedded: Embedded, topic: Topic, batch: int, every: int) -> AsyncIterator[Publish]:
    """Through the ingest API. Bodies are numbered as they are made, in order; each `every`th request is sampled."""
    bodies = Bodies(batch, RECORD_BYTES)
    async with IngestClient(embedded.ingest, connections=32) as client:

        def publish(number: int) -> Awaitable[object]:
            sampled = SAMPLED if every and number % every == 0 else ""
            return client.publish_ndjson(topic.name, bodies.next(), traceparent=sampled)

        yield publish


@asynccontextmanager
async def _committing(embedded: Embedded, topic: Topic, batch: int) -> AsyncIterator[Publish]:
    """Straight into the queues."""
    load = Load(0, topic.target, RECORD_BYTES)
    async with embedded.store() as store:

        def publish(number: int) -> Awaitable[object]:
            entries = enumerate(load.entries(number * batch, batch), number * batch)
            return store.ingest.publish(
                topic, [RoutedEvent(n % topic.shards, b"bench:%d" % n, entry) for n, entry in entries]
            )

        yield publish


def _schedule(per_s: float, seconds: float, *, at_random: bool) -> list[float]:
    """Moments, in seconds from the beginning."""
    if not at_random:
        return [number / per_s for number in range(round(seconds * per_s))]
    rng = random.Random(1)
    return sorted(rng.uniform(0, seconds) for _ in range(round(seconds * per_s)))


async def _hand_over(publish: Publish, schedule: Sequence[float]) -> dict[int, float]:
    """When each batch was handed over, by its number; returns when all are stored."""
    handed = {}
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, at_s in enumerate(schedule):
            await asyncio.sleep(began + at_s - time.monotonic())
            handed[number] = time.time()
            tasks.create_task(_awaited(publish(number)))
    return handed


async def _awaited(stored: Awaitable[object]) -> None:
    await stored


# --------------------------------------------------------------------------------------------------- what arrived


async def _arrivals(address: str, name: str) -> AsyncIterator[tuple[int, float]]:
    """The number of each event, and when the broker had it. Copies do not count."""
    places = [TopicPartition(name, number) for number in range(PARTITIONS)]
    seen: set[int] = set()
    async with AIOKafkaConsumer(
        bootstrap_servers=address, enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(places)
        last = await consumer.end_offsets(places)
        while any([await consumer.position(place) < last[place] for place in places]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    number = _number(dict(record.headers)["remora-event-id"])
                    if number not in seen:
                        seen.add(number)
                        yield number, record.timestamp / 1000


def _number(event_id: bytes) -> int:
    """The number that an event has in its id, wherever the id has it."""
    first, second, _ = event_id.split(b".", 2)
    return int(second if len(second) == 10 else first)


def _print_turn(turn: Turn) -> None:
    ages = ", ".join(
        f"{name} {age_s * 1e3:.1f}"
        for name, age_s in (("p50", turn.p50_s), ("p99", turn.p99_s), ("p99.9", turn.p999_s))
    )
    named = f"   stages name {turn.least_covered:.1%} or more of {turn.spans:,} ages" if turn.spans else ""
    print(
        f"{turn.load:12} {turn.rate:9,.1f} events/s   age in ms: {ages}   daemon {turn.cpu:.1%} of a processor{named}",
        flush=True,
    )
