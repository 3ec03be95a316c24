"""How long `remora replay verify` takes for topics of different sizes, and how much memory.

Topics of two sizes, with the journals and the trace of a replay that went well, are made with Spark, and each is
verified by a process of its own. Beside each stands the ceiling: a process that reads the same records with Spark, and
only counts them. Told are the time, the processor time and the largest memory of all processes of a verification, and
how the time grows with the records.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from devkit.bench.clusters import BenchError, running_clusters
from devkit.clusters.kafka import create_topic
from devkit.paths import ROOT
from devkit.processes.processes import cpu_s, family
from remora.codec.murmur2 import partition
from remora_pipeline.replay import layout
from remora_pipeline.replay.layout import PreparedDirectory, ReplayRun, RunDirectory, Trace
from remora_pipeline.replay.run.journal import FinalOutcome, SendIntent, open_journal
from remora_pipeline.replay.session import JARS, session
from remora_pipeline.replay.shape import ACKED, PUT
from remora_pipeline.replay.verify.sent import text

TITLE = "replay-verify: a topic of millions of records compared with the journals of its replay"

PARTITIONS = 4
KEYS = 2_500
"""In each partition; one event in four is of the first of them."""

BATCH = 500
STEP_US = 50
RUN_ID = "bench"


_COUNTING = """
import sys
from remora_pipeline.replay.kafka_source import KafkaSource, read, spans
from remora_pipeline.replay.session import session
bootstrap, topic, memory = sys.argv[1:]
source = KafkaSource(bootstrap, topic)
with session("ceiling", kafka=True, memory=memory) as spark:
    print(read(spark, source, spans(source)).count())
