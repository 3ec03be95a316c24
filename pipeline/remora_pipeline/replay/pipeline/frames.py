"""From Kafka's records to the tables that land, and from landed events to the current objects."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from remora_pipeline.replay.event_sequencer import sequencer_order
from remora_pipeline.replay.pipeline.columns import BAD, EVENT, OBJECT, PARSED
from remora_pipeline.replay.pipeline.records import HEADERS, SOURCE, parsed

# ------------------------------------------------------------------------------------------- landing


def notifications(kafka: DataFrame) -> DataFrame:
    """What Spark's connector gives, headers included, as columns.PARSED."""
    return (
        kafka.select(
            "value",
            "topic",
            "partition",
            "offset",
            "timestamp",
            F.col("key").alias("kafka_key"),
            *[_header(header).alias(name) for name, header in HEADERS.items()],
        )
        .select(*SOURCE.names)
        .mapInArrow(parsed, PARSED)
        .select(*PARSED.names)
    )


def _header(name: str) -> Column:
    """The bytes of the first header of a name; null where there is none."""
    named = F.filter("headers", lambda header: header["key"] == name)
    return F.get(named, F.lit(0))["value"]


def landed(rows: DataFrame, batch: int) -> DataFrame:
    """The events among columns.PARSED, those of a folder together and in Kafka's order within each file.

    A folder with much is divided among tasks, and has a file of each: where adaptive execution is on.
    """
    is_event = F.col("cause").isNull()
    return (
        rows.select(*PARSED.names)
        .where(is_event)
        .withColumn("batch", F.lit(batch).cast("long"))
        .hint("rebalance", "day", "bucket_dir")
        .sortWithinPartitions("day", "bucket_dir", "partition", "offset", "record")
        .select(*EVENT.names)
    )


def kept_aside(rows: DataFrame, batch: int) -> DataFrame:
    """The rest of columns.PARSED."""
    is_bad = F.col("cause").isNotNull()
    return (
        rows.select(*PARSED.names)
        .where(is_bad)
        .withColumn("batch", F.lit(batch).cast("long"))
        .coalesce(1)
        .sortWithinPartitions("day", "partition", "offset")
        .select(*BAD.names)
    )


# ----------------------------------------------------------------------------------------- inventory

_OBJECT = ("tenant", "bucket", "key")

_ARRIVAL = ("generation", "offset_in_queue", "timestamp", "partition", "offset", "record")
"""What orders the events of a queue by arrival: copies share the first two."""

CREATES = (
    # MinIO calls what changes the tags or locks of any version ObjectCreated, too.
    r"^(ObjectCreated:(?!(PutTagging|DeleteTagging|PutRetention|PutLegalHold)$)"
    r"|(ObjectSynced|Replication):Create$|ObjectSynthetic:Created:Reconcile$)"
)
HIDES = (
    r"^(ObjectRemoved:(DeleteMarkerCreated|DeleteAllVersions)|LifecycleExpiration:DeleteMarkerCreated"
    r"|ObjectLifecycle:Expiration:Current|(ObjectSynced|Replication):DeletionMarkerCreated"
    # Which versions went is not known: the key has no object from then on.
    r"|LifecycleDelMarkerExpiration:Delete|ObjectSynthetic:Removed:Reconcile)$"
)
REMOVES = (
    r"^(ObjectRemoved:Delete|LifecycleExpiration:Delete|ObjectLifecycle:Expiration:(Noncurrent|DeleteMarker)"
    r"|(ObjectSynced|Replication):Delete)$"
)


def current_objects(events: DataFrame) -> DataFrame:
    """The objects that a client without version ids sees, by all events of theirs, as columns.OBJECT.

    The last event of each version says whether that version is there, as an object or as a delete marker. Of the
    versions that are there the one with the last event is current, and the key has an object unless that is a marker.
    """
    return (
        newest(newest(changes(events), "version").where(F.col("change") != "removes"))
        .where(F.col("change") == "creates")
        .select(*OBJECT.names)
    )


