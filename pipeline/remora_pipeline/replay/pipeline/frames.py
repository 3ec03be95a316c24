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
    """The events that change which objects there are, with what they do (`change`), to which `version`, and `order`.

    Order is by sequencer. Where one event of a key has none, or they are of stores that count differently, it is by
    arrival for that key: by the place in remora's queue, which copies share, else by Kafka's time stamp and offset.
    """
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
    told_order = sequencer_order(F.col("event_source"), F.col("sequencer"))
    whole_key = Window.partitionBy(*_OBJECT)
    is_radosgw = F.coalesce(F.col("event_source") == "ceph:s3", F.lit(False))
    is_told = (F.count("told_order").over(whole_key) == F.count("*").over(whole_key)) & (
        F.min(is_radosgw).over(whole_key) == F.max(is_radosgw).over(whole_key)
    )
    place = F.regexp_extract
    queue = Window.partitionBy(*_OBJECT, "shard", "incarnation")
    return (
        events.select("*")
        .withColumn("change", change)
        .where(F.col("change").isNotNull())
        .withColumn("version", version)
        .withColumn("told_order", told_order)
        .withColumn("incarnation", F.regexp_extract("position", r"(?s)^(.*):\d+/\d+$", 1))
        .repartition(*_OBJECT)
        .withColumn("told_order", F.when(is_told, F.col("told_order")))
        .withColumn(
            "since", F.when(F.col("shard").isNotNull(), F.min("timestamp").over(queue)).otherwise(F.col("timestamp"))
        )
        .withColumn(
            "order",
            F.struct(
                "told_order",
                "since",
                place("position", r":(\d+)/\d+$", 1).try_cast("long"),
                place("position", r"/(\d+)$", 1).try_cast("long"),
                "timestamp",
                "partition",
                "offset",
                "record",
            ),
        )
        .select(*events.columns, "change", "version", "order")
    )


def newest(rows: DataFrame, *within: str) -> DataFrame:
    """Of each object, or of each part of one, the row that comes last."""
    last_first = Window.partitionBy(*_OBJECT, *within).orderBy(F.col("order").desc())
    return rows.select("*", F.row_number().over(last_first).alias("place")).where(F.col("place") == 1).drop("place")
