"""A daemon's memory at rest, and while millions of events go through it.

Supervisor and workers on an embedded store: idle without topics, after the first event of a topic, and then at rest
again each time that a tenth of the events has come in over HTTP and is in Kafka. *Resident* counts what processes share
once for each of them, *in proportion* (PSS) once in all. Kafka keeps little of the events, and counts all.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from devkit.bench import programs
from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.delivered import arrived, kafka_topics
from devkit.bench.embedded import Embedded
from devkit.bench.events import Bodies
from devkit.processes.ports import free_port
from devkit.processes.processes import memory_bytes, proportional_bytes
from remora.client import IngestClient

TITLE = "footprint: a daemon's memory at rest, and while ten million events go through it"

PARTITIONS = 11
BATCH = 100
CONNECTIONS = 8
RECORD_BYTES = 900
READY_S = 60.0
DRAIN_S = 300.0
KEPT = {"retention.bytes": str(64 << 20), "segment.bytes": str(16 << 20), "file.delete.delay.ms": "1000"}
"""What Kafka keeps of each partition: a run of ten million events needs no disk for them."""


@dataclass(frozen=True)
class Footprint:
    """Memory of all processes of a daemon together."""

    what: str
    events: int
    rss_bytes: int
    pss_bytes: int
    own_pss_bytes: int
    peak_rss_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench footprint` understands."""
    parser.add_argument("--events", type=int, default=10_000_000, help="that go through (default: 10,000,000; 0: none)")
    parser.add_argument("--rounds", type=int, default=3, help="starts of an idle daemon (default: 3)")
    parser.add_argument("--workers", type=int, default=2, help="processes beside the supervisor (default: 2)")
    parser.add_argument("--shards", type=int, default=11, help="of the topic (default: 11)")
    parser.add_argument("--rest", type=float, default=5, help="seconds before each look at memory (default: 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        idle = [runner.run(_idle(options, Path(folder) / f"idle-{n}")) for n in range(options.rounds)]
        rss, pss = (statistics.median(getattr(each, key) for each in idle) / 1e6 for key in ("rss_bytes", "pss_bytes"))
        print(f"idle, medians: {rss:.0f} MB resident, {pss:.0f} MB in proportion", flush=True)
        steps: Sequence[Footprint] = ()
        if options.events:
            with running_clusters(options.name, options.keep, ["kafka"]) as clusters:
                steps = runner.run(_through(clusters, options, Path(folder) / "through"))
    return {"idle": [asdict(each) for each in idle], "steps": [asdict(each) for each in steps]}


async def _idle(options: argparse.Namespace, folder: Path) -> Footprint:
    embedded = _embedded(options, folder)
    with programs.remora_on(embedded) as process:
        return await _at_rest("idle, no topic", 0, embedded, process.pid, options)


async def _through(clusters: Clusters, options: argparse.Namespace, folder: Path) -> Sequence[Footprint]:
    address, name = clusters.kafka["bootstrap"], f"bench-{uuid.uuid4().hex[:8]}"
    embedded, bodies = _embedded(options, folder), Bodies(BATCH, RECORD_BYTES)
    steps: list[Footprint] = []
    async with kafka_topics(address, [name], PARTITIONS, KEPT):
        await embedded.make_topics([name], f"kafka://{address}", options.shards)
        with programs.remora_on(embedded) as process:
            await programs.listening(process, embedded)
            async with IngestClient(f"http://{embedded.ingest}", connections=CONNECTIONS) as client:
                for events in (BATCH * CONNECTIONS, *(options.events * tenth // 10 for tenth in range(1, 11))):
                    began, before = time.monotonic(), steps[-1].events if steps else 0
                    batches = iter(range(before, events, BATCH))

                    async def send(batches: Any = batches) -> None:
                        for _ in batches:
                            await client.publish_ndjson(name, bodies.next())

                    async with asyncio.TaskGroup() as tasks:
                        for _ in range(CONNECTIONS):
                            tasks.create_task(send())
                    sent = before + BATCH * -(-(events - before) // BATCH)
                    await arrived(address, [name], PARTITIONS, sent, DRAIN_S)
                    rate = (sent - before) / (time.monotonic() - began)
                    what = f"at rest, after {rate:,.0f} events/s"
                    steps.append(await _at_rest(what, sent, embedded, process.pid, options))
    names = ("rss_bytes", "pss_bytes", "own_pss_bytes")
    grown = [getattr(steps[-1], name) - getattr(steps[1], name) for name in names]
    print(
        f"from {steps[1].events:,} to {steps[-1].events:,} events: {grown[0] / 1e6:+.1f} MB resident, "
        f"{grown[1] / 1e6:+.1f} MB in proportion, {grown[2] / 1e6:+.1f} MB of it no file's"
    )
    return steps


def _embedded(options: argparse.Namespace, folder: Path) -> Embedded:
    folder.mkdir()
    more = f"\n[supervisor]\nworkers = {options.workers}\n"
    return Embedded(folder, queue_bytes=1 << 30, ingest=f"127.0.0.1:{free_port()}", more=more)


async def _at_rest(what: str, events: int, embedded: Embedded, pid: int, options: argparse.Namespace) -> Footprint:
    """The memory of a daemon a while after all of its workers are ready and nothing happens."""
    deadline = time.monotonic() + READY_S
    while embedded.log.read_text().count(" worker_ready: ") < options.workers:
        if time.monotonic() > deadline:
            raise BenchError(f"{options.workers} workers are not ready {READY_S:.0f} s after the start")
        await asyncio.sleep(0.1)
    await asyncio.sleep(options.rest)
    rss_bytes, peak_rss_bytes = memory_bytes(pid)
    pss_bytes, own_pss_bytes = proportional_bytes(pid)
    found = Footprint(what, events, rss_bytes, pss_bytes, own_pss_bytes, peak_rss_bytes)
    resident, proportional, own, most = (each / 1e6 for each in (rss_bytes, pss_bytes, own_pss_bytes, peak_rss_bytes))
    print(
        f"{events:12,} events   {resident:6.1f} MB resident, {proportional:6.1f} MB in proportion, {own:6.1f} MB of it"
        f" no file's, {most:6.1f} MB resident at most   {what}",
        flush=True,
    )
    return found
