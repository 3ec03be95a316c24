"""How many records a second one core of a consumer tells apart with remora.client.Deduplicator.

The records are aiokafka's own class with the six headers that remora writes at most, made before the clock starts.
Each round reads all of them once, and they are new; the positions of the next round follow. The first round, in which
the shards are met, is a figure of its own. Time is processor time, so what else the machine does counts little.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aiokafka.structs import ConsumerRecord

from devkit.bench.clusters import BenchError
from devkit.processes.processes import memory_bytes
from remora.client import Deduplicator

TITLE = "consume: records a second that remora.client.Deduplicator tells apart, and its memory"

ENTRY_BYTES = 517
AHEAD = 100_000

SHAPES = ((11, 1), (11, 11), (1_000, 11), (100_000, 1), (100_000, 11))
"""Shards, and the partitions that their records lie in."""


@dataclass(frozen=True)
class Row:
    """Records a second at the first sight of the shards and in each round after it, and what all of them take."""

    shards: int
    partitions: int
    first: float
    rates: list[float]
    bytes_a_shard: float
    checkpoint_bytes: int
    checkpoint_s: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench consume` understands."""
    parser.add_argument("--records", type=int, default=200_000, help="in each round (default: 200,000)")
    parser.add_argument("--rounds", type=int, default=3, help="after the first (default: 3)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    rows = [_measured(shards, partitions, options.records, options.rounds) for shards, partitions in SHAPES]
    return {"rows": [asdict(row) for row in rows]}


def _measured(shards: int, partitions: int, count: int, rounds: int) -> Row:
    count = max(count, shards) // shards * shards
    dedupe = Deduplicator(ahead=AHEAD)
    rates = []
    grown = 0.0
    for number in range(rounds + 1):
        records = _records(shards, partitions, count, number)
        gc.collect()
        before = memory_bytes(os.getpid())[0]
        began = time.process_time()
        new = sum(1 for _ in dedupe.fresh(records))
        rates.append(count / (time.process_time() - began))
        if number == 0:
            grown = memory_bytes(os.getpid())[0] - before
        if new != count or dedupe.copies:
            raise BenchError(f"{count} new records, and {new} were taken for new")
    began = time.process_time()
    kept = dedupe.checkpoint()
    row = Row(
        shards, partitions, rates[0], rates[1:], grown / min(shards, count), len(kept), time.process_time() - began
    )
    _print(row)
    return row


def _records(shards: int, partitions: int, count: int, number: int) -> Sequence[ConsumerRecord]:
    """Each shard's records in order, their keys spread over the partitions."""
    chance = random.Random(number)
    each = count // shards
    records = []
    for at in range(count):
        shard, place = at % shards, (number * each + at // shards) * ENTRY_BYTES
        incarnation = b"%016x" % shard
        headers = (
            ("remora-shard", b"orders.%d" % shard),
            ("remora-pos", b"%b:0/%d" % (incarnation, place)),
            ("remora-next", b"%b:0/%d" % (incarnation, place + ENTRY_BYTES)),
            ("remora-event-id", b"1795227938.482913.4c0ffee"),
            ("remora-seq", b"8c1f5a0e6d2b4790:%d" % (number * count + at + 1)),
            ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        )
        partition = chance.randrange(partitions)
        records.append(ConsumerRecord("orders", partition, at, 0, 0, b"k", b"v", None, 1, 1, headers))
    return records


def _print(row: Row) -> None:
    print(
        f"{row.shards:7,} shards, {row.partitions:2} partitions   first {row.first:9,.0f}/s"
        f"   then {statistics.median(row.rates):9,.0f}/s   {row.bytes_a_shard:6,.0f} bytes a shard"
        f"   checkpoint {row.checkpoint_bytes / 1e6:5.1f} MB in {row.checkpoint_s:.2f} s",
        flush=True,
    )
