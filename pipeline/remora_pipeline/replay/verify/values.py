"""The values of Kafka's records, read within a task as the landing reads them (notification)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from remora_pipeline.replay.notification import Unusable, notified, pairs, unforeseen
from remora_pipeline.replay.shape import MARK

PASSED = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("log_us", LongType()),
        StructField("log_type", IntegerType()),
        *[StructField(name, StringType()) for name in ("shard", "pos", "next", "header_id", "numbered", "after")],
        *[StructField(name, BooleanType()) for name in ("has_position", "has_one_twice", "is_text")],
    ]
)
"""What a task passes on as it is."""

READ = StructType(
    [
        *PASSED,
        StructField("cause", StringType()),
        *[StructField(name, StringType()) for name in ("bucket", "key", "event_name", "event_id", "source")],
        StructField("sequencer", StringType()),
        StructField("mark", StringType()),
        StructField("size", LongType()),
        StructField("event_us", LongType()),
        StructField("is_keyed", BooleanType()),
        StructField("digest", LongType()),
        StructField("notification", StringType()),
    ]
)
"""PASSED, and what a value tells; or `cause`: why it is not one notification."""

_SCHEMA = to_arrow_schema(READ, timezone="UTC")
_NOTHING = (None,) * (len(READ) - len(PASSED) - 1)
_OPAQUE = b',"opaqueData":"'
_BEHIND = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"\}\]\}', re.DOTALL)
_HEX_DIGITS = 15


def values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of PASSED with `kafka_key` and `value`, as batches of READ."""
    for batch in batches:
        if not batch.num_rows:
            continue
        told = zip(*(batch.column(name) for name in ("value", "kafka_key", "shard")), strict=True)
        rows = [_told(value.as_py(), key.as_py(), is_decoded=shard.is_valid) for value, key, shard in told]
        columns = [*batch.select(PASSED.names).columns, *zip(*rows, strict=True)]
        arrays = [
            column.cast(field.type) if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, _SCHEMA, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _told(value: bytes | None, kafka_key: bytes | None, *, is_decoded: bool) -> tuple[Any, ...]:
    try:
        found = notified(value, is_decoded=is_decoded)
    except Unusable as exc:
        return (str(exc), *_NOTHING)
    except Exception as exc:
        return (unforeseen(exc), *_NOTHING)
    if len(found) > 1:
        return (f"it has {len(found)} events", *_NOTHING)
    ((record, event_name, key, time_us, _),) = found
    bucket, thing = record.s3.bucket.name, record.s3.object
    marks = (text for name, text in pairs(thing.metadata or thing.user_metadata) if name.lower() == MARK)
    return (
        None,
        bucket,
        key,
        event_name,
        record.event_id,
        record.source,
        thing.sequencer,
        next(marks, None),
        thing.size,
        time_us,
        kafka_key == f"{bucket}/{key}".encode(),
        int(sha256(head(value or b"")).hexdigest()[:_HEX_DIGITS], 16),
        record.s3.configuration_id or "",
    )


def head(value: bytes) -> bytes:
    """A value up to `opaqueData`, which is the topic's and stands behind the members of the event itself, in a value as
    radosgw and remora write it; all of any other value."""
    at = value.rfind(_OPAQUE)
    return value[:at] if at >= 0 and _BEHIND.fullmatch(value, at + len(_OPAQUE)) else value


def digest(text: Column) -> Column:
    """The digest of a value whose `head` is this text: of its bytes, so that each one counts."""
    return F.conv(F.substring(F.sha2(text.cast("binary"), 256), 1, _HEX_DIGITS), 16, 10).cast("bigint")
