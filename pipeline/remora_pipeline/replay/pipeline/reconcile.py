"""The job of `remora pipeline reconcile`: the objects that events tell of beside those that are in the bucket.

Time distinguishes what changes meanwhile. The listing begins at a known time; events are read at least the grace
after it has ended, so that those of what it saw have landed; and a key is left out whose object or last event is of a
time from the grace before the listing on. So both may run beside writers.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from remora_pipeline.replay.errors import ReplayRefused, named_by_path
from remora_pipeline.replay.layout import read, see_folder, write
from remora_pipeline.replay.paths import location, pattern
from remora_pipeline.replay.pipeline.columns import EVENT, OBJECT
from remora_pipeline.replay.pipeline.directory import LandedDirectory, Landing
from remora_pipeline.replay.pipeline.emit import Planned
from remora_pipeline.replay.pipeline.findings import (
    CHANGING,
    FINDING,
    KINDS,
    LISTED,
    differences,
    is_changing,
    objects_by_now,
    with_last_events,
)
from remora_pipeline.replay.pipeline.labels import label
from remora_pipeline.replay.pipeline.listing import listed_in_file, listed_in_inventory
from remora_pipeline.replay.pipeline.reconcile_plan import (
    ReconcilePlan,
    ask_first,
    inventory_of,
    listed_at_us,
    listed_before,
    manifest_for,
    refuse_made,
    refuse_what_is_to_come,
)
from remora_pipeline.replay.pipeline.reconciled_page import page_of
from remora_pipeline.replay.pipeline.reconciliation import (
    MOST_EXAMPLES,
    VERSION,
    Listing,
    Reconcile,
    ReconciledDirectory,
    ReconcileFinding,
)
from remora_pipeline.replay.pipeline.spark import writing
from remora_pipeline.replay.run.targets.s3 import Gateway
from remora_pipeline.replay.session import session

if TYPE_CHECKING:
    from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress

SETTINGS: Mapping[str, str] = {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "64"}
"""Of a session of its own: tables of any size are joined, so their parts are put together by what they have."""


@dataclass(frozen=True)
class _KnownState:
    """What the events tell: the current objects, and all events, up to a batch of a landing."""

    objects: DataFrame
    events: DataFrame
    landed: str = ""
    landing: str | None = None
    batch: int = -1


@dataclass(frozen=True)
class _Listed:
    """What is in the bucket, and when it was listed."""

    objects: DataFrame
    source: str
    begun_us: int
    ended_us: int


def reconcile(
    plan: ReconcilePlan, *, master: str | None = None, tell: Callable[[str], None] = lambda _: None
) -> Reconcile:
    """Compare, and leave findings, summary and page in the plan's folder; what was found before is returned as it is
    where the plan goes on with it.

    Raises ReplayRefused for inputs that do not belong together, and a folder that is somebody else's: what shows in a
    moment before Spark is started.
    """
    directory = ReconciledDirectory(plan.out)
    if (made := directory.made()) is not None:
        refuse_made(plan, made)
        return made
    directory.refuse_others()
    with named_by_path(plan.out):
        ask_first(plan, directory)
        see_folder(plan.out)
        with directory.locked():
            if (made := directory.made()) is not None:  # by another process, just now
                refuse_made(plan, made)
                return made
            with (
                session("pipeline reconcile", master=master, memory=plan.memory, settings=SETTINGS) as spark,
                writing(spark),
            ):
                found = _compared(spark, plan, directory, tell)
            directory.page.write_text(page_of(found))
            directory.keep(found)
    return found


def plan_emission(out: Path, *, topic: str = "", lake: LakeAddress | None = None, master: str | None = None) -> None:
    """Find out which findings are to be sent: those whose keys have no event that has landed since.

    Raises ReplayRefused where a part of them may have been sent to another topic.
    """
    directory = ReconciledDirectory(out)
    found = directory.made()
    assert found is not None, "there is a reconcile whose findings are sent"
    plan = directory.emit / "plan.json"
    if plan.exists():
        planned = read(plan, Planned).topic
        if planned and planned != topic:
            raise ReplayRefused(f"{out}: its events go to topic {planned}, not to {topic}: compare into a new folder")
        return
    batch = _batch_by_now(found, lake)
    if batch < found.batch:
        raise ReplayRefused(f"{out}: events up to batch {found.batch} were compared, and {batch} is the last one now")
    if batch > found.batch:
        with session("pipeline reconcile", master=master, settings=SETTINGS) as spark, writing(spark):
            events, batch = _events_by_now(spark, found, lake)
            findings = spark.read.schema(FINDING).parquet(pattern(directory.findings))
            later = events.where(F.col("batch") > found.batch)
            left = findings.join(later.select("key"), on="key", how="left_anti").select(*FINDING.names)
            left.sort("key").write.mode("overwrite").parquet(location(directory.emit / "plan"))
    write(plan, Planned(is_whole=batch == found.batch, batch=batch, topic=topic))


def _compared(
    spark: SparkSession, plan: ReconcilePlan, directory: ReconciledDirectory, tell: Callable[[str], None]
) -> Reconcile:
    tell("listing")
    listed = _listed(spark, plan, directory)
    refuse_what_is_to_come(listed.source, listed.begun_us, plan.grace_s)
    if (left_s := listed.ended_us / 1e6 + plan.grace_s - time.time()) > 0:
        tell(f"waiting {left_s:.0f} s, the rest of the grace, so that events of what was listed have landed")
        time.sleep(left_s)
    tell("comparing")
    known = _known(spark, plan)
    kinds, examples = _find(spark, plan, directory, listed, known)
    return Reconcile(
        version=VERSION,
        id=f"reconcile-{uuid.uuid4().hex[:16]}",
        bucket=plan.bucket,
        tenant=plan.tenant,
        source=listed.source,
        landed=known.landed,
        landing=known.landing,
        batch=known.batch,
        begun_us=listed.begun_us,
        ended_us=listed.ended_us,
        grace_us=round(plan.grace_s * 1_000_000),
        listed=listed.objects.count(),
        told=known.objects.count(),
        counts=kinds,
        examples=examples,
    )


def _find(
    spark: SparkSession, plan: ReconcilePlan, directory: ReconciledDirectory, listed: _Listed, known: _KnownState
) -> tuple[dict[str, int], tuple[ReconcileFinding, ...]]:
    """Write the findings, by key; how many there are by kind, and the first ones of each.

    They are written twice, since all that is asked of them, a sort's samples too, would compare the sides anew.
    """
    changing = is_changing(listed.begun_us, round(plan.grace_s * 1_000_000), time.time_ns() // 1000)
    differing = differences(known.objects, listed.objects)
    found = with_last_events(differing, known.events).withColumn("is_changing", changing)
    found.write.mode("overwrite").parquet(location(directory.unsorted))
    kept = spark.read.schema(found.schema).parquet(pattern(directory.unsorted))
    counted = {
        row["kind"]: row["rows"]
        for row in kept.groupBy(F.when(F.col("is_changing"), CHANGING).otherwise(F.col("kind")).alias("kind"))
        .agg(F.count("*").alias("rows"))
        .collect()
    }
    lasting = kept.where(~F.col("is_changing")).select(*FINDING.names)
    lasting.sort("key").write.mode("overwrite").parquet(location(directory.findings))
    first = Window.partitionBy("kind").orderBy("key")
    shown = lasting.withColumn("place", F.row_number().over(first)).where(F.col("place") <= MOST_EXAMPLES)
    examples = sorted((_example(row) for row in shown.collect()), key=lambda each: (KINDS.index(each.kind), each.key))
    shutil.rmtree(directory.unsorted, ignore_errors=True)
    return {kind: counted.get(kind, 0) for kind in (*KINDS, CHANGING)}, tuple(examples)


def _example(row: Row) -> ReconcileFinding:
    return ReconcileFinding(
        kind=row["kind"],
        key=row["key"],
        differs=tuple(row["differs"] or ()),
        listed=_told(row["size"], row["etag"], row["version_id"], row["last_modified"]),
        event=_told(
            row["event_size"], row["event_etag"], row["event_version_id"], row["event_time"], row["event_name"]
        ),
    )


def _told(size: object, etag: object, version: object, at: object, name: object = None) -> str:
    """What is known of an object, in words; empty where nothing is."""
    parts = [name, None if at is None else f"{at}Z", None if size is None else f"{size} bytes", etag, version]
    return ", ".join(str(part) for part in parts if part not in (None, ""))


# ------------------------------------------------------------------------------------------------ the two sides


def _listed(spark: SparkSession, plan: ReconcilePlan, directory: ReconciledDirectory) -> _Listed:
    if plan.manifest is not None:
        manifest = manifest_for(plan, plan.manifest)
        return _Listed(
            listed_in_inventory(spark, plan.manifest, manifest), str(plan.manifest), manifest.made_us, manifest.made_us
        )
    if plan.listing is not None:
        at_us = listed_at_us(plan, plan.listing)
        return _Listed(listed_in_file(spark, plan.listing), str(plan.listing), at_us, at_us)
    assert plan.gateway is not None, "there is something that tells what is in the bucket"
    listing = listed_before(plan, directory) or _list(spark, plan, plan.gateway, directory)
    objects = spark.read.schema(LISTED).parquet(pattern(directory.listing))
    return _Listed(objects, listing.source, listing.begun_us, listing.ended_us)


def _list(spark: SparkSession, plan: ReconcilePlan, gateway: Gateway, directory: ReconciledDirectory) -> Listing:
    """The listing is kept before anything is compared: a second run goes on with it."""
    from remora_pipeline.replay.pipeline.s3_objects import listed_by_s3  # its libraries take a second to load

    shutil.rmtree(directory.listing, ignore_errors=True)
    begun_us = time.time_ns() // 1000
    listed_by_s3(spark, gateway, plan.bucket).write.parquet(location(directory.listing))
    listing = Listing(plan.bucket, gateway.url, begun_us, time.time_ns() // 1000)
    directory.keep_listing(listing)
    return listing


def _batch_by_now(found: Reconcile, lake: LakeAddress | None) -> int:
    """Up to which batch the events of a reconcile's landing have landed by now. Raises ReplayRefused."""
    if lake is not None:
        # The libraries of these take a second to load.
        from remora_pipeline.replay.pipeline.iceberg.catalog import told_as
        from remora_pipeline.replay.pipeline.iceberg.commits import landed_in
        from remora_pipeline.replay.pipeline.iceberg.known import tables_there

        _, journal = tables_there(lake)
        if str(journal.metadata.table_uuid) != found.landing:
            raise ReplayRefused(f"{lake.named('events')}: is another landing than the one that was compared")
        with told_as(lake.uri):
            return landed_in(journal).batch
    return _landing_of(found).commit().whole if found.landing else found.batch


