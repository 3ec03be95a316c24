"""A drain beside what the endpoint alone gives: Kafka's own ProducerPerformance, with the same bodies.

In turns: ProducerPerformance sends bodies from a file to eleven partitions as fast as it can, with the daemon's
compression and `acks=all`, without keys and headers; then the daemon drains a backlog of the embedded store with the
same bodies to as many partitions. Both share the machine with the broker. The ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import tempfile
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench_lib.backlog import PARTITIONS, Shape, Turn, deliver
from bench_lib.clusters import ROOT, BenchError, Clusters, running_clusters
from bench_lib.delivered import kafka_topics
from bench_lib.exact import print_turn
from bench_lib.load import Load
from remora.codec.render import Renderer
from remora.config import KafkaSettings
from remora.model.topic import Target

TITLE = "limits: a drain beside Kafka's own ProducerPerformance"

BODIES = 100_000
"""In the file, from which ProducerPerformance draws."""

BATCH_BYTES = 512 << 10
_RATE = re.compile(r"^\d+ records sent, ([\d.]+) records/sec", re.MULTILINE)


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
        bodies = _bodies(folder / "bodies", min(BODIES, options.entries))
        for number in range(options.rounds):
            rates.append(asyncio.run(_producer_performance(clusters, bodies, options.entries)))
            print(f"ProducerPerformance    {rates[-1]:9,.0f} records/s", flush=True)
            place = folder / str(number)
            place.mkdir()
            turns.append(asyncio.run(deliver(clusters, place, options.entries, Shape(workers=options.workers))))
            print_turn(f"remora, {options.workers} workers", turns[-1])
    ratio = statistics.median(turn.rate for turn in turns) / statistics.median(rates)
    print(f"remora / ProducerPerformance:  rate {ratio:.2f}")
    return {"producer_performance": rates, "turns": [asdict(turn) for turn in turns], "ratio": ratio}


def _bodies(file: Path, count: int) -> Path:
    """The bodies of a backlog, one a line."""
    renderer = Renderer()
    entries = Load(0, Target("kafka://nobody", "", "bench"), 1000).entries(0, count)
    file.write_bytes(b"".join([renderer.render(entry)[1] + b"\n" for entry in entries]))
    return file


async def _producer_performance(clusters: Clusters, bodies: Path, records: int) -> float:
    """Records in a second, as it tells itself, its own start left out."""
    address, topic = clusters.kafka["bootstrap"], f"bench-{uuid.uuid4().hex[:8]}"
    properties = {
        "bootstrap.servers": address, "acks": "all", "compression.type": KafkaSettings().compression,
        "batch.size": BATCH_BYTES, "linger.ms": 5,
    }  # fmt: skip
    async with kafka_topics(address, [topic], PARTITIONS):
        process = await asyncio.create_subprocess_exec(
            *("java", "-Xmx512m", "-cp", _class_path(), "org.apache.kafka.tools.ProducerPerformance"),
            *("--topic", topic, "--num-records", str(records), "--throughput", "-1"),
            *("--payload-file", str(bodies), "--producer-props"),
            *(f"{name}={value}" for name, value in properties.items()),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        said, complaints = await process.communicate()
    found = _RATE.findall(said.decode())
    if process.returncode or not found:
        raise BenchError(f"ProducerPerformance failed: {json.dumps(complaints.decode()[-500:])}")
    return float(found[-1])


def _class_path() -> str:
    done = subprocess.run([ROOT / "scripts/dev/kafka-jars"], capture_output=True, text=True, check=True)
    return f"{done.stdout.strip().splitlines()[-1]}/*"
