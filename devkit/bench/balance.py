"""Two hosts on one store, one of which is throttled: how old events become, and when they are as young as before.

Two daemons with workers of their own share an embedded store and a steady load. After a while workers of one of them
are stopped and continued again and again, as cpulimit does and a quota of a control group: they run for a part of
each period only. What the daemons move for its load, and the age of events from the moment that they are handed to the
store until the broker has them, are counted in windows of half a balance interval. In the end the topic is read from
the broker: every event is there, and copies are counted. Daemons, broker and this program share this host's processors.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.bench import programs
from devkit.bench.clusters import BenchError, running_clusters
from devkit.bench.delivered import arrived, kafka_topics
from devkit.bench.embedded import Embedded
from devkit.bench.load import Load, event_id
from devkit.bench.throttle import throttled_from
from devkit.processes.processes import family
from remora.model.ingest import RoutedEvent
from remora.model.topic import Topic
from remora.ports.producer import IngestStore

TITLE = "balance: how old events become when one of two hosts is throttled"

PARTITIONS = 11
BATCHES_A_SECOND = 10
EVENT_ID_BYTES = len(event_id(0, 0))
PATIENCE_S = 300.0

_MORE = """
[supervisor]
workers = {workers}
run_directory = "{folder}/run"

[ownership]
host_id = "{host}"

[balance]
interval = "{interval:g}s"
history = {history}
min_throughput = "{minimum}B"
weights = {{ cpu = 1.0, host_cpu = 0.0, memory = 1.0, held = 1.0, network_in = 1.0, network_out = 1.0 }}
"""
"""Both hosts are this one: how busy its processors are says nothing of either."""


@dataclass(frozen=True)
class Window:
    """Events that were handed over in half a balance interval, which began `at_s` after the throttling.

    `moves` are those for their load so far, and `held` the shards of the throttled workers at the window's end.
    """

    at_s: float
    events: int
    p50_s: float
    p99_s: float
    moves: int
    held: int


@dataclass(frozen=True)
class Look:
    """What the daemons say at a moment of the wall clock."""

    at_s: float
    moves: int
    held: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench balance` understands."""
    parser.add_argument("--workers", type=int, default=4, help="of each host (default: 4)")
    parser.add_argument("--shards", type=int, default=32, help="default: 32")
    parser.add_argument("--pace", type=int, default=2000, help="events in a second (default: 2,000)")
    parser.add_argument("--part", type=float, default=0.25, help="of the time that workers run (default: 0.25)")
    parser.add_argument("--period", type=float, default=100, help="of a stop and a run, in ms (default: 100)")
    parser.add_argument("--slow", type=int, help="throttled workers of the first host (default: all)")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between two rounds (default: 10)")
    parser.add_argument("--history", type=int, default=50, help="balance.history, in percent (default: 50)")
    parser.add_argument("--minimum", type=int, default=1000, help="balance.min_throughput, in bytes (default: 1,000)")
    parser.add_argument("--before", type=int, default=2, help="intervals before the throttling (default: 2)")
    parser.add_argument("--after", type=int, default=4, help="intervals from then on (default: 4)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures. Raises BenchError where an event is lost."""
    if options.before < 2:
        raise BenchError("--before must be 2 or more: the first interval is not counted")
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(options.name, options.keep, ["kafka"]) as clusters,
    ):
        return asyncio.run(_run(clusters.kafka["bootstrap"], options, Path(folder)))