def _events_by_now(spark: SparkSession, found: Reconcile, lake: LakeAddress | None) -> tuple[DataFrame, int]:
    """All events of a reconcile's bucket that have landed by now, and up to which batch. Raises ReplayRefused."""
    if lake is None:
        landed = _landing_of(found)
        batch = landed.commit().whole
        return _events_of(spark, landed, found.bucket, found.tenant, batch), batch
    from remora_pipeline.replay.pipeline.iceberg.known import tables_of_bucket  # its libraries take a second to load

    known = tables_of_bucket(spark, lake, found.bucket, found.tenant)
    if known.landing != found.landing:
        raise ReplayRefused(f"{lake.named('events')}: is another landing than the one that was compared")
    return known.events, known.batch


def _landing_of(found: Reconcile) -> LandedDirectory:
    """The landing that was compared. Raises ReplayRefused where another one is in its place."""
    landed = LandedDirectory(Path(found.landed))
    if read(landed.landing, Landing).id != found.landing:
        raise ReplayRefused(f"{landed.path}: is another landing than the one that was compared")
    return landed


def _known(spark: SparkSession, plan: ReconcilePlan) -> _KnownState:
    if plan.lake is not None:
        from remora_pipeline.replay.pipeline.iceberg.known import (
            tables_of_bucket,  # its libraries take a second to load
        )

        known = tables_of_bucket(spark, plan.lake, plan.bucket, plan.tenant)
        objects = _by_now(known.objects, known.events, known.inventoried, known.batch)
        return _KnownState(objects, known.events, plan.lake.named("events"), known.landing, known.batch)
    if plan.inventory is None:
        return _KnownState(spark.createDataFrame([], OBJECT), spark.createDataFrame([], EVENT))
    newest, landed = inventory_of(plan)
    is_ours = (F.col("bucket") == plan.bucket) & (F.col("tenant") == plan.tenant)
    is_its_folder = F.col("bucket_dir") == label(plan.bucket)
    snapshot = (plan.inventory / "current").resolve()  # a later one may be made meanwhile
    objects = spark.read.schema(OBJECT).parquet(pattern(snapshot / "objects")).where(is_its_folder & is_ours)
    batch = landed.commit().whole
    events = _events_of(spark, landed, plan.bucket, plan.tenant, batch)
    objects = _by_now(objects, events, newest.batch, batch)
    return _KnownState(objects, events, str(landed.path), newest.landing, batch)


def _by_now(objects: DataFrame, events: DataFrame, inventoried: int, batch: int) -> DataFrame:
    return objects if inventoried == batch else objects_by_now(objects, events, inventoried)


def _events_of(spark: SparkSession, landed: LandedDirectory, bucket: str, tenant: str, batch: int) -> DataFrame:
    """The events of a bucket up to a batch; only the files of its own folders are read."""
    if not landed.events.exists():
        return spark.createDataFrame([], EVENT)
    events = spark.read.schema(EVENT).parquet(pattern(landed.events))
    is_its = (F.col("bucket_dir") == label(bucket)) & (F.col("bucket") == bucket) & (F.col("tenant") == tenant)
    return events.where(is_its & (F.col("batch") <= batch)).select(*EVENT.names)
