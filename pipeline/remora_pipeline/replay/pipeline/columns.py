"""The columns of the tables that land, and of what lies between Kafka and them."""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TEXTS = MapType(StringType(), StringType())

PLACE = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("kafka_key", BinaryType()),
        StructField("shard", StringType()),
        StructField("position", StringType()),
        StructField("next_position", StringType()),
        StructField("sequence", StringType()),
    ]
)
"""Where a record stands: in Kafka, with its key there; by its headers remora-shard, remora-pos and remora-next in
remora's queue; and by remora-seq in the order of the topic's commits. Headers that a record does not have are null."""

NOTIFICATION = StructType(
    [
        StructField("record", IntegerType()),
        StructField("event_time", TimestampType()),
        StructField("event_name", StringType()),
        StructField("event_source", StringType()),
        StructField("aws_region", StringType()),
        StructField("user", StringType()),
        StructField("source_ip", StringType()),
        StructField("request_id", StringType()),
        StructField("host_id", StringType()),
        StructField("configuration_id", StringType()),
        StructField("tenant", StringType()),
        StructField("bucket", StringType()),
        StructField("bucket_owner", StringType()),
        StructField("bucket_arn", StringType()),
        StructField("bucket_id", StringType()),
        StructField("key", StringType()),
        StructField("size", LongType()),
        StructField("etag", StringType()),
        StructField("version_id", StringType()),
        StructField("sequencer", StringType()),
        StructField("metadata", _TEXTS),
        StructField("tags", _TEXTS),
        StructField("event_id", StringType()),
        StructField("opaque_data", StringType()),
    ]
)
"""An event. `record` is its place among the Records of its value, from 0; radosgw and remora write one each. `key` is
as the client named the object, never URL-encoded. Texts that are empty in the record are null, but for `key`,
`bucket` and `tenant`; `tenant` is radosgw's, out of the bucket's ARN, and empty elsewhere."""

FOLDERS = StructType([StructField("day", StringType()), StructField("bucket_dir", StringType())])
"""The folders of an event: the day of `event_time` in UTC, and labels.label of the bucket."""

KEPT = StructType([StructField("cause", StringType()), StructField("value", BinaryType())])
"""Why a value did not become events, and its bytes; both null where it did."""

PARSED = StructType([*NOTIFICATION, *PLACE, *FOLDERS, *KEPT])
"""What a task makes of Kafka's records: one row an event, or one row of a value that is kept aside."""

EVENT = StructType([*NOTIFICATION, *PLACE, StructField("batch", LongType()), *FOLDERS])
"""A landed event. Batches are numbered from 0, and those behind the last whole one are to be left out."""

BAD = StructType([*KEPT, *PLACE, StructField("batch", LongType()), StructField("day", StringType())])
"""A value that was kept aside; `day` is that of Kafka's time stamp, in UTC. Both are null where that stamp is no time
that all readers know, and a header is where it is no text."""

OBJECT = StructType(
    [
        StructField("tenant", StringType()),
        StructField("bucket", StringType()),
        StructField("key", StringType()),
        StructField("version_id", StringType()),
        StructField("size", LongType()),
        StructField("etag", StringType()),
        StructField("event_time", TimestampType()),
        StructField("event_name", StringType()),
        StructField("sequencer", StringType()),
        StructField("event_id", StringType()),
        StructField("user", StringType()),
        StructField("metadata", _TEXTS),
        StructField("tags", _TEXTS),
        *PLACE,
        StructField("bucket_dir", StringType()),
    ]
)
"""An object that there is, by the event that made it: all that this event told."""