async def _run(address: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    name, hosts = f"bench-{uuid.uuid4().hex[:8]}", [_host(each, options, folder) for each in ("throttled", "other")]
    async with AsyncExitStack() as stack:
        config = {"message.timestamp.type": "LogAppendTime"}
        await stack.enter_async_context(kafka_topics(address, [name], PARTITIONS, config))
        (topic,) = await hosts[0].make_topics([name], f"kafka://{address}", options.shards)
        processes = [stack.enter_context(programs.remora_on(host)) for host in hosts]
        for process, host in zip(processes, hosts, strict=True):
            await programs.listening(process, host)
        await _shared(hosts, options.shards)
        store = await stack.enter_async_context(hosts[0].store())
        seconds = (options.before + options.after) * options.interval
        looks: list[Look] = []
        workers = family(processes[0].pid)[1:][: options.slow]
        looking = asyncio.create_task(_look_again_and_again(hosts, workers, looks))
        began = time.time()
        throttled_at = began + options.before * options.interval
        with throttled_from(throttled_at, workers, options.part, options.period / 1000):
            handed = await _hand_over(store, topic, options.pace, seconds)
        await arrived(address, [name], PARTITIONS, len(handed), PATIENCE_S)
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        there, copies = await _there(address, name)
    if there.keys() != handed.keys():
        raise BenchError(f"{len(handed.keys() - there.keys())} of {len(handed)} events are lost")
    ages = {number: there[number] - handed[number] for number in handed}
    windows = list(_windows(ages, handed, looks, throttled_at, options.interval / 2))
    old = _p99([ages[number] for number, at_s in handed.items() if began + options.interval < at_s < throttled_at])
    back_s = _back_s(windows, 2 * old)
    for window in windows:
        print(
            f"{window.at_s:6.0f} s   age p50 {window.p50_s * 1e3:7.0f} ms, p99 {window.p99_s * 1e3:7.0f} ms   "
            f"{window.moves} moves for load, {window.held} shards at throttled workers",
            flush=True,
        )
    back = "never" if back_s is None else f"{back_s / options.interval:.1f} intervals after the throttling"
    print(f"p99 before {old * 1e3:.0f} ms; under twice that: {back}; {len(handed):,} events, {copies} copies, 0 lost")
    return {
        "windows": [asdict(window) for window in windows],
        "old_p99_s": old,
        "back_after_intervals": None if back_s is None else back_s / options.interval,
        "events": len(handed),
        "copies": copies,
        "lost": 0,
    }


def _host(name: str, options: argparse.Namespace, folder: Path) -> Embedded:
    place = folder / name
    place.mkdir()
    more = _MORE.format(
        workers=options.workers,
        folder=folder,
        host=name,
        interval=options.interval,
        history=options.history,
        minimum=options.minimum,
    )
    return Embedded(place, queue_bytes=1 << 30, directory=folder / "store", more=more)


async def _shared(hosts: Sequence[Embedded], shards: int) -> None:
    """Return when each host has half of the shards."""
    deadline = time.monotonic() + PATIENCE_S
    while [await _held(host) for host in hosts] != [shards // 2, shards // 2]:
        if time.monotonic() > deadline:
            raise BenchError("the hosts do not share the shards")
        await asyncio.sleep(0.5)


async def _held(host: Embedded) -> int:
    return len((await host.status())["shards"])


async def _look_again_and_again(hosts: Sequence[Embedded], throttled: Sequence[int], looks: list[Look]) -> None:
    """Note what the hosts say, once a second; one whose workers, of these pids, are throttled answers late."""
    while True:
        moves = [await host.metric("remora_shard_moves_total", kind="load") for host in hosts]
        held = sum(each["shards"] for each in (await hosts[0].status())["workers"] if each["pid"] in throttled)
        looks.append(Look(time.time(), round(sum(moves)), held))
        await asyncio.sleep(1)


async def _hand_over(store: IngestStore, topic: Topic, pace: int, seconds: float) -> dict[int, float]:
    """Store events at a steady pace, evenly over the shards; when each was handed over, by its number."""
    load, batch, began = Load(0, topic.target, 1000), pace // BATCHES_A_SECOND, time.monotonic()
    handed: dict[int, float] = {}
    for turn in range(int(seconds * BATCHES_A_SECOND)):
        await asyncio.sleep(began + turn / BATCHES_A_SECOND - time.monotonic())
        first, now = turn * batch, time.time()
        entries = list(enumerate(load.entries(first, batch), first))
        handed.update((number, now) for number, _ in entries)
        await store.ingest.publish(
            topic, [RoutedEvent(number % topic.shards, b"bench:%d" % number, entry) for number, entry in entries]
        )
    return handed


async def _there(address: str, name: str) -> tuple[dict[int, float], int]:
    """When the broker had each event first, by its number, and how many copies there are."""
    places = [TopicPartition(name, number) for number in range(PARTITIONS)]
    seen: Counter[int] = Counter()
    first: dict[int, float] = {}
    async with AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False) as consumer:
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        last = await consumer.end_offsets(places)
        while any([await consumer.position(place) < last[place] for place in places]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    number = int(dict(record.headers)["remora-event-id"][:EVENT_ID_BYTES].partition(b".")[0])
                    seen[number] += 1
                    first.setdefault(number, record.timestamp / 1000)
    return first, seen.total() - len(seen)


def _windows(
    ages: dict[int, float], handed: dict[int, float], looks: Sequence[Look], throttled_at: float, length_s: float
) -> Iterator[Window]:
    found: dict[int, list[float]] = {}
    for number, at_s in handed.items():
        found.setdefault(int((at_s - throttled_at) // length_s), []).append(ages[number])
    for place, each in sorted(found.items()):
        end = throttled_at + (place + 1) * length_s
        look = max((look for look in looks if look.at_s <= end), key=lambda look: look.at_s, default=Look(0.0, 0, 0))
        yield Window(place * length_s, len(each), statistics.median(each), _p99(each), look.moves, look.held)


def _p99(ages: Sequence[float]) -> float:
    return statistics.quantiles(ages, n=100, method="inclusive")[98]


def _back_s(windows: Sequence[Window], bound_s: float) -> float | None:
    """From when on, after the throttling, all windows are below this; None where the last one is not."""
    back = None
    for window in reversed([each for each in windows if each.at_s >= 0]):
        if window.p99_s >= bound_s:
            break
        back = window.at_s
    return back
