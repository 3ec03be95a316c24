"""How long `remora pipeline reconcile` takes for a large bucket, and how much memory.

A landing, an inventory of it and a listing are made of numbers: each object was made by one event. Fifty events are
missing, twenty objects are gone, and ten are of another size. The job runs as the command does, with a session of its
own; memory is that of its whole family of processes, Java included, looked at ten times a second.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from devkit.bench.clusters import BenchError
from devkit.processes.processes import memory_bytes
from remora_pipeline.replay.paths import location
from remora_pipeline.replay.pipeline.columns import EVENT, OBJECT
from remora_pipeline.replay.pipeline.directory import LandedDirectory, Staged
from remora_pipeline.replay.pipeline.reconcile import reconcile
from remora_pipeline.replay.pipeline.reconcile_plan import ReconcilePlan
from remora_pipeline.replay.pipeline.snapshots import Inventory, InventoryDirectory
from remora_pipeline.replay.pipeline.spark import writing
from remora_pipeline.replay.session import session

TITLE = "reconcile: ten million listed objects beside their events"

MISSING, EXTRA, DIFFERING = 50, 20, 10
_FILES = 40


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `scripts/bench reconcile` understands."""
    parser.add_argument("--objects", type=int, default=10_000_000, help="in the bucket (default: 10,000,000)")
    parser.add_argument("--memory", default="2g", help="of Java (default: 2g)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as made:
        folder = Path(made)
        with session("bench", memory=options.memory) as spark, writing(spark):
            _make(spark, folder, options.objects)
        plan = ReconcilePlan(
            bucket="photos", out=folder / "out", inventory=folder / "inventory", listing=folder / "listing.parquet",
            listed_at_us=1_795_300_000_000_000, grace_s=0, memory=options.memory,
        )  # fmt: skip
        peak = _Peak()
        began = time.monotonic()
        with peak:
            found = reconcile(plan)
        took_s = time.monotonic() - began
    expected = {"missing": MISSING, "extra": EXTRA, "differing": DIFFERING, "changing": 0}
    if found.counts != expected:
        raise BenchError(f"found {found.counts}, and not {expected}")
    print(f"{options.objects:,} objects: {took_s:.0f} s, at most {peak.most_bytes / 1e9:.2f} GB, Java's start included")
    return {"objects": options.objects, "took_s": took_s, "peak_rss_bytes": peak.most_bytes}


class _Peak:
    """The most memory that this process and its children had while it was entered."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="peak")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(0.1)
            self.most_bytes = max(self.most_bytes, memory_bytes(os.getpid())[0])


def _make(spark: SparkSession, folder: Path, count: int) -> None:
    """Objects 0 to count + EXTRA by their events; the last EXTRA of them are gone, and the first of no event."""
    numbers = spark.range(0, count + EXTRA, numPartitions=_FILES)
    time_ = F.timestamp_seconds(F.lit(1_795_200_000) + F.col("id") % 50_000)
    hashed = F.xxhash64(F.col("id").cast("string"))
    key = F.format_string("tides/%02d/%016x-%d", F.col("id") % 97, hashed, F.col("id"))
    base = numbers.select("id", key.alias("key"), time_.alias("time"), F.md5(F.col("id").cast("string")).alias("etag"))
    size = F.when(F.col("id").between(MISSING, MISSING + DIFFERING - 1), 7).otherwise(F.col("id") % 1000)
    base.where(F.col("id") < count).select(
        "key", F.lit("null").alias("version_id"), size.cast("long").alias("size"), "etag",
        F.col("time").alias("last_modified"),
    ).write.parquet(location(folder / "listing.parquet"))  # fmt: skip
    events = _as_events(base.where(F.col("id") >= MISSING))
    landed = LandedDirectory(folder / "landed")
    landed.path.mkdir()
    landed.bind(folder / "checkpoint", "t", None, None)
    landing = landed.see("t", None, None).id
    staging = landed.staging()
    events.write.partitionBy("day", "bucket_dir").parquet(location(staging / "events"))
    landed.land(0, Staged(staging, count + EXTRA - MISSING, 0))
    inventory = InventoryDirectory(folder / "inventory")
    making = inventory.staging()
    events.select(*OBJECT.names).write.partitionBy("bucket_dir").parquet(location(making / "objects"))
    told = Inventory(landing, 0, (), time.time_ns() // 1000, count, str(landed.path))
    inventory.publish(making, msgspec.structs.replace(told), 1)


def _as_events(base: DataFrame) -> DataFrame:
    seconds = F.unix_seconds("time")
    turned = F.concat(*[F.substring(F.lpad(F.hex(seconds), 8, "0"), place, 2) for place in (7, 5, 3, 1)])
    told: dict[str, Column] = {
        "event_time": F.col("time"), "event_name": F.lit("ObjectCreated:Put"), "event_source": F.lit("ceph:s3"),
        "tenant": F.lit(""), "bucket": F.lit("photos"), "key": F.col("key"), "size": F.col("id") % 1000,
        "etag": F.col("etag"), "sequencer": F.concat(turned, F.lit("00000000")), "event_id": F.col("key"),
        "topic": F.lit("t"), "offset": F.col("id"), "timestamp": F.col("time"), "shard": F.lit("t.0"),
        "position": F.concat(F.lit("i:0/"), F.col("id")), "batch": F.lit(0), "day": F.lit("2026-11-21"),
        "bucket_dir": F.lit("photos"),
    }  # fmt: skip
    columns = [told.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in EVENT.fields]
    return base.select(*columns)
