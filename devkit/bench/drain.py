"""The same backlog, drained by remora to Kafka and by radosgw to an HTTP server that answers at once.

Both take entries of the same shape, really reserved and committed, from queues that radosgw made, one after the
other on the same cluster; while one drains, the other does not run. The rate counts from the first removal that is
seen in the queues' heads until they are empty, processor time is that of the same interval, and memory is the most
there ever was. All of it shares this host's processors. What remora delivered is read back from Kafka and counted.
Before each turn the queues' objects are read raw, which is what the cluster allows at best. What the broker needs to
get going with new partitions is spent on a backlog that is not measured. And before remora's turns Kafka's own
ProducerPerformance sends the same bodies, with the daemon's compression, while a reader lists the queues: what the
endpoint takes from a program that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rados

from devkit.bench import programs, queues
from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.delivered import Delivered, kafka_topics, read_back
from devkit.bench.load import Load
from devkit.bench.producing import BODIES, producer_performance, write_bodies
from devkit.bench.queues import Level
from devkit.processes.processes import memory_bytes, preferred, spent
from remora.storage.rados import RadosStore

TITLE = "drain: a backlog drained by remora to Kafka, then by radosgw to nginx"

PATIENCE_S = 100.0
"""For the first removal and between any two; a radosgw that starts may wait for 90 s for a lock."""

WARM_UP_ENTRIES = 10_000
"""In each queue, drained by remora before the first turn: new partitions cost the broker ten times more for a while."""

FRESH_STARTS = 5
"""Of a radosgw that has stalled, until what is left counts as not to be drained."""


@dataclass(frozen=True)
class Turn:
    """One drain.

    Where it stalled, `left` entries stood in the queues yet, and everything else is about the time before.
    `cpu_s_per_1000` is by process; `others` is what the rest of the machine used, in processors.
    """

    entries: int
    started_after_s: float
    seconds: float
    counted: int
    left: int
    rate: float
    cpu_s_per_1000: dict[str, float]
    others: float
    peak_rss_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench drain` understands."""
    parser.add_argument("--entries", type=int, help="in all queues together (default: 200,000 or what fits)")
    parser.add_argument("--queues", type=int, default=11, help="topics, each with a queue (default: 11)")
    parser.add_argument(
        "--payload", type=int, default=1000, help="bytes of a body (default, and about the least: 1000)"
    )
    parser.add_argument("--partitions", type=int, default=11, help="of each Kafka topic (default: 11)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each; the medians are compared (default: 1)")
    parser.add_argument("--release", type=int, choices=(16, 20), default=16, help="of Ceph (default: 16)")
    parser.add_argument("--nice", type=int, default=0, help="of all measured processes; -20 on a host that is shared")
    parser.add_argument("--only", choices=("remora", "radosgw"), help="leave the other one out")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    fit = queues.ENTRIES_THAT_FIT * options.queues
    options.entries = options.entries or min(200_000, fit)
    if options.entries > fit:
        raise BenchError(f"a queue of radosgw has 128 MB: {options.queues} of them hold {fit:,} entries")
    if options.entries < options.queues:
        raise BenchError("fewer entries than queues")
    name = options.name if options.release == 16 else f"{options.name}-{options.release}"
    with (
        running_clusters(name, options.keep, release=options.release) as clusters,
        tempfile.TemporaryDirectory() as folder,
    ):
        return asyncio.run(_Drain(clusters, options, Path(folder)).run())


