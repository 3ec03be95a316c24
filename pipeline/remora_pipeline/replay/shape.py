"""The columns of every table that a job writes for another one."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

PUT, COPY, MPU_COMPLETE, DELETE = "PUT", "COPY", "MPU_COMPLETE", "DELETE"
WRITES = (PUT, COPY, MPU_COMPLETE, DELETE)
"""What notifies, and so what is replayed."""

EVENT_NAMES = {
    PUT: "ObjectCreated:Put",
    COPY: "ObjectCreated:Copy",
    MPU_COMPLETE: "ObjectCreated:CompleteMultipartUpload",
    DELETE: "ObjectRemoved:Delete",
}
"""What S3 calls the notification of each."""

EVENT = StructType(
    [
        StructField("seq", LongType(), nullable=False),
        StructField("ts_us", LongType(), nullable=False),
        StructField("op", StringType(), nullable=False),
        StructField("bucket", StringType(), nullable=False),
        StructField("key", StringType(), nullable=False),
        StructField("size", LongType(), nullable=True),
        StructField("kseq", LongType(), nullable=False),
    ]
)
"""A prepared event. `seq` counts all of them from 0, in order of time; `kseq` those of a (bucket, key) from 0, in the
order of `seq`. `size` is the object's, in bytes; null where the source does not tell it, and for deletes."""

ACKED, REJECTED, UNKNOWN, DROPPED = "acked", "rejected", "unknown", "dropped"
OUTCOMES = (ACKED, REJECTED, UNKNOWN, DROPPED)
"""Answered for; refused for good; sent with an unknown outcome; not sent, as the window was full (--overload drop)."""

JOURNAL = StructType(
    [
        StructField("kind", StringType()),
        StructField("part", IntegerType()),
        StructField("attempt", LongType()),
        StructField("t0_us", LongType()),
        StructField("ts0_us", LongType()),
        StructField("speed", DoubleType()),
        StructField("seqs", ArrayType(LongType())),
        StructField("outcome", StringType()),
        StructField("sent_us", LongType()),
        StructField("done_us", LongType()),
        StructField("status", IntegerType()),
        StructField("tries", IntegerType()),
        StructField("error", StringType()),
        StructField("limited", LongType()),
        StructField("limited_us", LongType()),
        StructField("held_us", ArrayType(LongType())),
    ]
)
"""A line of a journal; which fields are there depends on its kind (layout.py)."""

MARK = "x-amz-meta-replay"
"""The object metadata by which a record in Kafka tells its event, whichever way it came: `<run id>/<seq>/<kseq>`. The
event id of a record that was sent to the ingest API is `<run id>/<seq>`."""
