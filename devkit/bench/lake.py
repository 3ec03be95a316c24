"""How fast notifications land in Iceberg tables, and what an inventory costs that is kept up.

A topic is filled with Spark; one session then counts its records, which is the most that a job on this host could do,
lands them, makes the inventory, lands changes of one event in a hundred, and brings the inventory up to them. The
catalog is a SQLite file, tables lie in a folder. Each step is said when it ends. `--events 100000` ends within minutes
on two cores; ratios mean something from 1,000,000 on.

With `--skewed` all events are of one bucket and one day, and half of them of one object. Told are then also the slowest
task of a stage beside the stage's median, and the files once `maintain` has put them together.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from devkit.bench.clusters import BenchError, running_clusters
from devkit.clusters.kafka import create_topic
from devkit.clusters.spark import connector_jars
from remora_pipeline.replay.kafka_source import KafkaSource, read, spans
from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress
from remora_pipeline.replay.pipeline.iceberg.inventory import LakeInventory, take_in_lake
from remora_pipeline.replay.pipeline.iceberg.land import LakePlan, land_in_lake
from remora_pipeline.replay.pipeline.iceberg.tables import EVENTS
from remora_pipeline.replay.pipeline.iceberg.upkeep import UpkeepPlan, maintain
from remora_pipeline.replay.session import session

TITLE = "lake: notifications landed in Iceberg tables, and an inventory that is kept up"

PARTITIONS = 4
EVENTS_A_KEY = 5
MOST_STAGES = 2_000
NOTED_S = 1.0
"""A stage whose slowest task takes less than this says nothing of how evenly its tasks are cut."""


@dataclass(frozen=True)
class LakeFigures:
    """What one run measured. `uneven` is the slowest task beside the median of its stage, where that is most."""

    events: int
    count_s: float
    land_s: float
    files: int
    mean_file_bytes: int
    whole_s: float
    changed: int
    kept_up_s: float
    uneven: float
    maintained_files: int
    maintained_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench lake` understands."""
    parser.add_argument("--events", type=int, default=5_000_000, help="events in the topic (default: 5,000,000)")
    parser.add_argument(
        "--skewed", action="store_true", help="one bucket, one day, and half of all events of one object"
    )
    parser.add_argument("--memory", default="2g", help="heap of Spark (default: 2g)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    connector_jars()
    with (
        running_clusters(options.name, options.keep, ("kafka",)) as clusters,
        tempfile.TemporaryDirectory(prefix="remora-bench-") as folder,
        session("bench", kafka=True, memory=options.memory) as spark,
    ):
        found = _measured(spark, str(clusters.kafka["bootstrap"]), Path(folder), options.events, options.skewed)
    print(
        f"lake: {found.events:,} events counted in {found.count_s:.1f} s, landed in {found.land_s:.1f} s"
        f" ({found.events / found.land_s:,.0f}/s): {found.count_s / found.land_s:.2f} of the rate of counting;"
        f" {found.files} files of {found.mean_file_bytes / 1e6:.1f} MB"
    )
    print(
        f"lake: inventory from all events in {found.whole_s:.1f} s, after {found.changed:,} changed objects in"
        f" {found.kept_up_s:.1f} s: {found.kept_up_s / found.whole_s:.2f} of it"
    )
    print(
        f"lake: the slowest task took {found.uneven:.1f} times the median of its stage;"
        f" {found.maintained_files} files after maintain, of"
        f" {found.maintained_bytes / found.maintained_files / 1e6:.1f} MB on average"
    )
    return asdict(found)


def _measured(spark: SparkSession, bootstrap: str, folder: Path, events: int, skewed: bool) -> LakeFigures:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    asyncio.run(create_topic(bootstrap, topic, partitions=PARTITIONS))
    lake = LakeAddress(f"jdbc:sqlite:{folder}/catalog.db", "remora", f"file://{folder}/warehouse")
    source = KafkaSource(bootstrap, topic)
    plan = LakePlan(source, lake)
    keys = events // EVENTS_A_KEY
    _timed("filled", lambda: _fill(spark, bootstrap, topic, range(events), keys, skewed))
    count_s = _timed("counted", lambda: read(spark, source, spans(source)).count())
    before = _task_times(spark)
    land_s = _timed("landed", lambda: land_in_lake(plan))
    sizes = _file_sizes(lake)
    whole_s = _timed("inventory from all events", lambda: take_in_lake(lake))
    uneven = most_uneven(times for stage, times in _task_times(spark).items() if stage not in before)
    changes = range(events, events + events // 100)
    _timed("changes filled", lambda: _fill(spark, bootstrap, topic, changes, keys, skewed))
    _timed("changes landed", lambda: land_in_lake(plan))
    made: list[LakeInventory] = []
    kept_up_s = _timed("inventory of the changes", lambda: made.append(take_in_lake(lake)))
    if (changed := made[0].changed) is None:
        raise BenchError("the inventory was made from all events")
    _timed("maintained", lambda: maintain(UpkeepPlan(lake)))
    kept = _file_sizes(lake)
    return LakeFigures(
        events=events,
        count_s=count_s,
        land_s=land_s,
        files=len(sizes),
        mean_file_bytes=sum(sizes) // len(sizes),
        whole_s=whole_s,
        changed=changed,
        kept_up_s=kept_up_s,
        uneven=uneven,
        maintained_files=len(kept),
        maintained_bytes=sum(kept),
    )


def _file_sizes(lake: LakeAddress) -> list[int]:
    """The bytes of each file that the journal has."""
    journal = lake.connected().load_table(lake.named(EVENTS))
    return [task.file.file_size_in_bytes for task in journal.scan().plan_files()]


def _task_times(spark: SparkSession) -> dict[int, list[float]]:
    """The seconds of each task that has run, by the number of its stage."""
    store = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001  # Python's own tracker knows no tasks
    found: dict[int, list[float]] = {}
    for stage in range(MOST_STAGES):
        tasks = store.taskList(stage, 0, 10_000)
        metrics = [tasks.apply(place).taskMetrics() for place in range(tasks.size())]
        if times := [each.get().executorRunTime() / 1000 for each in metrics if each.isDefined()]:
            found[stage] = times
    return found


def most_uneven(stages: Iterable[Sequence[float]]) -> float:
    """The slowest task beside the median of its stage, where that is most; 1 where no stage has any that is slow."""
    slow = [times for times in stages if max(times) >= NOTED_S]
    return max((max(times) / statistics.median(times) for times in slow), default=1.0)


def _timed(step: str, call: Callable[[], object]) -> float:
    """How long a call takes, said when it ends: a step that takes too long is seen before the run has ended."""
    began = time.monotonic()
    call()
    took_s = time.monotonic() - began
    print(f"lake: {step} in {took_s:.1f} s", flush=True)
    return took_s


def _fill(spark: SparkSession, bootstrap: str, topic: str, numbers: range, keys: int, skewed: bool) -> None:
    """Notifications as S3 writes them, five of each object; one in a thousand removes. See the module for `skewed`."""
    number = F.col("id")
    key = F.format_string("station-%d/reading-%06d.parquet", number % keys % 7, number % keys)
    if skewed:
        key = F.when(number % 2 == 0, F.lit("station-0/now.parquet")).otherwise(key)
    value = F.format_string(
        '{"Records":[{"eventVersion":"2.2","eventSource":"aws:s3","awsRegion":"default","eventTime":'
        '"2026-11-21T%02d:%02d:%02d.%06dZ","eventName":"%s","userIdentity":{"principalId":"bench"},'
        '"s3":{"bucket":{"name":"bench-%d"},"object":{"key":"%s","size":%d,"eTag":"d41d8cd98f00b204e9800998ecf8427e",'
        '"sequencer":"%s"}},"eventId":"%d"}]}',
        F.floor(number / 360_000) % 24, F.floor(number / 6_000) % 60, F.floor(number / 100) % 60, number % 1_000_000,
        F.when(number % 1000 == 0, "ObjectRemoved:Delete").otherwise("ObjectCreated:Put"),
        F.lit(0) if skewed else number % keys % 3, key, 1000 + number % 1000, F.lpad(F.hex(number), 16, "0"), number,
    )  # fmt: skip
    (
        spark.range(numbers.start, numbers.stop, 1, PARTITIONS)
        .select(key.cast("binary").alias("key"), value.cast("binary").alias("value"))
        .write.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("kafka.compression.type", "lz4")
        .save()
    )
