"""A drain beside what the endpoint alone gives: Kafka's own ProducerPerformance, with the same bodies.

In turns: ProducerPerformance sends bodies from a file to eleven partitions as fast as it can, with the daemon's
compression and `acks=all`, without keys and headers; then the daemon drains a backlog of the embedded store with the
same bodies to as many partitions. Both share the machine with the broker. The ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devkit.bench.backlog import PARTITIONS, Shape, Turn, deliver, print_turn
from devkit.bench.clusters import running_clusters
from devkit.bench.load import Load
from devkit.bench.producing import BODIES, producer_performance, write_bodies
from remora.model.topic import Target

TITLE = "limits: a drain beside Kafka's own ProducerPerformance"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench limits` understands."""
    parser.add_argument("--entries", type=int, default=500_000, help="records of each turn (default: 500,000)")
    parser.add_argument("--workers", type=int, default=2, help="processes of the daemon (default: 2)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each (default: 2)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    rates: list[float] = []
    turns: list[Turn] = []
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as made,
        running_clusters(options.name, options.keep, ["kafka"]) as clusters,
    ):
        folder = Path(made)
        entries = Load(0, Target("kafka://nobody", "", "bench"), 1000).entries(0, min(BODIES, options.entries))
        bodies = write_bodies(folder / "bodies", entries)
        for _ in range(options.rounds):
            rates.append(asyncio.run(producer_performance(clusters, bodies, options.entries, PARTITIONS)))
            print(f"ProducerPerformance    {rates[-1]:9,.0f} records/s", flush=True)
            turns.append(asyncio.run(deliver(clusters, folder, options.entries, Shape(workers=options.workers))))
            print_turn(f"remora, {options.workers} workers", turns[-1])
    ratio = statistics.median(turn.rate for turn in turns) / statistics.median(rates)
    print(f"remora / ProducerPerformance:  rate {ratio:.2f}")
    return {"producer_performance": rates, "turns": [asdict(turn) for turn in turns], "ratio": ratio}
