"""What notifications cost: events without a topic beside those sent to one by name.

First in this process, the same code as the daemon's, in turns: the processor time of an event more than by name, and
what of it finds the notifications that it matches. Then through a daemon over HTTP, storing only, in turns: batches to
a topic by name, and without a topic to one and to three, whose files are one or three of the store's. RADOS has no such
files: there only these rates are measured, and three topics once.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from devkit.bench import programs
from devkit.bench.clusters import BenchError, running_clusters
from devkit.bench.embedded import NOBODY, Embedded, own_topic
from devkit.bench.events import Bodies
from devkit.processes.ports import free_port
from devkit.processes.processes import spent
from remora.codec.event_copies import NO_TARGET
from remora.codec.s3_events import EventPart, encode
from remora.codec.speedups import IMPLEMENTATION
from remora.config import RadosSettings
from remora.model.entry import Time
from remora.model.notification import EventFilter, Notification
from remora.model.topic import Topic
from remora.servers.ingest.distribution import Matching, copies_for
from remora.servers.ingest.matches import RequestMatcher
from remora.servers.tokens import ANYBODY

LOOKS = 5
"""Each cost is the least of so many times `--rounds`, which what else the host does disturbs least."""

FILES = 16
"""How many files the embedded store has."""

_CREATED = Time(1, 0)
_KEY = b"photos/2026/11/21/img-"


def by_suffix(number: int) -> EventFilter:
    """What takes the events whose number ends so."""
    return EventFilter(prefix="photos/", suffix=f"{number % 100:02}.jpg")


KINDS: dict[str, Callable[[int], EventFilter]] = {
    "prefix": lambda number: EventFilter(prefix=f"photos/{number:02}/"),
    "suffix": by_suffix,
    "prefix, suffix and size": lambda number: EventFilter(
        prefix=f"photos/{number:02}/", suffix=".jpg", size_min=1, size_max=10**9
    ),
    "regular expression": lambda number: EventFilter(prefix=f"photos/{number:02}/", regex="photos/.*[.]jpg"),
}
"""What makes a hundred notifications differ. An event matches one of them."""


@dataclass(frozen=True)
class Cost:
    """Microseconds of processor time of an event: to a topic by name, what it costs more without, and what of that
    finds the notifications."""

    by_name_us: float
    more_us: float
    matching_us: float


@dataclass(frozen=True)
class FannedLoad:
    """Where the events of a load go: a topic by name, or what notifications name."""

    title: str
    topics: Sequence[str]
    is_by_name: bool = False


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The costs and the rates; printed, too."""
    if options.store == "rados":
        with running_clusters(options.name, options.keep, ["ceph"]) as clusters:
            return asyncio.run(_rates(options, _ON_RADOS, clusters.place_of_its_own("bench")))
    print(f"codec: {IMPLEMENTATION}; {options.notifications} notifications, and an event matches one of them")
    costs = {}
    for kind, make in KINDS.items():
        notifications = [
            Notification(f"n{number}", ("t",), ("bench",), ("s3:ObjectCreated:*",), make(number))
            for number in range(options.notifications)
        ]
        for batch in (options.batch, 1):
            body, looks = _body(batch, options.payload), LOOKS * options.rounds
            cost = costs[f"{kind}, {batch}"] = _cost(notifications, body, batch, looks)
            what = f"batches of {batch}" if batch > 1 else "single events"
            print(
                f"{kind:24} {what:15} by name {cost.by_name_us:6.2f} us an event, without a topic "
                f"{cost.more_us:5.2f} us more, {cost.matching_us:5.2f} us for matching",
                flush=True,
            )
    rates = asyncio.run(_rates(options, _embedded()))
    return {"costs": {name: asdict(cost) for name, cost in costs.items()}} | rates


def _body(batch: int, record_bytes: int) -> bytes:
    """Records whose keys begin in one of a hundred ways."""
    lines = Bodies(batch, record_bytes).next().split(b"\n")
    return b"\n".join(line.replace(_KEY, b"photos/%02d/" % (number % 100)) for number, line in enumerate(lines))


