"""Kafka's records to events, within a task: read whole, or kept aside with the cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from remora.replay.pipeline.columns import NOTIFICATION, PARSED, PLACE
from remora.replay.pipeline.labels import label

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EARLY_DIGITS = 9
_MOST_SHOWN = 300

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Unusable(ValueError):
    """A value that is no notification; the text is the cause."""


class _Pair(msgspec.Struct):
    key: str
    val: str = ""


class _Principal(msgspec.Struct):
    principal: str | None = msgspec.field(default=None, name="principalId")


class _Request(msgspec.Struct):
    address: str | None = msgspec.field(default=None, name="sourceIPAddress")


class _Response(msgspec.Struct):
    request_id: str | None = msgspec.field(default=None, name="x-amz-request-id")
    host_id: str | None = msgspec.field(default=None, name="x-amz-id-2")


class _Bucket(msgspec.Struct):
    name: str
    owner: _Principal | None = msgspec.field(default=None, name="ownerIdentity")
    arn: str | None = None
    id: str | None = None


class _Object(msgspec.Struct):
    key: str
    size: _Size | None = None
    etag: str | None = msgspec.field(default=None, name="eTag")
    version_id: str | None = msgspec.field(default=None, name="versionId")
    sequencer: str | None = None
    metadata: list[_Pair] | dict[str, str] | None = None
    user_metadata: dict[str, str] | None = msgspec.field(default=None, name="userMetadata")
    tags: list[_Pair] | dict[str, str] | None = None


class _S3(msgspec.Struct):
    bucket: _Bucket
    object: _Object
    configuration_id: str | None = msgspec.field(default=None, name="configurationId")


class _Record(msgspec.Struct):
    event_time: str = msgspec.field(name="eventTime")
    event_name: str = msgspec.field(name="eventName")
    s3: _S3
    source: str | None = msgspec.field(default=None, name="eventSource")
    region: str | None = msgspec.field(default=None, name="awsRegion")
    user: _Principal | None = msgspec.field(default=None, name="userIdentity")
    request: _Request | None = msgspec.field(default=None, name="requestParameters")
    response: _Response | None = msgspec.field(default=None, name="responseElements")
    event_id: str | None = msgspec.field(default=None, name="eventId")
    opaque_data: str | None = msgspec.field(default=None, name="opaqueData")


class _Document(msgspec.Struct):
    records: list[_Record] = msgspec.field(name="Records")


_decode = msgspec.json.Decoder(_Document).decode


class Read(NamedTuple):
    """An event as a row of columns.NOTIFICATION, and its folders."""

    row: tuple[Any, ...]
    day: str
    bucket_dir: str


def events(value: bytes | None, *, is_decoded: bool) -> list[Read]:
    """The events of a record's value, all of them. Raises Unusable with the cause.

    Keys are URL-decoded, as S3's own notifications need it, unless `eventSource` is ceph:s3, which does not encode
    them, or `is_decoded`: remora delivers keys as they are, from every sender.
    """
    if value is None:
        raise Unusable("the record has no value")
    try:
        document = _decode(value)
    except UnicodeDecodeError as exc:
        raise Unusable(f"not UTF-8: {exc.reason}") from exc
    except msgspec.ValidationError as exc:
        raise Unusable(f"not a notification: {exc}"[:_MOST_SHOWN]) from exc
    except msgspec.DecodeError as exc:
        raise Unusable(f"not JSON: {exc}"[:_MOST_SHOWN]) from exc
    except RecursionError as exc:
        raise Unusable("not JSON: nested too deeply") from exc
    if not document.records:
        raise Unusable("not a notification: Records is empty")
    return [_event(number, record, is_decoded=is_decoded) for number, record in enumerate(document.records)]


def _event(number: int, record: _Record, *, is_decoded: bool) -> Read:
    s3, bucket, thing = record.s3, record.s3.bucket, record.s3.object
    if not bucket.name:
        raise Unusable("not a notification: s3.bucket.name is empty")
    key = thing.key if is_decoded or record.source == "ceph:s3" else _url_decoded(thing.key)
    if not key:
        raise Unusable("not a notification: s3.object.key is empty")
    if not record.event_name:
        raise Unusable("not a notification: eventName is empty")
    time_us, day = _time(record.event_time)
    row = (
        number,
        time_us,
        record.event_name.removeprefix("s3:"),
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
        key,
        thing.size,
        thing.etag or None,
        thing.version_id or None,
        thing.sequencer or None,
        _pairs(thing.metadata or thing.user_metadata),
        _pairs(thing.tags),
        record.event_id or None,
        record.opaque_data or None,
    )
    return Read(row, day, label(bucket.name))


def _url_decoded(key: str) -> str:
    try:
        return unquote_to_bytes(key.replace("+", " ")).decode()
    except UnicodeDecodeError as exc:
        raise Unusable("not UTF-8: s3.object.key after URL-decoding") from exc


def _pairs(given: list[_Pair] | dict[str, str] | None) -> list[tuple[str, str]]:
    """Each key once, the last one wins."""
    if not given:
        return []
    return list((given if isinstance(given, dict) else {pair.key: pair.val for pair in given}).items())


@lru_cache(maxsize=4096)
def _tenant(arn: str) -> str:
    parts = arn.split(":")
    return parts[4] if len(parts) > 5 else ""


def _time(text: str) -> tuple[int, str]:
    """Microseconds since 1970, and the day in UTC. radosgw writes times of the first ten years as seconds."""
    whole, _, fraction = text.partition(".")
    if whole.isascii() and whole.isdigit() and len(whole) <= _EARLY_DIGITS:
        time = _EPOCH + timedelta(seconds=int(whole), microseconds=int(fraction[:6].ljust(6, "0")) if fraction else 0)
    else:
        try:
            time = datetime.fromisoformat(text)
        except ValueError as exc:
            raise Unusable("not a notification: eventTime is not a time") from exc
        if time.tzinfo is None:
            raise Unusable("not a notification: eventTime has no zone")
    try:
        utc = time.astimezone(UTC)
    except OverflowError as exc:
        raise Unusable("not a notification: eventTime is not a time") from exc
    return (utc - _EPOCH) // _MICROSECOND, utc.date().isoformat()


# --------------------------------------------------------------------------------------- over Arrow

_SCHEMA = to_arrow_schema(PARSED, timezone="UTC")
_PLACES = [field.name for field in PLACE]


def parsed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches with columns `value` and columns.PLACE, as batches of columns.PARSED."""
    for batch in batches:
        if batch.num_rows:
            yield _parsed(batch)


def _parsed(batch: pa.RecordBatch) -> pa.RecordBatch:
    origins: list[int] = []
    rows: list[tuple[Any, ...]] = []
    nothing = (None,) * len(NOTIFICATION)
    times = batch.column("timestamp")
    for origin, (value, shard) in enumerate(zip(batch.column("value"), batch.column("shard"), strict=True)):
        raw = value.as_py()
        try:
            found = [
                (*each.row, each.day, each.bucket_dir, None, None) for each in events(raw, is_decoded=shard.is_valid)
            ]
        except Unusable as exc:
            day = times[origin].as_py().astimezone(UTC).date().isoformat()
            found = [(*nothing, day, None, str(exc), raw)]
        rows += found
        origins += [origin] * len(found)
    made = list(zip(*rows, strict=True))
    first = len(NOTIFICATION)
    places = batch.select(_PLACES).take(pa.array(origins))
    columns = [*made[:first], *places.columns, *made[first:]]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, _SCHEMA, strict=True)], schema=_SCHEMA
    )
