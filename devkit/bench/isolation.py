"""A healthy topic, delivered alone and beside topics whose endpoints are in trouble, in turns.

Each turn has a daemon and a store of its own. The healthy topic's backlog is delivered first, which gives its rate;
then events come in at a steady pace, which gives their age when the broker has them. The other topics, several queues
each, all have entries: at an endpoint that accepts and never answers, at one that does so within TLS, at one that
refuses, and behind a door to a real broker that is slow and shut every few seconds with records under way. With
`--http-topics` they are topics over HTTP instead, whose one receiver accepts and never answers; there, in turns of both
kinds, the healthy topic gets its broker only when all others have failed once, so that the backlog meets the state
that lasts, and not the start. The ratios compare the turns; daemon, broker, door and measuring program share this
host's processors.

With `--greedy-topics` nobody is in trouble: the other topics, of another destination, are many and have all a backlog,
and the destinations have equal shares, by a scope with `each`. It is the case `share` of `scripts/bench shaping`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.bench import programs, shaping
from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.delivered import kafka_topics
from devkit.bench.embedded import NOBODY, Embedded, own_topic
from devkit.bench.load import Load, event_id
from devkit.processes.processes import cpu_s
from devkit.receivers.bad_endpoints import Door, door_before, hanging_endpoint
from remora.model.ingest import RoutedEvent
from remora.model.topic import Target, Topic
from remora.ports.producer import IngestStore

TITLE = "isolation: a healthy topic alone, and beside fifty queues whose endpoints hang"

PARTITIONS = SHARDS = 11
EVENT_ID_BYTES = len(event_id(0, 0))
STORED_AT_ONCE = 2000
BAD_ENTRIES = 2000
"""In each queue of the other topics."""

BAD_HTTP_ENTRIES = 100

DELAY_S = 0.2
SHUT_S, OPEN_S = 4.0, 2.0
"""The door before the slow broker."""

PUBLISHED_A_SECOND = 20
"""Batches of the steady load."""

PATIENCE_S = 120.0


@dataclass(frozen=True)
class Turn:
    """One daemon's deliveries of the healthy topic, and what the daemon used for them."""

    rate: float
    age_p50_s: float
    age_p99_s: float
    cpu_s: float
    failures: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench isolation` understands."""
    parser.add_argument("--entries", type=int, default=200_000, help="of the healthy backlog (default: 200,000)")
    parser.add_argument("--queues", type=int, default=50, help="whose endpoints are in trouble (default: 50)")
    parser.add_argument("--http-topics", type=int, default=0, help="whose receiver hangs, instead of the others")
    parser.add_argument("--greedy-topics", type=int, default=0, help="of another destination, instead of the others")
    parser.add_argument("--seconds", type=float, default=15.0, help="of the steady load (default: 15)")
    parser.add_argument("--pace", type=int, default=200, help="events in a second of it (default: 200)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each; the medians are compared (default: 3)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    if options.greedy_topics:
        fair = {"only": ["share"], "limit": shaping.LIMIT, "topics": options.greedy_topics}
        return shaping.run(argparse.Namespace(**vars(options) | fair))
    name = f"{options.name}-doors"  # the broker must advertise the door
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(name, options.keep, ["kafka"], ["--proxied"]) as clusters,
    ):
        return asyncio.run(_run(clusters, options, Path(folder)))


async def _run(clusters: Clusters, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    turns: dict[str, list[Turn]] = {"alone": [], "beside": []}
    for number in range(options.rounds):
        for kind, found in turns.items():
            place = folder / f"{kind}{number}"
            place.mkdir()
            found.append(await _turn(clusters, options, place, beside=kind == "beside"))
            _print_turn(kind, found[-1])
    ratio = {
        value: statistics.median(getattr(turn, value) for turn in turns["beside"])
        / statistics.median(getattr(turn, value) for turn in turns["alone"])
        for value in ("rate", "age_p50_s", "age_p99_s", "cpu_s")
    }
    print("beside / alone:  " + "   ".join(f"{name} {value:.2f}" for name, value in ratio.items()))
    return {"turns": {kind: [asdict(turn) for turn in each] for kind, each in turns.items()}, "ratio": ratio}


async def _turn(clusters: Clusters, options: argparse.Namespace, folder: Path, *, beside: bool) -> Turn:
    address, embedded = clusters.kafka["bootstrap"], Embedded(folder, queue_bytes=1 << 30)
    healthy, slow = f"bench-{uuid.uuid4().hex[:8]}", f"bench-{uuid.uuid4().hex[:8]}-slow"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            kafka_topics(address, [healthy, slow], PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
        )
        (topic,) = await embedded.make_topics([healthy], f"kafka://{address}", SHARDS)
        store = await stack.enter_async_context(embedded.store())
        if beside:
            await _trouble(clusters, options, store, slow, stack)
        load = Load(0, topic.target, 1000)
        await _store(store, topic, load, options.entries)
        if options.http_topics:
            await store.own_topics.change(replace(topic, target=replace(topic.target, uri=NOBODY)))
        with programs.remora_on(embedded) as process:
            if options.http_topics:
                await _settled(embedded, options.http_topics if beside else 0, healthy)
                await store.own_topics.change(topic)
            rate = await _rate(address, topic, options.entries)
            used, ages = cpu_s(process.pid), await _ages(address, topic, store, load, options)
            used = cpu_s(process.pid) - used
            failures = await embedded.metric("remora_failures_total")
            process.kill()  # what waits at the bad endpoints is not to be waited for
            process.wait()
    if beside and not failures:
        raise BenchError("nothing has failed at the endpoints that hang: these figures mean nothing")
    cuts = statistics.quantiles(ages, n=100)
    return Turn(rate, cuts[49], cuts[98], used, failures)


# --------------------------------------------------------------------------------------------- trouble


async def _trouble(
    clusters: Clusters, options: argparse.Namespace, store: Any, slow: str, stack: AsyncExitStack
) -> None:
    """Topics with entries for endpoints that are in trouble, for as long as the stack is open."""
    env = clusters.kafka
    mute = await stack.enter_async_context(hanging_endpoint())
    for number in range(options.http_topics):
        hangs = own_topic(f"{slow}-http-{number}", f"http://{mute.address}/{number}", 1)
        await _store(store, await store.own_topics.create(hangs), Load(1, hangs.target, 1000), BAD_HTTP_ENTRIES)
    if options.http_topics:
        return
    door = env["proxied_bootstrap"]
    ports = env["ports"]["broker.1/proxied"], int(door.rpartition(":")[2])
    await stack.enter_async_context(_opening_and_shutting(*ports))
    targets = {
        "mute": Target(f"kafka://{mute.address}", "", slow),
        "mute-tls": Target(f"kafka://{mute.address}", "use-ssl=true&verify-ssl=false", slow),
        "refusing": Target(NOBODY, "", slow),
        "slow": Target(f"kafka://{door}", "", slow),
        "slow-again": Target(f"kafka://{door}", "kafka-ack-level=broker", slow),  # a destination of its own
    }
    for name, target in targets.items():
        bad = own_topic(f"{slow}-{name}", target.uri, max(1, options.queues // len(targets)))
        made = await store.own_topics.create(replace(bad, target=target))
        await _store(store, made, Load(1, target, 1000), min(BAD_ENTRIES, options.entries) * made.shards)


async def _settled(embedded: Embedded, others: int, healthy: str) -> None:
    """Return when the shards of the healthy topic, which has no broker yet, and so many other topics have failed.

    One whose destination is in quarantine waits for another that tries it.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(aiohttp.ClientError, OSError):  # nobody answers before the daemon has begun
            shards = (await embedded.status())["shards"]
            failed = [each["queue"] for each in shards if each["failures"] or each["state"] == "quarantined"]
            of_healthy = sum(each == healthy or each.startswith(f"{healthy}.") for each in failed)
            if of_healthy == SHARDS and len(failed) >= SHARDS + others:
                return
        if time.monotonic() > deadline:
            raise BenchError(f"{others} topics were to fail within {PATIENCE_S:.0f} s, and did not")
        await asyncio.sleep(0.2)


@asynccontextmanager
async def _opening_and_shutting(port: int, at: int) -> AsyncIterator[None]:
    async def swing(door: Door) -> None:
        while True:
            await asyncio.sleep(OPEN_S)
            door.shut()
            await asyncio.sleep(SHUT_S)
            door.reopen()

    async with door_before(port, at, DELAY_S) as door:
        swinging = asyncio.create_task(swing(door))
        try:
            yield
        finally:
            swinging.cancel()
            with suppress(asyncio.CancelledError):
                await swinging


# --------------------------------------------------------------------------------------- what is measured


async def _store(store: IngestStore, topic: Topic, load: Load, entries: int) -> None:
    """Store a backlog, evenly over the shards."""
    for first in range(0, entries, STORED_AT_ONCE):
        await _publish(store, topic, load, first, min(STORED_AT_ONCE, entries - first))


async def _publish(store: IngestStore, topic: Topic, load: Load, first: int, count: int) -> None:
    payloads = load.entries(first, count)
    await store.ingest.publish(
        topic, [RoutedEvent(n % topic.shards, b"bench:%d" % n, payload) for n, payload in enumerate(payloads, first)]
    )


async def _rate(address: str, topic: Topic, entries: int) -> float:
    """Entries in a second, from the first in Kafka that is seen until all are."""
    began, at_first, deadline = 0.0, 0, time.monotonic() + PATIENCE_S
    async with AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False) as consumer:
        places = [TopicPartition(topic.name, number) for number in range(PARTITIONS)]
        while True:
            there: int = sum((await consumer.end_offsets(places)).values())
            now = time.monotonic()
            if there and not began:
                began, at_first = now, there
            if there >= entries:
                return (there - at_first) / max(now - began, 1e-3)
            if now > deadline:
                raise BenchError(f"{there:,} of {entries:,} entries were delivered in {PATIENCE_S:.0f} s")
            await asyncio.sleep(0.01)


async def _ages(
    address: str, topic: Topic, store: IngestStore, load: Load, options: argparse.Namespace
) -> Sequence[float]:
    """Seconds from the moment that each event of a steady load is handed to the store until the broker has it."""
    stored_at: dict[bytes, float] = {}
    batch = max(1, options.pace // PUBLISHED_A_SECOND)
    places = [TopicPartition(topic.name, number) for number in range(PARTITIONS)]
    async with AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False) as consumer:
        consumer.assign(places)
        await consumer.seek_to_end(*places)
        for place in places:
            await consumer.position(place)
        for number in range(int(options.seconds * PUBLISHED_A_SECOND)):
            first = options.entries + number * batch
            stored_at.update((event_id(0, each), time.time()) for each in range(first, first + batch))
            await _publish(store, topic, load, first, batch)
            await asyncio.sleep(1 / PUBLISHED_A_SECOND)
        ages: dict[bytes, float] = {}
        deadline = time.monotonic() + PATIENCE_S
        while len(ages) < len(stored_at):
            if time.monotonic() > deadline:
                raise BenchError(f"{len(ages)} of {len(stored_at)} events of the steady load were delivered")
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    event = dict(record.headers)["remora-event-id"][:EVENT_ID_BYTES]
                    ages.setdefault(event, record.timestamp / 1000 - stored_at[event])
    return list(ages.values())


def _print_turn(kind: str, turn: Turn) -> None:
    p50_ms, p99_ms = turn.age_p50_s * 1e3, turn.age_p99_s * 1e3
    print(
        f"{kind:6} {turn.rate:9,.0f} entries/s   age p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms   "
        f"CPU of the steady load {turn.cpu_s:.2f} s   failures of other topics {turn.failures:.0f}",
        flush=True,
    )
