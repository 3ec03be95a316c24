"""remora's resident memory while a backlog grows, and while it is drained.

The broker is frozen, so that remora holds as much in flight as it ever does while nothing leaves the queues.
Entries are then committed step by step, each step held for a while. In the end the broker goes on and everything
is drained. The memory should be flat: what grows is in the store.

Beside it, the size of an embedded file in which one queue is stuck while the events of the others go through.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from devkit.bench import programs, queues
from devkit.bench.clusters import BenchError, Clusters, running_clusters
from devkit.bench.delivered import kafka_topics, read_back
from devkit.bench.load import Load
from devkit.bench.stuck_shard import SHARDS, stuck_shard
from devkit.processes.processes import memory_bytes, preferred
from remora.storage.rados import RadosStore

TITLE = "memory: remora's memory while the backlog grows fiftyfold"

PATIENCE_S = 240.0
"""How long nothing may leave the queues: a host that does other work as well takes its time."""


@dataclass(frozen=True)
class Step:
    """Resident memory at the end of a step, and the most so far."""

    what: str
    backlog: int
    rss_bytes: int
    peak_rss_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench memory` understands."""
    parser.add_argument(
        "--backlogs", type=_numbers, default=[10_000, 50_000, 100_000, 200_000, 500_000], metavar="N,N,...",
        help="entries that stand in the queues, step by step (default: 10000,50000,100000,200000,500000)",
    )  # fmt: skip
    parser.add_argument("--hold", type=float, default=15.0, metavar="S", help="seconds at each step (default: 15)")
    parser.add_argument("--queues", type=int, default=11, help="topics, each with a queue (default: 11)")
    parser.add_argument(
        "--payload", type=int, default=1000, help="bytes of a body (default, and about the least: 1000)"
    )
    parser.add_argument("--partitions", type=int, default=11, help="of each Kafka topic (default: 11)")
    parser.add_argument(
        "--stuck-rounds", type=int, default=200, metavar="N",
        help=f"of 100 events for each of {SHARDS} queues of an embedded topic while one is stuck (default: 200)",
    )  # fmt: skip
    parser.add_argument("--nice", type=int, default=0, help="of all measured processes; -20 on a host that is shared")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    fit = queues.ENTRIES_THAT_FIT * options.queues
    if options.backlogs != sorted(options.backlogs) or not options.queues <= options.backlogs[0] <= fit:
        raise BenchError(f"--backlogs must grow from at least one entry a queue to what fits, {fit:,}")
    with running_clusters(options.name, options.keep) as clusters, tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(clusters, options, Path(folder)))


async def _measure(clusters: Clusters, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    address, run_id = clusters.kafka["bootstrap"], uuid.uuid4().hex[:8]
    names = [f"bench-{run_id}-kafka-{i}" for i in range(options.queues)]
    steps: list[Step] = []
    async with AsyncExitStack() as stack:
        ioctx = stack.enter_context(clusters.queue_objects())
        store = await stack.enter_async_context(RadosStore(clusters.administrator))
        await stack.enter_async_context(kafka_topics(address, names, options.partitions))
        clusters.start("ceph", "rgw")
        stack.enter_context(queues.topics(clusters, names, f"kafka://{address}"))
        stack.callback(clusters.start, "ceph", "rgw")
        clusters.stop("ceph", "rgw")
        queues.offer(ioctx, names, ())
        loads = [
            Load(place, target, options.payload) for place, target in enumerate(await queues.targets(store, names))
        ]
        osds = [pid for name, pid in clusters.ceph["pids"].items() if name.startswith("osd.")]
        stack.enter_context(preferred([*osds, os.getpid()], options.nice))

        with programs.remora(clusters, folder) as pid, preferred([pid], options.nice):
            await asyncio.sleep(3)
            steps.append(_step("idle", 0, pid))
            clusters.stop("kafka", "broker.1", "STOP")
            try:
                for before, backlog in zip([0, *options.backlogs], options.backlogs, strict=False):
                    await _grow(store, names, loads, before, backlog)
                    await asyncio.sleep(options.hold)
                    steps.append(_step("broker frozen", backlog, pid))
            finally:
                clusters.stop("kafka", "broker.1", "CONT")
            began = time.monotonic()
            if (await queues.watch(ioctx, names, PATIENCE_S, dict))[-1].used_bytes:
                raise BenchError("remora has left entries in the queues")
            took_s = time.monotonic() - began
            steps.append(_step(f"drained in {took_s:.1f} s", 0, pid))
        delivered = await read_back(address, names, options.partitions)
    lost = options.backlogs[-1] - delivered.events
    print(f"read back from Kafka: {delivered.events:,} of {options.backlogs[-1]:,} events, {delivered.copies:,} copies")
    if lost:
        raise BenchError(f"{lost} events are missing")
    stuck = await stuck_shard(folder / "embedded", options.stuck_rounds, each=100, nbytes=200)
    print(
        f"embedded, one queue of {SHARDS} stuck: {stuck.events:,} events of the others delivered, it holds"
        f" {stuck.held_bytes / 1e6:.0f} MB, the file had {stuck.file_bytes / 1e6:.0f} MB at most"
    )
    return {
        "steps": [asdict(step) for step in steps],
        "delivered": asdict(delivered) | {"lost": lost},
        "stuck": asdict(stuck),
    }


async def _grow(store: RadosStore, names: Sequence[str], loads: Sequence[Load], before: int, after: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for place, (name, load) in enumerate(zip(names, loads, strict=True)):
            first, end = ((total + place) // len(names) for total in (before, after))
            tasks.create_task(queues.fill(store, name, load, first, end - first))


def _step(what: str, backlog: int, pid: int) -> Step:
    step = Step(what, backlog, *memory_bytes(pid))
    print(
        f"{backlog:8,} entries   {step.rss_bytes / 1e6:4.0f} MB resident, {step.peak_rss_bytes / 1e6:4.0f} MB at most"
        f"   {what}",
        flush=True,
    )
    return step