def _cost(notifications: Sequence[Notification], body: bytes, batch: int, looks: int) -> Cost:
    topic, matcher = own_topic("t", NOBODY, 11), RequestMatcher(notifications)

    def encoded(target: Topic = NO_TARGET) -> list[EventPart]:
        return list(encode(body, target, ndjson=True, most=batch, created=_CREATED, seed=b"seed"))

    def by_name() -> None:
        for part in encoded(topic):
            part.routed(topic.shards)

    def matched(found: Sequence[EventPart]) -> Matching:
        matching = Matching(matcher, ANYBODY, 1 << 30)
        for part in found:
            matching.take(part)
        return matching

    def distributed() -> None:
        for each in matched(encoded()).by_topic.values():
            copies_for(topic, each, _CREATED, b"")

    taken = encoded()
    if matched(taken).unmatched:
        raise BenchError("an event matches no notification")
    works = [by_name, distributed, lambda: matched(taken)]
    named, without, matching = _least_us(works, max(200, 20_000 // batch), looks)
    return Cost(named / batch, (without - named) / batch, matching / batch)


def _least_us(works: Sequence[Callable[[], object]], times: int, looks: int) -> list[float]:
    """The least processor time of each, in microseconds, in turns."""
    found = [float("inf")] * len(works)
    for _ in range(looks):
        for number, work in enumerate(works):
            began = time.process_time()
            for _ in range(times):
                work()
            found[number] = min(found[number], (time.process_time() - began) / times * 1e6)
    return found


# ------------------------------------------------------------------------------------------------- rates


def _names(files: Sequence[int]) -> list[str]:
    """Names of topics that lie in these files."""
    found = []
    for wanted in files:
        candidates = (f"bench-{number}" for number in itertools.count())
        found.append(
            next(each for each in candidates if zlib.crc32(each.encode()) % FILES == wanted and each not in found)
        )
    return found


_ON_RADOS = (
    FannedLoad("a topic by name", ["bench-0"], is_by_name=True),
    FannedLoad("one topic", ["bench-0"]),
    FannedLoad("three topics", ["bench-0", "bench-1", "bench-2"]),
)


def _embedded() -> list[FannedLoad]:
    one, *others = _names([0, 0, 0])
    return [
        FannedLoad("a topic by name", [one], is_by_name=True),
        FannedLoad("one topic", [one]),
        FannedLoad("three topics in one file", [one, *others]),
        FannedLoad("three topics in three files", _names([0, 1, 2])),
    ]


async def _rates(
    options: argparse.Namespace, loads: Sequence[FannedLoad], rados: RadosSettings | None = None
) -> dict[str, Any]:
    rates: dict[str, list[float]] = {load.title: [] for load in loads}
    cpu_us: dict[str, list[float]] = {load.title: [] for load in loads}
    for number in range(options.rounds):
        for load in loads if number % 2 == 0 else reversed(loads):
            with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
                rate, used = await _turn(load, options, Path(folder), rados)
            rates[load.title].append(rate)
            cpu_us[load.title].append(used)
    beside = statistics.median(rates["one topic"])
    for title, found in rates.items():
        median, used = statistics.median(found), statistics.median(cpu_us[title])
        print(
            f"{title:27} {median:8,.0f} events/s = {median / beside:.2f} of one topic's   "
            f"the daemon's processor time {used:.1f} us an event",
            flush=True,
        )
    return {"events_per_s": rates, "daemon_us": cpu_us}


async def _turn(
    load: FannedLoad, options: argparse.Namespace, folder: Path, rados: RadosSettings | None
) -> tuple[float, float]:
    """Events a second, and microseconds of the daemon's processor time for each."""
    embedded = Embedded(folder, queue_bytes=1 << 30, ingest=f"127.0.0.1:{free_port()}", rados=rados)
    topics = await embedded.make_topics(load.topics, NOBODY, options.shards)
    made = [
        Notification(f"n{number}", tuple(load.topics), ("bench",), (), by_suffix(number))
        for number in range(options.notifications)
    ]
    async with embedded.store() as store:
        for each in made:
            await store.notifications.change(None, each)
    with programs.remora_on(embedded) as process:
        await programs.listening(process, embedded)
        before = spent({"daemon": process.pid})["daemon"]
        path = f"topics/{load.topics[0]}/events" if load.is_by_name else "events"
        events, seconds = await _send(f"http://{embedded.ingest}/v1/{path}", options)
        used = spent({"daemon": process.pid})["daemon"] - before
    async with embedded.store() as store:
        stored = [
            sum([(await store.inspection.stats(each, exact=True)).entries for each in topic.all_shards()])
            for topic in topics
        ]
        if rados:  # whatever place a daemon is given, topics of remora's own lie where all of the cluster do
            for each in made:
                await store.notifications.change(each, None)
            for topic in topics:
                await store.own_topics.remove(topic, discard=True)
    if stored != [events] * len(topics):
        raise BenchError(f"{load.title}: {events:,} events were answered for, and {stored} are there")
    return events / seconds, used / events * 1e6


async def _send(url: str, options: argparse.Namespace) -> tuple[int, float]:
    """Send batches over the first number of connections; how many events were answered for, and in how long."""
    bodies, answered = Bodies(options.batch, options.payload), 0
    connections = options.connections[0]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections)) as session:
        began = time.monotonic()

        async def one() -> None:
            nonlocal answered
            while time.monotonic() < began + options.seconds:
                headers = {"Content-Type": "application/x-ndjson"}
                async with session.post(url, data=bodies.next(), headers=headers) as answer:
                    if answer.status != 200:
                        raise BenchError(f"{url} answered {answer.status}: {await answer.text()}")
                answered += options.batch

        async with asyncio.TaskGroup() as tasks:
            for _ in range(connections):
                tasks.create_task(one())
        return answered, time.monotonic() - began
