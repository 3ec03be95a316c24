"""How the drain of a backlog depends on shards, size of the bodies, topics and workers: is there a cliff?

Each axis is walked alone, the others being at one topic, 11 shards, bodies of 1,000 bytes and one worker. Every turn
has a daemon and an embedded store of its own, and the same number of bytes or, for small bodies, of entries; all of its
topics deliver to one Kafka topic of 11 partitions. Topics have one shard each where there are many, and a thousand have
ten times as many entries, so that each has as many as each of a hundred. The picture shows rate and processor time
along each axis.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devkit.bench.backlog import Shape, Turn, deliver, print_turn
from devkit.bench.clusters import running_clusters

TITLE = "scale: a drain with more shards, larger bodies, more topics, more workers"

AXES: Mapping[str, Sequence[Shape]] = {
    "shards": [Shape(shards=count) for count in (1, 2, 4, 11, 64)],
    "payload": [Shape(payload=nbytes) for nbytes in (1_000, 10_000, 64_000)],
    "topics": [Shape(topics=count, shards=1) for count in (1, 100, 1000)],
    "workers": [Shape(workers=count) for count in (1, 2, 4)],
}
SOME_TOPICS = 100
"""Topics, up to which the number of entries is the same."""

LIGHT_BYTES = 1000
"""Bodies up to this size: the number of entries is the same; of larger ones the number of bytes."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench scale` understands."""
    parser.add_argument("--entries", type=int, default=100_000, help="of each backlog (default: 100,000)")
    parser.add_argument("--axis", choices=sorted(AXES), action="append", help="only this one; can be repeated")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    found: dict[str, list[tuple[int, Turn]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        running_clusters(options.name, options.keep, ["kafka"]) as clusters,
    ):
        for axis in options.axis or AXES:
            for shape in AXES[axis]:
                value = getattr(shape, axis)
                entries = max(options.entries * LIGHT_BYTES // max(LIGHT_BYTES, shape.payload), shape.topics)
                entries *= max(1, shape.topics // SOME_TOPICS)
                turn = asyncio.run(deliver(clusters, Path(folder), entries, shape))
                found.setdefault(axis, []).append((value, turn))
                print_turn(f"{axis} {value:,}", turn)
    return {axis: [{axis: value, **asdict(turn)} for value, turn in each] for axis, each in found.items()}
