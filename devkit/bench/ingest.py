"""Events taken in over HTTP by the embedded store, beside what radosgw asks of Ceph to queue events one by one.

Every event is answered for only after the sync. Batches are NDJSON of 100 records, sent through remora's own client
over 8 and over 32 connections; single events come from Debian's wrk over 64. Each load runs twice, with a daemon and a
directory of its own: once with an endpoint where nobody listens, so that the daemon only stores, and once delivering
to a real broker. What was answered is then counted in the store, or read back from Kafka. Daemon, generator, broker
and OSDs share this host's processors.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from devkit.bench import beside, disk, enqueue, notified, programs
from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.delivered import Delivered, arrived, kafka_topics, read_back
from devkit.bench.embedded import NOBODY, Embedded
from devkit.bench.events import Bodies, Documents, content_type, write_wrk_script
from devkit.bench.pacing import paced
from devkit.bench.wrk import wrk
from devkit.processes.ports import free_port
from devkit.processes.processes import children_cpu_s, memory_bytes, preferred, spent
from remora.client import IngestClient
from remora.model.topic import Topic

TITLE = "ingest: events taken in over HTTP, beside radosgw's reserve and commit"

SYNCS = "remora_store_syncs_total"
METRIC_S = 1.5
"""After this time the metrics of a daemon that gets its share of the processors tell of all that was before."""

METRIC_WITHIN_S = 30.0

DRAIN_S = 300.0


@dataclass(frozen=True)
class Load:
    """Requests of `batch` events over this many connections."""

    batch: int
    connections: int

    def __str__(self) -> str:
        what = f"batches of {self.batch}" if self.batch > 1 else "single events"
        return f"{what}, {self.connections} connections"


@dataclass(frozen=True)
class Sent:
    """What a generator saw: events that were answered for, and the time from request to answer."""

    events: int
    seconds: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True)
class Turn:
    """One load, as quick as it goes or at the rate that was asked for.

    `syncs` are those of the disk; `drained_after_s` counts from the load's end until Kafka had all.
    """

    load: str
    delivering: bool
    events: int
    rate: float
    asked_rate: float | None
    p50_s: float
    p99_s: float
    cpu_s_per_1000: dict[str, float]
    others: float
    peak_rss_bytes: int
    syncs_per_s: float
    delivered: Delivered | None
    drained_after_s: float | None


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench ingest` understands."""
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load (default: 10)")
    parser.add_argument("--batch", type=int, default=100, help="records of a batch (default: 100)")
    parser.add_argument(
        "--connections", type=_numbers, default=[8, 32], metavar="N,N,...", help="of the batches (default: 8,32)"
    )
    parser.add_argument("--singles", type=int, default=64, help="connections of the single events (default: 64)")
    parser.add_argument("--shards", type=int, default=11, help="of the topic (default: 11)")
    parser.add_argument("--payload", type=int, default=900, help="bytes of a record (default: 900)")
    parser.add_argument("--partitions", type=int, default=11, help="of each Kafka topic (default: 11)")
    parser.add_argument("--only", choices=("store", "deliver"), help="leave the other half out")
    parser.add_argument(
        "--sequence", type=int, default=0, metavar="ROUNDS",
        help="store batches in topics with and without --sequence instead, in turn, and compare (with --only store)",
    )  # fmt: skip
    parser.add_argument(
        "--notifications", type=int, default=0, metavar="N",
        help="what so many notifications cost events without a topic instead, and copies to three topics (to 100)",
    )  # fmt: skip
    parser.add_argument(
        "--store", choices=("sqlite", "rados"), default="sqlite",
        help="where --notifications stores: on RADOS only its rates are measured (default: sqlite)",
    )  # fmt: skip
    parser.add_argument(
        "--beside", type=Path, metavar="CHECKOUT",
        help="run in another checkout, too, in turns with this one, and compare; without radosgw",
    )  # fmt: skip
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="of each checkout with --beside, or load with --notifications, with five looks at a cost (default: 3)",
    )
    parser.add_argument(
        "--half", action="store_true",
        help="send each load again at half of its rate, and time each request from when it is due",
    )  # fmt: skip
    parser.add_argument("--without-radosgw", action="store_true", help="leave the yardstick out, and need no Ceph")
    parser.add_argument("--nice", type=int, default=0, help="of all measured processes; -20 on a host that is shared")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    if options.beside:
        if options.half:
            raise BenchError("--half and --beside do not go together")
        return beside.ingest_in_turns(options)
    if options.notifications:
        return notified.measure(options)
    kinds = [] if options.without_radosgw else ["ceph"]
    kinds += [] if options.only == "store" else ["kafka"]
    with running_clusters(options.name, options.keep, kinds) as clusters:
        yardstick = None
        if not options.without_radosgw:
            yardstick = enqueue.measure(clusters, options.seconds, niceness=options.nice)
            enqueue.print_enqueued(yardstick)
        with (
            tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_Ingest(clusters, options, Path(folder), yardstick).run())