class _Drain:
    """One run of the benchmark."""

    def __init__(self, clusters: Clusters, options: argparse.Namespace, folder: Path) -> None:
        self._clusters = clusters
        self._options = options
        self._folder = folder
        run = uuid.uuid4().hex[:8]
        self._topics = {kind: [f"bench-{run}-{kind}-{i}" for i in range(options.queues)] for kind in ("kafka", "http")}
        self._kafka, self._http = (queues.names(clusters, self._topics[kind]) for kind in ("kafka", "http"))
        self._address = clusters.kafka["bootstrap"]
        self._raw_rates: list[float] = []
        self._producer_rates: list[float] = []
        self._warm_up = min(options.entries, WARM_UP_ENTRIES * options.queues)

    async def run(self) -> dict[str, Any]:
        clusters, options = self._clusters, self._options
        turns: dict[str, list[Turn]] = {"remora": [], "radosgw": []}
        async with AsyncExitStack() as stack:
            sink = stack.enter_context(programs.sink(self._folder))
            ioctx = stack.enter_context(clusters.queue_objects())
            store = await stack.enter_async_context(RadosStore(clusters.administrator))
            await stack.enter_async_context(kafka_topics(self._address, self._topics["kafka"], options.partitions))
            clusters.start("ceph", "rgw")
            stack.enter_context(queues.topics(clusters, self._topics["kafka"], f"kafka://{self._address}"))
            stack.enter_context(queues.topics(clusters, self._topics["http"], sink.url))
            stack.callback(clusters.start, "ceph", "rgw")
            clusters.stop("ceph", "rgw")

            loads = {
                names[0]: [
                    Load(place, target, options.payload, options.release)
                    for place, target in enumerate(await queues.targets(store, names))
                ]
                for names in (self._kafka, self._http)
            }
            stack.enter_context(preferred([*self._osds().values(), os.getpid()], options.nice))
            if options.only != "radosgw":
                await self._fill(store, ioctx, self._kafka, loads, range(self._warm_up))
                await self._remora_turn(ioctx)
            posted = 0
            for number in range(options.rounds):
                first = self._warm_up + number * options.entries
                numbers = range(first, first + options.entries)
                if options.only != "radosgw":
                    await self._fill(store, ioctx, self._kafka, loads, numbers)
                    await self._read_raw(ioctx, self._kafka)
                    await self._produce(store, loads[self._kafka[0]][0])
                    turns["remora"].append(await self._remora_turn(ioctx))
                    _print_turn("remora", turns["remora"][-1])
                if options.only != "remora":
                    await self._fill(store, ioctx, self._http, loads, numbers)
                    await self._read_raw(ioctx, self._http)
                    before = sink.requests()
                    turns["radosgw"].append(await self._radosgw_turn(ioctx, sink.pid))
                    posted += sink.requests() - before - 1
                    _print_turn("radosgw", turns["radosgw"][-1])
            delivered = await read_back(self._address, self._topics["kafka"], options.partitions)
        return self._report(turns, delivered, posted)

    async def _fill(
        self,
        store: RadosStore,
        ioctx: rados.Ioctx,
        names: Sequence[str],
        loads: Mapping[str, Sequence[Load]],
        numbers: range,
    ) -> None:
        """Commits an equal share of the entries with these numbers to each queue, and hides the other side's queues."""
        others = self._http if names is self._kafka else self._kafka
        share, more = divmod(len(numbers), len(names))
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for place, (name, load) in enumerate(zip(names, loads[names[0]], strict=True)):
                count = share + (place < more)
                tasks.create_task(queues.fill(store, name, load, numbers.start, count))
        queues.offer(ioctx, names, others)
        print(f"committed {len(numbers):,} entries in {time.monotonic() - began:.0f} s", file=sys.stderr)

    async def _read_raw(self, ioctx: rados.Ioctx, names: Sequence[str]) -> None:
        """What the cluster gives at most of what was just committed."""
        each = sum(queues.used_bytes(ioctx, names).values()) / self._options.entries
        bytes_per_s = await asyncio.to_thread(queues.read_raw, ioctx, names)
        self._raw_rates.append(bytes_per_s / each)
        print(f"raw reads {bytes_per_s / each:8,.0f} entries/s ({bytes_per_s / 1e6:,.0f} MB/s)", flush=True)

    async def _produce(self, store: RadosStore, load: Load) -> None:
        """What Kafka takes from a program that does nothing else, while these queues are listed."""
        options, file = self._options, self._folder / "bodies"
        if not file.exists():
            write_bodies(file, load.entries(0, min(BODIES, options.entries)))
        reading = (store, self._kafka)
        rate = await producer_performance(self._clusters, file, options.entries, options.partitions, reading)
        self._producer_rates.append(rate)
        print(f"ProducerPerformance {rate:8,.0f} records/s, beside a reader of the queues", flush=True)

    async def _remora_turn(self, ioctx: rados.Ioctx) -> Turn:
        with programs.remora(self._clusters, self._folder) as pid:
            pids = {"daemon": pid, "sink": self._clusters.kafka["pids"]["broker.1"]}
            turn = await self._turn(ioctx, self._kafka, pids)
            if turn.left:
                raise BenchError(f"remora stalled with {turn.left:,} entries left")
            return turn

    async def _radosgw_turn(self, ioctx: rados.Ioctx, sink: int) -> Turn:
        with programs.radosgw(self._clusters) as pid:
            turn = await self._turn(ioctx, self._http, {"daemon": pid, "sink": sink})
        left, starts = turn.left, 0
        while left:  # it happens that a request of its never ends, and with it that queue's turn
            if starts == FRESH_STARTS:
                raise BenchError(f"radosgw stalled {starts} times, and has left {left:,} entries")
            starts += 1
            queues.offer(ioctx, self._http, self._kafka)
            with programs.radosgw(self._clusters) as pid:
                left = (await self._turn(ioctx, self._http, {"daemon": pid, "sink": sink})).left
        return turn

    async def _turn(self, ioctx: rados.Ioctx, names: Sequence[str], pids: Mapping[str, int]) -> Turn:
        osds = self._osds()
        with preferred(pids.values(), self._options.nice):
            levels = await queues.watch(ioctx, names, PATIENCE_S, lambda: spent({**pids, **osds}))
        return summary(levels, self._options.entries, memory_bytes(pids["daemon"])[1])

    def _osds(self) -> dict[str, int]:
        return {name: pid for name, pid in self._clusters.ceph["pids"].items() if name.startswith("osd.")}

    def _report(self, turns: Mapping[str, Sequence[Turn]], delivered: Delivered, posted: int) -> dict[str, Any]:
        options = self._options
        committed = {kind: options.entries * len(each) for kind, each in turns.items()}
        if options.only != "radosgw":
            committed["remora"] += self._warm_up
        figures: dict[str, Any] = {
            "turns": {kind: [asdict(turn) for turn in each] for kind, each in turns.items()},
            "delivered": asdict(delivered) | {"lost": committed["remora"] - delivered.events},
            "posted": posted,
            "raw_reads_per_s": self._raw_rates,
            "producer_performance": self._producer_rates,
        }
        if self._producer_rates:
            limit = statistics.median(self._producer_rates)
            figures["of_producer_performance"] = statistics.median(turn.rate for turn in turns["remora"]) / limit
            print(f"remora / ProducerPerformance beside a reader:  rate {figures['of_producer_performance']:.2f}")
        if options.only is None:
            figures["ratio"] = _ratios(turns)
            print("remora / radosgw:  " + "   ".join(f"{name} {value:.2f}" for name, value in figures["ratio"].items()))
        print(
            f"read back from Kafka: {delivered.events:,} of {committed['remora']:,} events, {delivered.copies} copies, "
            f"bodies of {delivered.body_bytes / max(1, delivered.events):.0f} bytes; "
            f"posted to nginx: {posted:,} of {committed['radosgw']:,}"
        )
        if delivered.events != committed["remora"] or delivered.copies or posted < committed["radosgw"]:
            raise BenchError("the counts are wrong: these figures mean nothing")
        return figures