"""
"""Reads a topic as a verification does, and only counts."""


@dataclass(frozen=True)
class Verified:
    """One verification, and how long a process takes that only counts the same records."""

    records: int
    seconds: float
    cpu_s: float
    peak_bytes: int
    verdict: str
    ceiling_s: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench replay-verify` understands."""
    sizes = "records of a topic; may be repeated (default: 500000 and 5000000)"
    parser.add_argument("--records", type=int, action="append", help=sizes)
    parser.add_argument("--memory", default="2g", help="heap of the verifying Spark (default: 2g)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Make, verify, print; returns the figures."""
    sizes = options.records or [500_000, 5_000_000]
    os.environ.setdefault(JARS, _jars())
    with (
        running_clusters(options.name, options.keep, ("kafka",)) as clusters,
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
    ):
        bootstrap = str(clusters.kafka["bootstrap"])
        with session("bench", kafka=True, memory=options.memory) as spark:
            stands = [(size, _stand(spark, bootstrap, Path(folder) / str(size), size)) for size in sizes]
        found = [_verify(bootstrap, run, size, options.memory) for size, run in stands]
    for each in found:
        print(
            f"verify: {each.records:,} records in {each.seconds:.1f} s, {each.records / each.seconds:,.0f}/s,"
            f" {each.cpu_s:.1f} s of processors, at most {each.peak_bytes / 1e9:.2f} GB: {each.verdict}"
        )
        print(
            f"ceiling: {each.records:,} records read and counted in {each.ceiling_s:.1f} s:"
            f" {each.ceiling_s / each.seconds:.2f} of the time of verifying them"
        )
    growth = found[-1].seconds / found[0].seconds / (found[-1].records / found[0].records)
    print(f"verify: {growth:.2f} of the time that it would take if it grew as the records do")
    return {"turns": [asdict(each) for each in found], "growth": growth}


def _jars() -> str:
    done = subprocess.run([ROOT / "scripts/dev/spark-jars"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"spark-jars failed: {done.stderr.strip()[-1000:]}")
    return done.stdout.strip().splitlines()[-1]


# ---------------------------------------------------------------------------------------------- a good replay


def _stand(spark: SparkSession, bootstrap: str, folder: Path, records: int) -> RunDirectory:
    """A topic with this many records, the trace that they are of, and the journals of its replay."""
    topic, began_us = f"bench-{uuid.uuid4().hex[:8]}", time.time_ns() // 1000
    prepared = PreparedDirectory(folder / "prepared")
    events = _events(spark, records)
    events.select("seq", "ts_us", "op", "bucket", "key", "size", "kseq").write.parquet(str(prepared.events))
    trace = Trace(
        name="bench", sha256="0" * 64, sources=(), format="bench", options={}, events=records, keys=KEYS * PARTITIONS,
        buckets=1, first_us=0, last_us=records * STEP_US, bytes=0, operations={PUT: records}, dropped={},
        peak_per_s=1_000_000 // STEP_US, hottest=(),
    )  # fmt: skip
    layout.write(prepared.trace, trace)
    run = RunDirectory(folder / "run")
    replay = ReplayRun(
        run_id=RUN_ID, trace=trace, prepared=str(prepared.path), target="ingest", address="", topic=topic, speed=1.0,
        parts=PARTITIONS, overload="wait", started_us=began_us - 1_000_000, options={}, host="", cores=0, versions={},
    )  # fmt: skip
    layout.write(run.run, replay)
    for part in range(PARTITIONS):
        _journal(run, part, records, began_us)
    _create(bootstrap, topic)
    _records(events, replay, began_us).write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option(
        "topic", topic
    ).option("includeHeaders", "true").option("kafka.compression.type", "lz4").save()
    return run


def _events(spark: SparkSession, records: int) -> DataFrame:
    """Events whose number says their part; in each part every fourth one is of one key."""
    part, nth = F.col("id") % PARTITIONS, F.floor(F.col("id") / PARTITIONS)
    is_hot = nth % 4 == 0
    number = F.when(is_hot, F.lit(0)).otherwise(1 + (nth - F.floor(nth / 4) - 1) % (KEYS - 1))
    kseq = F.when(is_hot, nth / 4).otherwise(F.floor((nth - F.floor(nth / 4) - 1) / (KEYS - 1)))
    numbered = spark.range(records).select(
        "id", part.alias("part"), nth.alias("nth"), number.cast("int").alias("number")
    )
    named = numbered.join(F.broadcast(_keys(spark)), on=["part", "number"], how="inner")
    return named.select(
        F.col("id").alias("seq"),
        (F.col("id") * STEP_US).alias("ts_us"),
        F.lit(PUT).alias("op"),
        F.lit("bench").alias("bucket"),
        "key",
        (1000 + F.col("id") % 1000).alias("size"),
        kseq.cast("bigint").alias("kseq"),
        F.col("part").cast("int").alias("partition"),
        F.col("nth").cast("bigint").alias("nth"),
    )


def _keys(spark: SparkSession) -> DataFrame:
    """Names for the keys of each part, such that Kafka's clients put them into the partition of that number."""
    rows = [
        (
            part,
            number,
            next(key for key in _names(part, number) if partition(f"bench/{key}".encode(), PARTITIONS) == part),
        )
        for part in range(PARTITIONS)
        for number in range(KEYS)
    ]
    return spark.createDataFrame(rows, "part long, number int, key string")


def _names(part: int, number: int) -> Iterator[str]:
    return (f"station-{part}/reading-{number:06}.{salt:02}.parquet" for salt in itertools.count())


def _records(events: DataFrame, run: ReplayRun, began_us: int) -> DataFrame:
    """What remora makes of them, each partition in its order."""
    at_us = F.col("ts_us") + began_us + 5_000
    timed = events.withColumn("said_us", F.col("ts_us") + began_us)
    ordered = timed.repartitionById(PARTITIONS, "partition").sortWithinPartitions("seq")
    event_id = F.format_string(f"{RUN_ID}/%d", "seq")
    value = F.concat(text(run), F.lit(',"opaqueData":""}]}'))
    headers = {
        "remora-shard": F.format_string(f"{run.topic}.%d", "partition"),
        "remora-pos": F.format_string("inc:0/%d", "nth"),
        "remora-next": F.format_string("inc:0/%d", F.col("nth") + 1),
        "remora-event-id": event_id,
    }
    return ordered.select(
        "partition",
        F.concat_ws("/", "bucket", "key").cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        F.array(
            *[F.struct(F.lit(name).alias("key"), told.cast("binary").alias("value")) for name, told in headers.items()]
        ).alias("headers"),
        F.timestamp_micros(at_us).alias("timestamp"),
    )


def _journal(run: RunDirectory, part: int, records: int, began_us: int) -> None:
    with open_journal(run, part) as journal:
        journal.start(began_us, 0, 1.0)
        for first in range(part, records, BATCH * PARTITIONS):
            seqs = tuple(range(first, min(records, first + BATCH * PARTITIONS), PARTITIONS))
            due_us = began_us + first * STEP_US
            journal.write(SendIntent(seqs, due_us + BATCH * PARTITIONS * STEP_US, 1))
            journal.write(FinalOutcome(seqs, ACKED, 1, due_us + 200, due_us + 2_000 + first % 977, 200))


def _create(bootstrap: str, topic: str) -> None:
    asyncio.run(create_topic(bootstrap, topic, partitions=PARTITIONS))


# ------------------------------------------------------------------------------------------------ verified


def _verify(bootstrap: str, run: RunDirectory, records: int, memory: str) -> Verified:
    argv = [
        sys.executable, "-m", "remora", "replay", "verify", str(run.path), "--bootstrap", bootstrap, "--memory", memory,
        "--settle", "1s", "--max-lateness", "1h",
    ]  # fmt: skip
    seconds, costs, _ = _timed(argv)
    verdict = json.loads(run.verdict.read_text())
    if verdict["counts"]["distinct"] != records:
        raise BenchError(f"verify found {verdict['counts']['distinct']} of {records} records")
    topic = layout.read(run.run, ReplayRun).topic
    ceiling_s, _, counted = _timed([sys.executable, "-c", _COUNTING, bootstrap, topic, memory])
    if int(counted.split()[-1]) != records:
        raise BenchError(f"counting found {counted.split()[-1]} of {records} records")
    return Verified(records, seconds, costs.cpu_s, costs.peak_bytes, verdict["verdict"], ceiling_s)


def _timed(argv: list[str]) -> tuple[float, _Costs, str]:
    """How long a process took, what it cost, and what it printed."""
    began = time.monotonic()
    with (
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        _watched(process.pid) as costs,
    ):
        out, err = process.communicate()
        seconds = time.monotonic() - began
    if process.returncode != 0:
        raise BenchError(f"{' '.join(argv[1:5])} ended with {process.returncode}: {(out + err)[-2000:]}")
    return seconds, costs, out


class _Costs:
    """The most memory that a process and its family had at a time, and their processor time."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.cpu_s = 0.0

    def look(self, pid: int) -> None:
        """Look now."""
        with suppress(FileNotFoundError, ProcessLookupError):
            self.peak_bytes = max(self.peak_bytes, sum(map(_resident, family(pid))))
            self.cpu_s = max(self.cpu_s, cpu_s(pid))


@contextmanager
def _watched(pid: int) -> Iterator[_Costs]:
    """What a process costs while the block runs, looked at ten times a second."""
    costs, ended = _Costs(), threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            costs.look(pid)

    thread = threading.Thread(target=look, name="costs")
    thread.start()
    try:
        yield costs
    finally:
        ended.set()
        thread.join()


def _resident(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
