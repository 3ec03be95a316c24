"""A standing backlog delivered in exactly-once and in at-least-once mode, in turns: what transactions cost.

Each turn has a daemon, an embedded store and a Kafka topic of its own, with eleven queues and as many partitions. The
rate is that at which entries leave the queues, from the first that is seen to have left until none is there. What is
in the Kafka topic is counted afterwards. The ratio compares the medians of the turns. A first turn of each mode is not
measured.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devkit.bench.backlog import Shape, Turn, deliver, print_turn
from devkit.bench.clusters import running_clusters
from remora.model.topic import Delivery

TITLE = "exactly-once: a backlog delivered in transactions, and at least once"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench exactly-once` understands."""
    parser.add_argument("--entries", type=int, default=300_000, help="of the backlog (default: 300,000)")
    parser.add_argument("--workers", type=int, default=1, help="processes of the daemon (default: 1)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each mode (default: 3)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    turns: dict[str, list[Turn]] = {str(each): [] for each in Delivery}
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(options.name, options.keep, ["kafka"]) as clusters,
    ):
        shapes = {mode: Shape(workers=options.workers, delivery=Delivery(mode)) for mode in turns}
        for shape in shapes.values():  # a broker's first transactions take it several times as long
            asyncio.run(deliver(clusters, Path(folder), options.entries, shape))
        for _ in range(options.rounds):
            for mode, found in turns.items():
                shape = shapes[mode]
                found.append(asyncio.run(deliver(clusters, Path(folder), options.entries, shape)))
                print_turn(mode, found[-1])
    medians = {mode: statistics.median(turn.rate for turn in each) for mode, each in turns.items()}
    ratio = medians[Delivery.EXACTLY_ONCE] / medians[Delivery.AT_LEAST_ONCE]
    print(f"exactly-once / at-least-once:  rate {ratio:.2f}")
    return {"turns": {mode: [asdict(turn) for turn in each] for mode, each in turns.items()}, "ratio": ratio}