def summary(levels: Sequence[Level], entries: int, peak_rss_bytes: int) -> Turn:
    """A turn from what was seen of the queues.

    Counted is what left the queues after the first look that found some gone; where the very first such look
    found all gone, the look before it is where counting begins.
    """
    full = levels[0].used_bytes
    first = next(i for i, level in enumerate(levels) if level.used_bytes < full)
    base = levels[min(first, len(levels) - 2)]
    end = levels[-1]
    seconds, counted = end.at - base.at, round(entries * (base.used_bytes - end.used_bytes) / full)
    used = {name: end.seen[name] - base.seen[name] for name in end.seen}
    machine = used.pop("machine")
    osds = sum(used.pop(name) for name in list(used) if name.startswith("osd."))
    per_1000 = 1000 / counted
    return Turn(
        entries=entries,
        started_after_s=levels[first].at - levels[0].at,
        seconds=seconds,
        counted=counted,
        left=round(entries * end.used_bytes / full),
        rate=counted / seconds,
        cpu_s_per_1000={"daemon": used["daemon"] * per_1000, "sink": used["sink"] * per_1000, "osds": osds * per_1000},
        others=max(0.0, machine - sum(used.values()) - osds) / seconds,
        peak_rss_bytes=peak_rss_bytes,
    )


def _ratios(turns: Mapping[str, Sequence[Turn]]) -> dict[str, float]:
    def median(kind: str, value: str) -> float:
        return statistics.median(
            turn.cpu_s_per_1000["daemon"] if value == "cpu" else getattr(turn, value) for turn in turns[kind]
        )

    names = {"rate": "rate", "cpu": "cpu", "peak_rss": "peak_rss_bytes"}
    return {name: median("remora", value) / (median("radosgw", value) or 1e-9) for name, value in names.items()}


def _print_turn(kind: str, turn: Turn) -> None:
    cpu = turn.cpu_s_per_1000
    print(
        f"{kind:8} {turn.rate:8,.0f} entries/s ({turn.counted:,} in {turn.seconds:.2f} s, first after "
        f"{turn.started_after_s:.1f} s)   CPU ms per 1,000: {cpu['daemon'] * 1e3:.1f} + "
        f"{'broker' if kind == 'remora' else 'nginx'} {cpu['sink'] * 1e3:.1f} + OSDs {cpu['osds'] * 1e3:.1f}   "
        f"peak RSS {turn.peak_rss_bytes / 1e6:.0f} MB   others {turn.others:.2f} processors"
        + (f"   STALLED with {turn.left:,} left" if turn.left else ""),
        flush=True,
    )
