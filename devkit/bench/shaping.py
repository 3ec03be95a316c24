"""What shaping holds, and what it costs: a limited backlog, live events beside it, and meters that limit nothing.

Five cases, each with daemons and stores of its own on one broker, whose own times of append are read:

* `hold`: a backlog in a class that is limited, by one, two and four workers. Of all windows of ten seconds after the
  burst, what was sent in the one that is farthest from the limit, as a part of it.
* `live`: how old events of a steady load are, alone and beside a backlog that is limited.
* `share`: nothing but a scope of destinations with `each`: the rate of the only topic of a destination, alone and
  beside a thousand topics of another one, all with backlogs. (It is one broker by two names. Tenants, of which the same
  holds, have only radosgw's topics.)
* `cost`: a backlog without shaping, and with a scope whose meters limit nothing, in turns; the ratio is the median of
  those of the rounds.
* `store`: on RADOS, how long commits take beside a backlog that is listed from the same OSDs (`shaping_store`).

Sizes are those that shaping meters, records before compression: their mean is what the daemon's own counter says for
each record. Daemon, broker and this program share this host's processors.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.bench import programs
from devkit.bench.backlog import PARTITIONS, Shape, deliver, print_turn, store_backlog
from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.delivered import arrived, kafka_topics
from devkit.bench.embedded import Embedded, own_topic
from devkit.bench.load import Load, event_id
from devkit.bench.shaping_store import STORE_TICK_S, commits
from remora.model.ingest import RoutedEvent
from remora.model.topic import Topic
from remora.ports.store import ShardStore

TITLE = "shaping: what a limited backlog sends, what live events notice of it, and what meters cost"
CASES = ("hold", "live", "share", "cost", "store")

LIMIT = 20_000_000
"""Bytes a second."""

PAYLOAD = 1000
BURST_S = 0.2
WINDOW_S = 10.0
STEP_S = 0.5
SETTLING_S = 3.0
"""After the first record, until the burst has passed and all workers send."""

BATCHES_A_SECOND = 50
PATIENCE_S = 180.0
EVENT_ID_BYTES = len(event_id(0, 0))
LOG_APPEND = {"message.timestamp.type": "LogAppendTime"}

_SCOPE = """
[[shaping.scope]]
name = "bench"
of = "{of}"
enabled = true
[shaping.scope.meters]
"""
_SLOW = """
[[shaping.principal]]
name = "slow"
match = ["slow-*"]
max_class = "backlog"
"""
_METER = '{name} = {{ guaranteed = "{rate}B", burst = "{burst}B"{most} }}\n'
_METERS = ("max", "client_high", "client_normal", "client_low", "background", "idle", "priority_queue")
_PLENTY = 100_000_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench shaping` understands."""
    parser.add_argument("--only", choices=CASES, action="append", help="this case (default: all)")
    parser.add_argument("--limit", type=int, default=LIMIT, help="bytes a second (default: 20,000,000)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="of `hold` (default: 1 2 4)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a limited backlog (default: 30)")
    parser.add_argument("--pace", type=int, default=1000, help="live events a second (default: 1,000)")
    parser.add_argument("--topics", type=int, default=1000, help="of the greedy destination (default: 1,000)")
    parser.add_argument("--entries", type=int, default=500_000, help="of a turn of `cost` (default: 500,000)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of `cost` and `store` (default: 5)")
    parser.add_argument("--store-limit", type=int, default=2_000_000, help="of `store`, bytes a second (default: 2 MB)")
    parser.add_argument("--commits", type=int, default=50, help="of `store`, a second (default: 50)")
    parser.add_argument("--backlog", type=int, default=300_000, help="entries of `store` (default: 300,000)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    figures: dict[str, Any] = {}
    measures = {"hold": _hold, "live": _live, "share": _share, "cost": _cost, "store": _store}
    cases = options.only or CASES
    kinds = ["ceph", "kafka"] if "store" in cases else ["kafka"]
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(options.name, options.keep, kinds) as clusters,
    ):
        for case in cases:
            place = Path(folder) / case
            place.mkdir()
            figures[case] = asyncio.run(measures[case](clusters, options, place))
    return figures


def _scope(of: str, meters: dict[str, int], limited: str = "", burst_s: float = BURST_S) -> str:
    """A scope with these rates; the other meters guarantee nothing. One may be limited to its rate."""
    lines = [
        _METER.format(
            name=name,
            rate=meters.get(name, 0),
            burst=max(int(meters.get(name, 0) * burst_s), 1 << 20),
            most=f', max = "{meters[name]}B"' if name == limited else "",
        )
        for name in _METERS
    ]
    return _SCOPE.format(of=of) + "".join(lines)


def _more(workers: int, shaping: str) -> str:
    return f"\n[supervisor]\nworkers = {workers}\n{shaping}"


# ---------------------------------------------------------------------------------------------------- hold


async def _hold(clusters: Clusters, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    entries = int(options.limit * options.seconds / PAYLOAD)
    found = {}
    for workers in options.workers:
        place = folder / str(workers)
        place.mkdir()
        more = _more(
            workers, _SLOW + _scope("host", {"client_low": options.limit, "client_normal": _PLENTY}, "client_low")
        )
        embedded = Embedded(place, queue_bytes=4 << 30, more=more)
        async with AsyncExitStack() as stack:
            topic, store = await _topic(clusters, embedded, stack, "slow")
            await store_backlog(store, topic, entries, PAYLOAD, 0)
            stack.enter_context(programs.remora_on(embedded))
            await arrived(clusters.kafka["bootstrap"], [topic.name], PARTITIONS, entries, PATIENCE_S + options.seconds)
            mean = await embedded.metric("remora_shaping_granted_bytes_total", priority="client_low") / entries
            times = await _times(clusters, topic.name)
        found[workers] = _farthest(times, mean / options.limit)
        print(f"hold   {workers} workers: {found[workers]:.4f} of {options.limit / 1e6:g} MB/s", flush=True)
    return {"of_limit": found}


def _farthest(times: Sequence[float], part: float) -> float:
    """What was sent in the window that is farthest from the limit; a record is `part` of a second's worth of it."""
    times = sorted(times)
    begin, end = times[0] + SETTLING_S, times[-1] - WINDOW_S - 1
    if end <= begin:
        raise BenchError(f"all was sent within {times[-1] - times[0]:.1f} s: too few --seconds")
    found = []
    while begin < end:
        found.append(sum(begin <= each < begin + WINDOW_S for each in times) * part / WINDOW_S)
        begin += STEP_S
    return max(found, key=lambda each: abs(each - 1))


# ---------------------------------------------------------------------------------------------------- live


async def _live(clusters: Clusters, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    figures = {}
    for kind in ("alone", "beside"):
        place = folder / kind
        place.mkdir()
        more = _more(2, _SLOW + _scope("host", {"client_low": options.limit, "client_normal": _PLENTY}, "client_low"))
        embedded = Embedded(place, queue_bytes=4 << 30, more=more)
        async with AsyncExitStack() as stack:
            live, store = await _topic(clusters, embedded, stack, "live")
            backlog, _ = await _topic(clusters, embedded, stack, "slow")
            entries = 0
            if kind == "beside":
                entries = int(options.limit * (options.seconds + 2 * SETTLING_S) / PAYLOAD)
                await store_backlog(store, backlog, entries, PAYLOAD, 1)
            process = stack.enter_context(programs.remora_on(embedded))
            await programs.listening(process, embedded)
            ages = await _ages(clusters, store, live, options)
            left = await embedded.entries(backlog)
        if kind == "beside" and not left:
            raise BenchError("the backlog was gone before the live events were")
        cuts = statistics.quantiles(ages, n=100)
        figures[kind] = {"p50_s": cuts[49], "p99_s": cuts[98], "backlog_left": left / max(entries, 1)}
        print(f"live   {kind:7} age p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms", flush=True)
    ratio = figures["beside"]["p99_s"] / figures["alone"]["p99_s"]
    print(f"live   beside / alone:  p99 {ratio:.2f}")
    return {**figures, "p99_ratio": ratio}


async def _ages(clusters: Clusters, store: ShardStore, topic: Topic, options: argparse.Namespace) -> list[float]:
    """Seconds from the moment that each event is handed to the store until the broker has it."""
    load, batch = Load(0, topic.target, PAYLOAD), max(1, options.pace // BATCHES_A_SECOND)
    handed: dict[bytes, float] = {}
    began, count = time.monotonic(), int((SETTLING_S + options.seconds) * BATCHES_A_SECOND)
    for number in range(count):
        await asyncio.sleep(began + number / BATCHES_A_SECOND - time.monotonic())
        first, now = number * batch, time.time()
        events = [
            RoutedEvent(n % topic.shards, b"bench:%d" % n, entry)
            for n, entry in enumerate(load.entries(first, batch), first)
        ]
        if number >= SETTLING_S * BATCHES_A_SECOND:
            handed.update((event_id(0, n), now) for n in range(first, first + batch))
        await store.ingest.publish(topic, events)
    await arrived(clusters.kafka["bootstrap"], [topic.name], PARTITIONS, count * batch, PATIENCE_S)
    ages: dict[bytes, float] = {}
    for event, at_s in await _records(clusters, topic.name):
        if event in handed:
            ages.setdefault(event, at_s - handed[event])
    if len(ages) != len(handed):
        raise BenchError(f"{len(ages)} of {len(handed)} live events were delivered")
    return list(ages.values())


# --------------------------------------------------------------------------------------------------- share


async def _share(clusters: Clusters, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Each destination has the same guarantee, and nothing else is configured."""
    rates = {}
    for kind in ("alone", "beside"):
        place = folder / kind
        place.mkdir()
        shaping = _scope("destination", {"client_low": options.limit, "client_normal": options.limit})
        embedded = Embedded(place, queue_bytes=1 << 30, more=_more(2, shaping))
        entries = int(options.limit * options.seconds / PAYLOAD)
        async with AsyncExitStack() as stack:
            modest, store = await _topic(clusters, embedded, stack, "modest", "localhost")
            if kind == "beside":
                await _greedy(clusters, store, stack, options.topics, entries)
            await store_backlog(store, modest, entries, PAYLOAD, 0)
            stack.enter_context(programs.remora_on(embedded))
            await arrived(clusters.kafka["bootstrap"], [modest.name], PARTITIONS, entries, 4 * PATIENCE_S)
            times = sorted(await _times(clusters, modest.name))
        rates[kind] = entries / (times[-1] - times[0])
        print(f"share  {kind:7} {rates[kind]:9,.0f} entries/s of the modest destination", flush=True)
    ratio = rates["beside"] / rates["alone"]
    print(f"share  beside / alone:  rate {ratio:.2f}")
    return {"rates": rates, "ratio": ratio}


async def _greedy(clusters: Clusters, store: ShardStore, stack: AsyncExitStack, topics: int, entries: int) -> None:
    """A destination with a backlog in each of its topics, all for one Kafka topic."""
    address, name = clusters.kafka["bootstrap"], f"bench-{uuid.uuid4().hex[:8]}"
    await stack.enter_async_context(kafka_topics(address, [name], PARTITIONS, LOG_APPEND))
    for number in range(topics):
        made = own_topic(f"greedy-{number}", f"kafka://{address}", 1)
        made = replace(made, target=replace(made.target, topic=name))
        await store_backlog(store, await store.own_topics.create(made), max(1, entries // topics), PAYLOAD, 2)


# ---------------------------------------------------------------------------------------------------- cost


async def _cost(clusters: Clusters, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    kinds = {"without": "", "unlimited": _scope("host", dict.fromkeys(_METERS, _PLENTY))}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    used: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(options.rounds):
        for kind in sorted(kinds, reverse=number % 2 == 0):  # each is first every other time: a warm broker is quicker
            turn = await deliver(clusters, folder, options.entries, Shape(workers=2, more=kinds[kind]))
            rates[kind].append(turn.rate)
            used[kind].append(turn.daemon_cpu_s_per_1000)
            print_turn(f"cost   {kind}", turn)
    ratio, cpu = (_median_ratio(each["unlimited"], each["without"]) for each in (rates, used))
    print(f"cost   unlimited / without:  rate {ratio:.2f}, the daemon's processor time {cpu:.2f}")
    return {"rates": rates, "ratio": ratio, "cpu_ratio": cpu}


def _median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of what each round's turns have to each other, since the machine drifts from round to round."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


# --------------------------------------------------------------------------------------------------- store


async def _store(clusters: Clusters, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    limit = options.store_limit
    scope = _scope("store", {"max": _PLENTY, "client_normal": limit, "client_low": limit}, "client_low", STORE_TICK_S)
    return await commits(clusters, options, folder, scope)


# --------------------------------------------------------------------------------------------------- broker


async def _topic(
    clusters: Clusters, embedded: Embedded, stack: AsyncExitStack, kind: str, host: str = ""
) -> tuple[Topic, ShardStore]:
    """A topic of remora's and Kafka's, and the store, for as long as the stack is open."""
    address, name = clusters.kafka["bootstrap"], f"{kind}-{uuid.uuid4().hex[:8]}"
    await stack.enter_async_context(kafka_topics(address, [name], PARTITIONS, LOG_APPEND))
    store = await stack.enter_async_context(embedded.store())
    endpoint = f"kafka://{host or address.rpartition(':')[0]}:{address.rpartition(':')[2]}"
    return await store.own_topics.create(own_topic(name, endpoint, PARTITIONS)), store


async def _times(clusters: Clusters, name: str) -> list[float]:
    return [at_s for _, at_s in await _records(clusters, name)]


async def _records(clusters: Clusters, name: str) -> list[tuple[bytes, float]]:
    """The id of each record's event, and when the broker appended it; copies count."""
    places = [TopicPartition(name, number) for number in range(PARTITIONS)]
    found = []
    async with AIOKafkaConsumer(
        bootstrap_servers=clusters.kafka["bootstrap"],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 << 20,
    ) as consumer:
        consumer.assign(places)
        last = await consumer.end_offsets(places)
        while any([await consumer.position(place) < last[place] for place in places]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [
                    (dict(each.headers)["remora-event-id"][:EVENT_ID_BYTES], each.timestamp / 1000) for each in records
                ]
    return found