def changes(events: DataFrame) -> DataFrame:
    """The events that change which objects there are, of each object's version and queue the last one only, with what
    they do (`change`), to which `version`, and `order`.

    Order is by sequencer. Where one event of a key has none, or they are of stores that count differently, it is by
    arrival for that key: by the place in remora's queue, which copies share, else by Kafka's time stamp and offset.
    """
    last = _last_in_queue(_changing(events))
    whole_key = Window.partitionBy(*_OBJECT)
    is_told = (F.sum("told").over(whole_key) == F.sum("events").over(whole_key)) & (
        F.min("only_radosgw").over(whole_key) == F.max("any_radosgw").over(whole_key)
    )
    queue = Window.partitionBy(*_OBJECT, "shard", "incarnation")
    return (
        last.repartition(*_OBJECT)
        .withColumn("is_told", is_told)
        .withColumn("began", F.min("began").over(queue))
        .select(F.when(F.col("is_told"), F.col("by_sequencer")).otherwise(F.col("by_arrival")).alias("last"), "*")
        .select("last.*", "is_told", "began")
        .withColumn("since", F.when(F.col("shard").isNotNull(), F.col("began")).otherwise(F.col("timestamp")))
        .withColumn("order", F.struct(F.when(F.col("is_told"), F.col("told_order")), "since", *_ARRIVAL))
        .select(*events.columns, "change", "version", "order")
    )


def _changing(events: DataFrame) -> DataFrame:
    """The events that change which objects there are, with what orders them."""
    name, etag = F.col("event_name"), F.col("etag")
    # radosgw writes ObjectCreated:Post for a multipart upload that begins, too; only objects have an ETag.
    begins_upload = (name == "ObjectCreated:Post") & etag.isNull() & (F.col("event_source") == "ceph:s3")
    change = (
        F.when(begins_upload, None)
        .when(name.rlike(CREATES), "creates")
        .when(name.rlike(HIDES), "hides")
        .when(name.rlike(REMOVES), "removes")
    )
    version = F.when(F.col("version_id") == "null", "").otherwise(F.coalesce("version_id", F.lit("")))
    place = F.regexp_extract
    return (
        events.select("*")
        .withColumn("change", change)
        .where(F.col("change").isNotNull())
        .withColumn("version", version)
        .withColumn("told_order", sequencer_order(F.col("event_source"), F.col("sequencer")))
        .withColumn("incarnation", place("position", r"(?s)^(.*):\d+/\d+$", 1))
        .withColumn("generation", place("position", r":(\d+)/\d+$", 1).try_cast("long"))
        .withColumn("offset_in_queue", place("position", r"/(\d+)$", 1).try_cast("long"))
    )


def _last_in_queue(changing: DataFrame) -> DataFrame:
    """Of each object's version and queue the last event by either order, and what all of its events tell.

    Tasks find it among their own events first, so that none gets all events of an object that is written all the time.
    """
    event = F.struct(*changing.columns)
    # A queue has begun at one time; what came past all queues began with itself.
    arrival = [F.when(F.col("shard").isNull(), F.col("timestamp")), *map(F.col, _ARRIVAL)]
    is_radosgw = F.coalesce(F.col("event_source") == "ceph:s3", F.lit(False))
    return changing.groupBy(*_OBJECT, "version", "shard", "incarnation").agg(
        F.max_by(event, F.struct("told_order", *arrival)).alias("by_sequencer"),
        F.max_by(event, F.struct(*arrival)).alias("by_arrival"),
        F.min("timestamp").alias("began"),
        F.count("*").alias("events"),
        F.count("told_order").alias("told"),
        F.min(is_radosgw).alias("only_radosgw"),
        F.max(is_radosgw).alias("any_radosgw"),
    )


def newest(rows: DataFrame, *within: str) -> DataFrame:
    """Of each object, or of each part of one, the row that comes last."""
    last_first = Window.partitionBy(*_OBJECT, *within).orderBy(F.col("order").desc())
    return rows.select("*", F.row_number().over(last_first).alias("place")).where(F.col("place") == 1).drop("place")
