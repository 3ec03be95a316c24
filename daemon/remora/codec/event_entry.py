"""`event_entry_t`, the payload of a queue entry: to values, back to bytes, field by field for a person."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from struct import Struct

from remora.codec.ceph import Cursor, Field, FieldWriter
from remora.codec.topic import LIMITS, limits_of
from remora.codec.trace_context import context_of
from remora.model.entry import EventEntry, S3Event, Time
from remora.model.errors import CodecError
from remora.model.topic import UNSET, Source, Target, Topic

ENTRY_VERSION = 3
"""The newest `event_entry_t` that is understood in full."""

EVENT_VERSION = 4
"""The newest `rgw_pubsub_s3_event` that is understood in full."""


def decode(data: bytes) -> EventEntry:
    """The entry in full. Bytes behind its struct are ignored, as radosgw ignores them."""
    return _entry(Cursor(data, ""))


def explain(data: bytes) -> tuple[list[Field], CodecError | None]:
    """Every field that can be read, in order, and what stopped the reading if anything did.

    Shows all values, credentials in the endpoint included.
    """
    fields: list[Field] = []
    try:
        _entry(Cursor(data, "", fields))
    except CodecError as error:
        return fields, error
    return fields, None


def _entry(cursor: Cursor) -> EventEntry:
    entry = cursor.struct("entry", ENTRY_VERSION)
    event = _event(entry.struct("event", EVENT_VERSION))
    return EventEntry(
        version=entry.version,
        compat=entry.compat,
        event=event,
        push_endpoint=entry.string("push_endpoint"),
        push_endpoint_args=entry.string("push_endpoint_args"),
        arn_topic=entry.string("arn_topic"),
        creation_time=entry.time("creation_time") if entry.version >= 2 else None,
        time_to_live=entry.u32("time_to_live") if entry.version >= 3 else None,
        max_retries=entry.u32("max_retries") if entry.version >= 3 else None,
        retry_sleep_duration=entry.u32("retry_sleep_duration") if entry.version >= 3 else None,
        newer_fields=entry.rest(),
    )


def _event(event: Cursor) -> S3Event:
    return S3Event(
        version=event.version,
        compat=event.compat,
        event_version=event.string("eventVersion"),
        event_source=event.string("eventSource"),
        aws_region=event.string("awsRegion"),
        event_time=event.time("eventTime"),
        event_name=event.string("eventName"),
        user_identity=event.string("userIdentity"),
        source_ip_address=event.string("sourceIPAddress"),
        x_amz_request_id=event.string("x_amz_request_id"),
        x_amz_id_2=event.string("x_amz_id_2"),
        s3_schema_version=event.string("s3SchemaVersion"),
        configuration_id=event.string("configurationId"),
        bucket_name=event.string("bucket_name"),
        bucket_owner_identity=event.string("bucket_ownerIdentity"),
        bucket_arn=event.string("bucket_arn"),
        object_key=event.string("object_key"),
        object_size=event.u64("object_size"),
        object_etag=event.string("object_etag"),
        object_version_id=event.string("object_versionId"),
        object_sequencer=event.string("object_sequencer"),
        event_id=event.string("id"),
        bucket_id=event.string("bucket_id") if event.version >= 2 else b"",
        metadata=event.pairs("x_meta_map") if event.version >= 2 else (),
        tags=event.pairs("tags") if event.version >= 3 else (),
        opaque_data=event.string("opaque_data") if event.version >= 4 else b"",
        newer_fields=event.rest(),
    )


def encode(entry: EventEntry) -> bytes:
    """The entry's bytes, in the versions that it names; fields which those do not have are left out."""

    def body(w: FieldWriter) -> None:
        w.struct(entry.event.version, entry.event.compat, lambda inner: _write_event(inner, entry.event))
        w.string(entry.push_endpoint).string(entry.push_endpoint_args).string(entry.arn_topic)
        if entry.version >= 2:
            w.time(entry.creation_time or Time(0, 0))
        if entry.version >= 3:
            for limit in (entry.time_to_live, entry.max_retries, entry.retry_sleep_duration):
                w.u32(UNSET if limit is None else limit)
        w.raw(entry.newer_fields)

    return FieldWriter().struct(entry.version, entry.compat, body).encoded()


