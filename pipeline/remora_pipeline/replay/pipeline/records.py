"""Kafka's records to events, within a task: read whole, or kept aside with the cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from remora_pipeline.replay.notification import (
    EPOCH,
    FIRST_US,
    LAST_US,
    Notified,
    Unusable,
    notified,
    pairs,
    unforeseen,
)
from remora_pipeline.replay.pipeline.columns import NOTIFICATION, PARSED
from remora_pipeline.replay.pipeline.labels import label

MOST_TEXT_BYTES = 4096
"""The most that Kafka's key and each of remora's headers may have: they stand in the row of each event of a value."""

_MOST_BATCH_BYTES = 1 << 26
_LARGE = ("value", "kafka_key")


class EventRow(NamedTuple):
    """An event as a row of columns.NOTIFICATION, and its folders."""

    row: tuple[Any, ...]
    day: str
    bucket_dir: str


def events(value: bytes | None, *, is_decoded: bool) -> list[EventRow]:
    """The events of a record's value (notification.notified). Raises Unusable with the cause."""
    return [_read(number, found) for number, found in enumerate(notified(value, is_decoded=is_decoded))]


def _read(number: int, found: Notified) -> EventRow:
    record = found.record
    s3, bucket, thing = record.s3, record.s3.bucket, record.s3.object
    row = (
        number,
        found.time_us,
        found.event_name,
        record.source or None,
        record.region or None,
        (record.user and record.user.principal) or None,
        (record.request and record.request.address) or None,
        (record.response and record.response.request_id) or None,
        (record.response and record.response.host_id) or None,
        s3.configuration_id or None,
        _tenant(bucket.arn or ""),
        bucket.name,
        (bucket.owner and bucket.owner.principal) or None,
        bucket.arn or None,
        bucket.id or None,
        found.key,
        thing.size,
        thing.etag or None,
        thing.version_id or None,
        thing.sequencer or None,
        pairs(thing.metadata or thing.user_metadata),
        pairs(thing.tags),
        record.event_id or None,
        record.opaque_data or None,
    )
    return EventRow(row, found.day, label(bucket.name))


@lru_cache(maxsize=4096)
def _tenant(arn: str) -> str:
    parts = arn.split(":")
    return parts[4] if len(parts) > 5 else ""


# --------------------------------------------------------------------------------------- over Arrow

HEADERS = {
    "shard": "remora-shard",
    "position": "remora-pos",
    "next_position": "remora-next",
    "sequence": "remora-seq",
}
"""Columns of remora's headers."""

SOURCE = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("kafka_key", pa.binary()),
        *((name, pa.binary()) for name in HEADERS),
    ]
)
"""What a task gets: columns.PLACE as Kafka has it, with its headers as bytes, and the value."""

_SCHEMA = to_arrow_schema(PARSED, timezone="UTC")
_NOTHING = (None,) * len(NOTIFICATION)
_NO_HEADERS = (None,) * len(HEADERS)
_NO_TEXTS: Sequence[str | None] = _NO_HEADERS


def parsed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of SOURCE as batches of columns.PARSED, none of them much larger than what it came of."""
    for batch in batches:
        rows: list[tuple[Any, ...]] = []
        nbytes = 0
        for record in zip(*(_objects(batch, name) for name in SOURCE.names), strict=True):
            for row, size in _rows(*record):
                rows.append(row)
                nbytes += size
                if nbytes > _MOST_BATCH_BYTES:
                    yield _made(rows)
                    rows, nbytes = [], 0
        if rows:
            yield _made(rows)


def _objects(batch: pa.RecordBatch, name: str) -> Iterator[Any]:
    """A column's values; one by one where they may be large; times as numbers, since Python has none behind the year
    9999."""
    column = batch.column(name)
    if column.null_count == len(column):
        return repeat(None, len(column))
    if name in _LARGE:
        return (each.as_py() for each in column)
    return iter((column.cast(pa.int64()) if name == "timestamp" else column).to_pylist())


def _made(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


def _rows(
    value: bytes | None,
    topic: str,
    partition: int,
    offset: int,
    timestamp_us: int,
    kafka_key: bytes | None,
    *headers: bytes | None,
) -> Iterator[tuple[tuple[Any, ...], int]]:
    """The rows of one record, and about how many bytes each takes."""
    told, problem = _texts(headers)
    is_time = FIRST_US <= timestamp_us < LAST_US
    place = (topic, partition, offset, timestamp_us if is_time else None, kafka_key, *told)
    around = len(kafka_key or b"") + sum(map(len, filter(None, headers)))
    try:
        if problem is not None:
            raise Unusable(problem)
        if not is_time:
            raise Unusable("Kafka's time stamp lies outside of the years 1 to 9999")
        if kafka_key is not None and len(kafka_key) > MOST_TEXT_BYTES:
            raise Unusable(f"Kafka's key has {len(kafka_key)} bytes, more than {MOST_TEXT_BYTES}")
        found = events(value, is_decoded=headers[0] is not None)
    except Unusable as exc:
        yield _aside(place, str(exc), value), around + len(value or b"")
    except Exception as exc:
        yield _aside(place, unforeseen(exc), value), around
    else:
        share = len(value or b"") // len(found)
        for each in found:
            yield (*each.row, *place, each.day, each.bucket_dir, None, None), around + share


def _texts(headers: tuple[bytes | None, ...]) -> tuple[Sequence[str | None], str | None]:
    """remora's headers as texts, and what is wrong with them; one that is no text, or too long, is left out."""
    if headers == _NO_HEADERS:
        return _NO_TEXTS, None
    told: list[str | None] = []
    problem = None
    for name, header in zip(HEADERS.values(), headers, strict=True):
        text = None
        if header is not None and len(header) > MOST_TEXT_BYTES:
            problem = f"the header {name} has {len(header)} bytes, more than {MOST_TEXT_BYTES}"
        elif header is not None:
            try:
                text = header.decode()
            except UnicodeDecodeError:
                problem = f"the header {name} is not UTF-8"
        told.append(text)
    return told, problem


def _aside(place: tuple[Any, ...], cause: str, value: bytes | None) -> tuple[Any, ...]:
    timestamp_us = place[3]
    day = None if timestamp_us is None else (EPOCH + timedelta(microseconds=timestamp_us)).date().isoformat()
    return (*_NOTHING, *place, day, None, cause, value)