class _Ingest:
    """One run of the benchmark."""

    def __init__(
        self, clusters: Clusters, options: argparse.Namespace, folder: Path, yardstick: enqueue.Enqueued | None
    ) -> None:
        self._clusters = clusters
        self._options = options
        self._folder = folder
        self._yardstick = yardstick
        self._run_id = uuid.uuid4().hex[:8]

    async def run(self) -> dict[str, Any]:
        options = self._options
        syncs_per_s = disk.syncs_per_s(self._folder)
        print(f"the disk gives {syncs_per_s:,.0f} syncs/s", flush=True)
        if options.sequence:
            return await self._sequenced(syncs_per_s)
        loads = [Load(options.batch, connections) for connections in options.connections] + [Load(1, options.singles)]
        turns = []
        for delivering in (False, True):
            if options.only == ("store" if delivering else "deliver"):
                continue
            for number, load in enumerate(loads):
                name = f"bench-{self._run_id}-{number}{'d' if delivering else 's'}"
                turn = await self._turn(load, delivering, name)
                turns.append(turn)
                _print_turn(turn, syncs_per_s, self._yardstick)
                if options.half:
                    turn = await self._turn(load, delivering, f"{name}h", rate=turn.rate / 2)
                    turns.append(turn)
                    _print_turn(turn, syncs_per_s, self._yardstick)
        figures: dict[str, Any] = {
            "disk_syncs_per_s": syncs_per_s,
            "turns": [asdict(turn) for turn in turns],
        }
        if yardstick := self._yardstick:
            figures["enqueued"] = asdict(yardstick)
            figures["ratio"] = {_title(turn): turn.rate / yardstick.rate for turn in turns}
        return figures

    async def _sequenced(self, disk_syncs_per_s: float) -> dict[str, Any]:
        """The same batches into topics with and without a sequence, in turn; the medians, and their ratio."""
        load = Load(self._options.batch, self._options.connections[0])
        rates: dict[bool, list[float]] = {False: [], True: []}
        cpu: dict[bool, list[float]] = {False: [], True: []}
        for number in range(self._options.sequence):
            for is_sequenced in (number % 2 == 0, number % 2 == 1):
                name = f"bench-{self._run_id}-{number}{'n' if is_sequenced else 'p'}"
                print(f"{'numbered' if is_sequenced else 'plain':10}", end="", flush=True)
                turn = await self._turn(load, False, name, is_sequenced=is_sequenced)
                _print_turn(turn, disk_syncs_per_s, None)
                rates[is_sequenced].append(turn.rate)
                cpu[is_sequenced].append(turn.cpu_s_per_1000["daemon"])
        rate, used = ({kind: statistics.median(values) for kind, values in figures.items()} for figures in (rates, cpu))
        ratio, cost = rate[True] / rate[False], used[True] / used[False]
        print(f"with a sequence {rate[True]:,.0f} events/s, without {rate[False]:,.0f}: ratio of medians {ratio:.3f}")
        print(f"the daemon's processor time for an event is {cost:.3f} times that without a sequence")
        return {"rates": {str(kind): values for kind, values in rates.items()}, "ratio": ratio, "cpu_ratio": cost}

    async def _turn(
        self, load: Load, delivering: bool, name: str, *, is_sequenced: bool = False, rate: float | None = None
    ) -> Turn:
        folder = self._folder / name
        folder.mkdir()
        embedded = Embedded(folder, queue_bytes=1 << 30, ingest=f"127.0.0.1:{free_port()}")
        try:
            async with self._endpoint(delivering, name) as endpoint:
                shards = self._options.shards
                (topic,) = await embedded.make_topics([name], endpoint, shards, is_sequenced=is_sequenced)
                return await self._measured(load, delivering, topic, embedded, rate)
        finally:
            shutil.rmtree(folder)

    @asynccontextmanager
    async def _endpoint(self, delivering: bool, name: str) -> AsyncIterator[str]:
        if not delivering:
            yield NOBODY
            return
        address = self._clusters.kafka["bootstrap"]
        async with kafka_topics(address, [name], self._options.partitions):
            yield f"kafka://{address}"

    async def _measured(
        self, load: Load, delivering: bool, topic: Topic, embedded: Embedded, rate: float | None
    ) -> Turn:
        options, name = self._options, topic.name
        with programs.remora_on(embedded) as process:
            await programs.listening(process, embedded)
            pids = {"daemon": process.pid}
            if delivering:
                pids["broker"] = self._clusters.kafka["pids"]["broker.1"]
            with preferred([*pids.values(), os.getpid()], options.nice):
                syncs, before = await embedded.metric(SYNCS), spent(pids) | {"children": children_cpu_s()}
                sent = await self._send(load, name, embedded, rate)
                after = spent(pids) | {"children": children_cpu_s()}
                drained_after_s = await self._drained(name, sent.events) if delivering else None
                synced = await self._synced(embedded, syncs)  # what delivering writes is not synced
            peak_rss_bytes = memory_bytes(process.pid)[1]
        delivered = None
        if delivering:
            delivered = await read_back(self._clusters.kafka["bootstrap"], [name], options.partitions)
            there = delivered.events
        else:
            there = await embedded.entries(topic)
        if not sent.events <= there <= sent.events + load.connections:  # wrk ends without waiting for the last answers
            raise BenchError(f"{load}: {sent.events:,} events were answered for, and {there:,} are there")
        used = {each: after[each] - before[each] for each in after}
        machine = used.pop("machine")
        used["generator"] = used.pop("bench") + used.pop("children")
        return Turn(
            load=str(load),
            delivering=delivering,
            events=sent.events,
            rate=sent.events / sent.seconds,
            asked_rate=rate,
            p50_s=sent.p50_s,
            p99_s=sent.p99_s,
            cpu_s_per_1000={each: seconds * 1000 / sent.events for each, seconds in used.items()},
            others=max(0.0, machine - sum(used.values())) / sent.seconds,
            peak_rss_bytes=peak_rss_bytes,
            syncs_per_s=(synced - syncs) / sent.seconds,
            delivered=delivered,
            drained_after_s=drained_after_s,
        )

    async def _synced(self, embedded: Embedded, before: float) -> float:
        deadline = time.monotonic() + METRIC_WITHIN_S
        while True:
            await asyncio.sleep(METRIC_S)
            synced = await embedded.metric(SYNCS)
            if synced > before:
                return synced
            if time.monotonic() > deadline:
                raise BenchError(f"{SYNCS} does not count what was stored {METRIC_WITHIN_S:.0f} s ago")

    async def _send(self, load: Load, name: str, embedded: Embedded, rate: float | None) -> Sent:
        if rate is not None:
            return await self._send_paced(load, name, embedded, rate)
        if load.batch > 1:
            return await self._send_batches(load, name, embedded)
        return await self._send_singles(load, name, embedded)

    async def _send_paced(self, load: Load, name: str, embedded: Embedded, rate: float) -> Sent:
        record_bytes = self._options.payload
        bodies = Bodies(load.batch, record_bytes) if load.batch > 1 else Documents(record_bytes)
        kind = content_type(load.batch)
        head = f"POST /v1/topics/{name}/events HTTP/1.1\r\nHost: {embedded.ingest}\r\nContent-Type: {kind}\r\n"

        def request() -> bytes:
            key = f"Idempotency-Key: {uuid.uuid4().hex}\r\n" if load.batch > 1 else ""
            body = bodies.next()
            return f"{head}{key}Content-Length: {len(body)}\r\n\r\n".encode() + body

        began = time.monotonic()
        latencies = await paced(embedded.ingest, load.connections, request, rate / load.batch, self._options.seconds)
        cuts = statistics.quantiles(latencies, n=100)
        return Sent(len(latencies) * load.batch, time.monotonic() - began, cuts[49], cuts[98])

    async def _send_batches(self, load: Load, name: str, embedded: Embedded) -> Sent:
        bodies = Bodies(load.batch, self._options.payload)
        latencies: list[float] = []
        async with IngestClient(f"http://{embedded.ingest}", connections=load.connections) as client:
            began = time.monotonic()

            async def one() -> None:
                while (now := time.monotonic()) < began + self._options.seconds:
                    await client.publish_ndjson(name, bodies.next())
                    latencies.append(time.monotonic() - now)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(load.connections):
                    tasks.create_task(one())
            seconds = time.monotonic() - began
        cuts = statistics.quantiles(latencies, n=100)
        return Sent(len(latencies) * load.batch, seconds, cuts[49], cuts[98])

    async def _send_singles(self, load: Load, name: str, embedded: Embedded) -> Sent:
        script = self._folder / f"{name}.lua"
        write_wrk_script(script, self._options.payload)
        url = f"http://{embedded.ingest}/v1/topics/{name}/events"
        found = await asyncio.to_thread(wrk, script, url, load.connections, self._options.seconds)
        return Sent(found.requests, found.seconds, found.p50_s, found.p99_s)

    async def _drained(self, name: str, events: int) -> float:
        """Wait until Kafka has all: seconds from now."""
        began = time.monotonic()
        await arrived(self._clusters.kafka["bootstrap"], [name], self._options.partitions, events, DRAIN_S)
        return time.monotonic() - began


def _title(turn: Turn) -> str:
    pace = "" if turn.asked_rate is None else ", at half"
    return f"{turn.load}, {'delivering' if turn.delivering else 'storing only'}{pace}"


def _print_turn(turn: Turn, disk_syncs_per_s: float, yardstick: enqueue.Enqueued | None) -> None:
    cpu = "  ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in turn.cpu_s_per_1000.items())
    print(
        f"{_title(turn):52} {turn.rate:8,.0f} events/s"
        + (f" = {turn.rate / yardstick.rate:5.1f} x radosgw's" if yardstick else "")
        + f"   p50 {turn.p50_s * 1e3:.1f} ms, p99 {turn.p99_s * 1e3:.1f} ms   CPU ms per 1,000: {cpu}   "
        f"syncs {turn.syncs_per_s:,.0f}/s = {turn.syncs_per_s / disk_syncs_per_s:.0%} of the disk's   "
        f"peak RSS {turn.peak_rss_bytes / 1e6:.0f} MB   others {turn.others:.2f} processors"
        + (f"   all in Kafka after {turn.drained_after_s:.1f} s more" if turn.drained_after_s is not None else ""),
        flush=True,
    )