def renewed(data: bytes, now_ns: int) -> bytes:
    """The same entry with its age beginning now; before version 2 entries tell no time of commit, and stay as they are.

    Of what stands behind an entry only its trace context is kept. Raises CodecError.
    """
    entry = decode(data)
    if entry.version < 2:
        return data
    return encode(replace(entry, creation_time=Time(*divmod(now_ns, 1_000_000_000)))) + context_of(data)


def _write_event(w: FieldWriter, event: S3Event) -> None:
    w.string(event.event_version).string(event.event_source).string(event.aws_region).time(event.event_time)
    w.string(event.event_name).string(event.user_identity).string(event.source_ip_address)
    w.string(event.x_amz_request_id).string(event.x_amz_id_2)
    w.string(event.s3_schema_version).string(event.configuration_id)
    w.string(event.bucket_name).string(event.bucket_owner_identity).string(event.bucket_arn)
    w.string(event.object_key).u64(event.object_size).string(event.object_etag)
    w.string(event.object_version_id).string(event.object_sequencer).string(event.event_id)
    if event.version >= 2:
        w.string(event.bucket_id).pairs(event.metadata)
    if event.version >= 3:
        w.pairs(event.tags)
    if event.version >= 4:
        w.string(event.opaque_data)
    w.raw(event.newer_fields)


# --------------------------------------------------------- the entry's own copy of its topic's attributes

_HEADERS = Struct("<BBIBBI").unpack_from  # of the entry, then of the event inside
_MAX_REMEMBERED = 2048  # bytes; larger attributes are read each time, so that what is remembered stays small


def attributes(data: bytes) -> Topic:
    """The topic's attributes as they were when the event happened.

    Reads only what lies behind the event, and remembers what it has read: equal attributes give the very same
    Topic. The tenant is not in an entry, and neither is the queue's name.
    """
    if len(data) >= 12:
        version, compat, size, _, event_compat, event_size = _HEADERS(data)
        start, end = 12 + event_size, 6 + size
        is_usual = 1 <= version <= 3 and compat <= ENTRY_VERSION and event_compat <= EVENT_VERSION
        if is_usual and start <= end <= len(data) and end - start <= _MAX_REMEMBERED:
            # The creation time, the one field that differs between entries, lies at the end or before the limits.
            strings, limits = (end, end) if version == 1 else (end - 8, end) if version == 2 else (end - 20, end - 12)
            topic = _remembered(version, data[start:strings], data[limits:end])
            if topic is not None:
                return topic
    return _topic(Cursor(data, ""))


def _topic(cursor: Cursor) -> Topic:
    entry = cursor.struct("entry", ENTRY_VERSION)
    entry.struct("event", EVENT_VERSION)
    target = _target(entry)
    if entry.version >= 2:
        entry.time("creation_time")
    return _with_limits(target, entry)


@lru_cache(maxsize=256)
def _remembered(version: int, strings: bytes, limits: bytes) -> Topic | None:
    """The attributes from exactly these bytes; None when they hold anything more or less."""
    fields, behind = Cursor(strings, ""), Cursor(limits, "")
    behind.version = version
    try:
        topic = _with_limits(_target(fields), behind)
    except CodecError:
        return None
    return None if fields.left or behind.left else topic


def _target(cursor: Cursor) -> Target:
    uri, args, name = (cursor.string(each) for each in ("push_endpoint", "push_endpoint_args", "arn_topic"))
    return Target(_text(uri), _text(args), _text(name))


def _with_limits(target: Target, cursor: Cursor) -> Topic:
    def limit(name: str) -> int | None:
        value = cursor.u32(name) if cursor.version >= 3 else UNSET
        return None if value == UNSET else value

    time_to_live, max_retries, retry_sleep = limits_of([limit(each) for each in LIMITS], target.args)
    return Topic(
        name=target.topic,
        tenant="",
        queue=target.topic,
        target=target,
        time_to_live_s=time_to_live,
        max_retries=max_retries,
        retry_sleep_s=retry_sleep,
        source=Source.ENTRY,
    )


def _text(value: bytes) -> str:
    """For people, drivers and metric labels, none of which can take a lone surrogate."""
    return value.decode("utf-8", "replace")
