"""Events as CloudEvents 1.0.2 has them: the attributes that radosgw makes of them, and as headers of brokers. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec

from remora.codec.rendering_plain import second_text
from remora.model.record import Record


class CloudEvent(NamedTuple):
    """The attributes that radosgw makes of an event; `time` is empty where the event has none."""

    id: bytes
    type: bytes
    source: bytes
    time: bytes
    subject: bytes


class _Ids(msgspec.Struct):
    request: str = msgspec.field(name="x-amz-request-id", default="")
    id_2: str = msgspec.field(name="x-amz-id-2", default="")


class _EventBucket(msgspec.Struct):
    name: str = ""


class _EventS3(msgspec.Struct):
    bucket: _EventBucket


class _EventNames(msgspec.Struct):
    source: str = msgspec.field(name="eventSource")
    region: str = msgspec.field(name="awsRegion")
    name: str = msgspec.field(name="eventName")
    ids: _Ids = msgspec.field(name="responseElements")
    s3: _EventS3


class _Envelope(msgspec.Struct):
    records: list[_EventNames] = msgspec.field(name="Records")


_decode = msgspec.json.Decoder(_Envelope).decode


def cloud_event(record: Record) -> CloudEvent:
    """What radosgw writes into the ce- headers of this event; `id` is not unique there."""
    try:
        event = _decode(record.body).records[0]
    except (msgspec.MsgspecError, UnicodeDecodeError):  # a key that is not UTF-8 stands in the body as it is
        found: Any = json.loads(record.body.decode("utf-8", "surrogateescape"))
        event = msgspec.convert(found, _Envelope).records[0]
    # As radosgw writes it here; empty where the body has a duration instead of a time.
    second, nanosecond = divmod(record.event_ns, 1_000_000_000)
    before, after = second_text(second & 0xFFFF_FFFF)
    return CloudEvent(
        _raw(f"{event.ids.request}.{event.ids.id_2}"),
        _raw(f"com.amazonaws.{event.name}"),
        _raw(f"{event.source}.{event.region}.{event.s3.bucket.name}"),
        b"%b%09d%b" % (before, nanosecond, after) if after else b"",
        record.key.partition(b"/")[2],
    )


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def attributes(record: Record, event_id: bytes) -> list[tuple[str, bytes]]:
    """The attributes of an event for the headers of a message, in UTF-8; those that it does not have are left out.

    `event_id` names the entry for ever, so that a copy has the id of the first. Bytes of a key that are no UTF-8, which
    CloudEvents does not allow, are replaced.
    """
    event = cloud_event(record)
    found = (
        ("specversion", b"1.0"),
        ("id", event_id),
        ("type", event.type),
        ("source", event.source),
        ("time", event.time),
        ("subject", event.subject),
        ("partitionkey", record.key),
    )
    return [(name, value.decode("utf-8", "replace").encode()) for name, value in found if value]
