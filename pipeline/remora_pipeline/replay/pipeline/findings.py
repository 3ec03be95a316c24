"""What differs between the objects that events tell of and those that are listed, as tables.

Only what a client without version ids sees is compared: the current version of each key, where that is no delete
marker.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from remora_pipeline.replay.pipeline.columns import OBJECT
from remora_pipeline.replay.pipeline.frames import changes, current_objects, newest

MISSING, EXTRA, DIFFERING = "missing", "extra", "differing"
KINDS = (MISSING, EXTRA, DIFFERING)
CHANGING = "changing"
"""Keys that differ, and changed from the grace before the listing on."""

LISTED = StructType(
    [
        StructField("key", StringType()),
        StructField("version_id", StringType()),
        StructField("size", LongType()),
        StructField("etag", StringType()),
        StructField("last_modified", TimestampType()),
    ]
)
"""An object that is listed. An empty version is that of a bucket without versions, and null where none is told; ETags
may have quotation marks."""

FINDING = StructType(
    [
        StructField("kind", StringType()),
        StructField("key", StringType()),
        StructField("differs", ArrayType(StringType())),
        StructField("version_id", StringType()),
        StructField("size", LongType()),
        StructField("etag", StringType()),
        StructField("last_modified", TimestampType()),
        StructField("event_name", StringType()),
        StructField("event_time", TimestampType()),
        StructField("event_version_id", StringType()),
        StructField("event_size", LongType()),
        StructField("event_etag", StringType()),
        StructField("event_sequencer", StringType()),
        StructField("event_id", StringType()),
    ]
)
"""A difference, version 1 of the table: `differs` names size, etag and version_id; then the object as it is listed,
nulls where it is not; then the last event of its key, nulls where there is none."""

_TIMES = ("last_modified", "event_time")
_LAST = ("event_name", "event_time", "version_id", "size", "etag", "sequencer", "event_id")


def objects_by_now(objects: DataFrame, events: DataFrame, inventoried: int) -> DataFrame:
    """The objects of an inventory that goes up to the batch `inventoried`, brought up to all of the events.

    `objects` are columns.OBJECT, and `events` columns.EVENT, of one bucket and tenant.
    """
    since = events.where(F.col("batch") > inventoried).select("key").distinct()
    anew = current_objects(events.join(since, on="key", how="left_semi").select(*events.columns))
    return objects.join(since, on="key", how="left_anti").select(*OBJECT.names).union(anew.select(*OBJECT.names))


def differences(objects: DataFrame, listed: DataFrame) -> DataFrame:
    """The keys on which events and listing disagree: kind, key, differs, and the listed object.

    `objects` are columns.OBJECT of one bucket and tenant, `listed` is LISTED.
    """
    told = objects.select(
        "key",
        F.lit(True).alias("is_told"),
        F.col("size").alias("told_size"),
        _etag("etag").alias("told_etag"),
        F.coalesce(_nameless("version_id"), F.lit("")).alias("told_version"),
    )
    there = listed.select(
        "key",
        F.lit(True).alias("is_there"),
        "size",
        _etag("etag").alias("etag"),
        _nameless("version_id").alias("version_id"),
        "last_modified",
    )
    both = told.join(there, on="key", how="full")
    differs = F.array_compact(
        F.array(
            F.when(F.col("told_size") != F.col("size"), "size"),
            F.when(F.col("told_etag") != F.col("etag"), "etag"),
            F.when(F.col("told_version") != F.col("version_id"), "version_id"),
        )
    )
    kind = (
        F.when(F.col("is_told").isNull(), MISSING)
        .when(F.col("is_there").isNull(), EXTRA)
        .when(F.size("differs") > 0, DIFFERING)
    )
    return (
        both.withColumn("differs", differs)
        .withColumn("kind", kind)
        .where(F.col("kind").isNotNull())
        .select("kind", "key", "differs", "version_id", "size", "etag", "last_modified")
    )


def with_last_events(found: DataFrame, events: DataFrame) -> DataFrame:
    """Differences as FINDING, with the last of the events (columns.EVENT, of this bucket and tenant) of each key."""
    keys = found.select("key")
    theirs = changes(events.join(keys, on="key", how="left_semi").select(*events.columns))
    last = newest(theirs).select(
        "key", *[F.col(name).alias(name if name.startswith("event_") else f"event_{name}") for name in _LAST]
    )
    return found.join(last, on="key", how="left").select(*FINDING.names)


def is_changing(begun_us: int, grace_us: int, now_us: int) -> Column:
    """Whether a finding's object or its last event is of a time from the grace before the listing on.

    A time more than a day from now is none of these: somebody's clock was wrong, and the key would never be looked at.
    """
    since = F.timestamp_micros(F.lit(begun_us - grace_us))
    until = F.timestamp_micros(F.lit(now_us)) + F.expr("interval 1 day")
    return reduce(or_, (F.coalesce(F.col(name).between(since, until), F.lit(False)) for name in _TIMES))


def _nameless(version: str) -> Column:
    """A version id, empty for the version that is called null; null where it is not told."""
    return F.when(F.col(version) == "null", "").otherwise(F.col(version))


def _etag(name: str) -> Column:
    """An ETag without its quotation marks; null where there is none."""
    return F.nullif(F.lower(F.regexp_replace(name, '"', "")), F.lit(""))
