"""The job of `remora pipeline inventory`: the current objects of each bucket, from landed events."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from remora_pipeline.replay.errors import ReplayRefused, named_by_path
from remora_pipeline.replay.layout import read
from remora_pipeline.replay.paths import location, pattern
from remora_pipeline.replay.pipeline.columns import EVENT
from remora_pipeline.replay.pipeline.directory import LandedDirectory, Landing
from remora_pipeline.replay.pipeline.frames import current_objects
from remora_pipeline.replay.pipeline.labels import label
from remora_pipeline.replay.pipeline.snapshots import Inventory, InventoryDirectory
from remora_pipeline.replay.pipeline.spark import rows, writing
from remora_pipeline.replay.session import session


@dataclass(frozen=True)
class InventoryPlan:
    """Which inventory to make of what. `keep` counts snapshots, the new one included."""

    landed: Path
    out: Path
    buckets: Sequence[str] = ()
    keep: int = 2
    memory: str = "2g"


def take(plan: InventoryPlan, *, master: str | None = None) -> tuple[Inventory, bool]:
    """The inventory of all that has landed, and whether it had to be made.

    It is made from all events each time: then it depends on nothing but them, and an event that comes late, or a
    second time, changes nothing that it should not. Raises ReplayRefused where nothing has landed, and while another
    process makes one there.
    """
    with named_by_path(plan.out):
        return _take(plan, master)


def landing_at(path: Path) -> LandedDirectory:
    """The landing that an inventory is made of. Raises ReplayRefused where nothing has landed."""
    found = LandedDirectory(path)
    if not found.landing.exists():
        raise ReplayRefused(f"{path}: nothing has landed there (no {found.landing.name})")
    return found


def _take(plan: InventoryPlan, master: str | None) -> tuple[Inventory, bool]:
    source, target = landing_at(plan.landed), InventoryDirectory(plan.out)
    wanted, newest = _wanted(plan, source), target.newest()
    if newest and (newest.landing, newest.batch, newest.buckets) == (wanted.landing, wanted.batch, wanted.buckets):
        return newest, False
    with target.locked():
        wanted = _wanted(plan, source)  # as of now: another one may just have been made, of more
        staging = target.staging()
        try:
            with (
                session("pipeline inventory", master=master, memory=plan.memory) as spark,
                writing(spark),
            ):
                _write(spark, source, wanted, staging)
            made = msgspec.structs.replace(wanted, objects=rows(staging / "objects"))
            target.publish(staging, made, plan.keep)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return made, True


def _wanted(plan: InventoryPlan, source: LandedDirectory) -> Inventory:
    return Inventory(
        landing=read(source.landing, Landing).id,
        batch=source.commit().whole,
        buckets=tuple(sorted(set(plan.buckets))),
        made_us=time.time_ns() // 1000,
        objects=0,
        landed=str(plan.landed.resolve()),
    )


def _write(spark: SparkSession, source: LandedDirectory, wanted: Inventory, staging: Path) -> None:
    events = chosen(_events(spark, source, wanted.batch), wanted.buckets)
    (
        current_objects(events)
        .hint("rebalance", "bucket_dir")
        .sortWithinPartitions("bucket_dir", "tenant", "bucket", "key")
        .write.partitionBy("bucket_dir")
        .parquet(location(staging / "objects"))
    )


def chosen(events: DataFrame, buckets: Sequence[str]) -> DataFrame:
    """The events of some buckets, or of all where none is named. The files of other buckets' folders are not read."""
    if not buckets:
        return events
    folders = sorted({label(bucket) for bucket in buckets})
    return events.where(F.col("bucket_dir").isin(*folders) & F.col("bucket").isin(*buckets)).select(*EVENT.names)


def _events(spark: SparkSession, source: LandedDirectory, batch: int) -> DataFrame:
    """The events of whole batches. The schema is given, so that a bucket's folder is never taken for a number."""
    if not source.events.exists():
        return spark.createDataFrame([], EVENT)
    events = spark.read.schema(EVENT).parquet(pattern(source.events))
    return events.where(F.col("batch") <= batch).select(*EVENT.names)
