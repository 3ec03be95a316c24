"""What is delivered of an event, the plain way: the JSON body that radosgw posts, byte for byte, and its key.

What was compiled has to agree with this module, and without a compiler the daemon delivers what it makes. No library
for JSON writes these bytes: radosgw escapes control characters in its own way and copies bytes that are not UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from remora.codec.event_entry import decode
from remora.codec.sequence import number_of
from remora.codec.trace_context import traceparent_of
from remora.model.entry import EventEntry, Pairs, S3Event, Time
from remora.model.errors import CodecError
from remora.model.record import Page, Record

Rendered = tuple[bytes, bytes, bytes, int, int]
"""The record's key, its body, the event's id, its age zero and its own time, both in ns since the epoch."""

_ESCAPES = {i: b"\\u%04x" % i for i in (*range(0x20), 0x7F)} | {
    ord('"'): b'\\"',
    ord("\\"): b"\\\\",
    ord("\t"): b"\\t",
    ord("\n"): b"\\n",
}
_TO_ESCAPE = re.compile(rb'["\\\x00-\x1f\x7f]')
_SEQUENCER = re.compile(rb"[0-9A-Fa-f]{16}")
_TEN_YEARS_S = 10 * 365 * 24 * 60 * 60


def records(
    page: Page, opaque: bytes | None = None, sequence: bytes = b""
) -> tuple[Sequence[Record], dict[int, CodecError]]:
    """The records of a listing in order, and what is wrong with its other entries, by their place in it.

    `opaque` as in `body`. `sequence` stands before the number of each entry, or is empty where these have none.
    """
    made: list[Record] = []
    refused: dict[int, CodecError] = {}
    for i, data in enumerate(page.entries):
        position, behind = page.positions[i], page.positions[i + 1]
        try:
            key_, body_, event_id, created, own = rendered(decode(data), opaque)
        except CodecError as exc:
            refused[i] = exc
            continue
        numbered = _numbered(sequence, data) if sequence else b""
        made.append(Record(key_, body_, event_id, created, position, behind, i, numbered, traceparent_of(data), own))
    return made, refused


def rendered(entry: EventEntry, opaque: bytes | None = None) -> Rendered:
    """What a record has of its entry; `opaque` as in `body`."""
    event = entry.event
    return key(event), body(entry, opaque), event.event_id, created_ns(entry), event.event_time.ns


def _numbered(sequence: bytes, entry: bytes) -> bytes:
    """The number behind an entry as the record's header has it; empty where there is none."""
    number = number_of(entry)
    return b"" if number is None else b"%b%d" % (sequence, number)


def body(entry: EventEntry, opaque: bytes | None = None) -> bytes:
    """`{"Records":[{...}]}` with this one event.

    `opaque` is the topic's current OpaqueData. It replaces the event's own in entries of version 3 and newer,
    as the radosgw that writes those does; older entries keep theirs. None replaces nothing.
    """
    event = entry.event
    if opaque is None or entry.version < 3:
        opaque = event.opaque_data
    return b"".join([b'{"Records":[', _record(event, opaque), b"]}"])


def _record(event: S3Event, opaque: bytes) -> bytes:
    return _object(
        ("eventVersion", _string(event.event_version)),
        ("eventSource", _string(event.event_source)),
        ("awsRegion", _string(event.aws_region)),
        ("eventTime", b'"%b"' % time_text(event.event_time)),
        ("eventName", _string(event.event_name)),
        ("userIdentity", _object(("principalId", _string(event.user_identity)))),
        ("requestParameters", _object(("sourceIPAddress", _string(event.source_ip_address)))),
        (
            "responseElements",
            _object(
                ("x-amz-request-id", _string(event.x_amz_request_id)),
                ("x-amz-id-2", _string(event.x_amz_id_2)),
            ),
        ),
        (
            "s3",
            _object(
                ("s3SchemaVersion", _string(event.s3_schema_version)),
                ("configurationId", _string(event.configuration_id)),
                ("bucket", _bucket(event)),
                ("object", _s3_object(event)),
            ),
        ),
        ("eventId", _string(event.event_id)),
        ("opaqueData", _string(opaque)),
    )


def _bucket(event: S3Event) -> bytes:
    return _object(
        ("name", _string(event.bucket_name)),
        ("ownerIdentity", _object(("principalId", _string(event.bucket_owner_identity)))),
        ("arn", _string(event.bucket_arn)),
        ("id", _string(event.bucket_id)),
    )


def _s3_object(event: S3Event) -> bytes:
    return _object(
        ("key", _string(event.object_key)),
        ("size", b"%d" % event.object_size),
        ("eTag", _string(event.object_etag)),
        ("versionId", _string(event.object_version_id)),
        ("sequencer", _string(event.object_sequencer)),
        ("metadata", pairs_json(sorted_metadata(event.metadata))),
        ("tags", pairs_json(sorted_tags(event.tags))),
    )


def key(event: S3Event) -> bytes:
    """The record's key: what must stay in order has the same one."""
    return key_prefix(event) + event.object_key


def key_prefix(event: S3Event) -> bytes:
    """What the keys of all records of a bucket begin with."""
    return event.bucket_name + b"/"


def created_ns(entry: EventEntry) -> int:
    """When the entry's age begins, in ns since the epoch.

    That is its commit where the entry tells it (from version 2 on), else the event's creation as the sequencer
    has it, else the object's modification time. An all-zero time counts as missing.
    """
    if entry.creation_time is not None and entry.creation_time.ns:
        return entry.creation_time.ns
    return sequencer_ns(entry.event.object_sequencer) or entry.event.event_time.ns


def age_s(raw: bytes, now_ns: int) -> float | None:
    """How old an encoded entry is, in seconds and never below 0; None for one that cannot be decoded."""
    try:
        created = created_ns(decode(raw))
    except CodecError:
        return None
    return max(0.0, (now_ns - created) / 1e9)


def sequencer_ns(sequencer: bytes) -> int:
    """The time in a sequencer, which is the hex of two little-endian numbers; 0 when it is something else."""
    if not _SEQUENCER.fullmatch(sequencer):
        return 0
    raw = bytes.fromhex(sequencer.decode("ascii"))
    return Time(int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:], "little")).ns


def escape(text: bytes) -> bytes:
    """The inside of a JSON string as radosgw writes it: `/`, and every byte from 128 up, stay as they are."""
    return _TO_ESCAPE.sub(lambda match: _ESCAPES[match[0][0]], text)


def time_text(time: Time) -> bytes:
    """A time as radosgw writes it: UTC, microseconds cut off.

    It takes a time in the first ten years after 1970 for a duration and writes it as seconds: an event of an
    object without a modification time has `0.000000`.
    """
    sec, nsec = divmod(time.ns, 1_000_000_000)
    before, after = second_text(sec & 0xFFFF_FFFF)
    return b"%b%06d%b" % (before, nsec // 1000, after)


def second_text(sec: int) -> tuple[bytes, bytes]:
    """What `time_text` writes before and after the six digits of the microseconds."""
    if sec < _TEN_YEARS_S:
        return b"%d." % sec, b""
    return datetime.fromtimestamp(sec, UTC).strftime("%Y-%m-%dT%H:%M:%S.").encode(), b"Z"


def sorted_metadata(pairs: Pairs) -> Pairs:
    """Metadata as radosgw holds it: in the order of the keys, and the last value of a key wins."""
    return tuple(sorted(dict(pairs).items()))


def sorted_tags(pairs: Pairs) -> Pairs:
    """Tags as radosgw holds them: in the order of the keys, equal ones as they came."""
    return tuple(sorted(pairs, key=lambda pair: pair[0]))


def pairs_json(pairs: Pairs) -> bytes:
    """A list of objects with `key` and `val`."""
    return b"[%b]" % b",".join([b'{"key":%b,"val":%b}' % (_string(k), _string(v)) for k, v in pairs])


def _object(*members: tuple[str, bytes]) -> bytes:
    return b"{%b}" % b",".join([b'"%b":%b' % (name.encode(), value) for name, value in members])


def _string(text: bytes) -> bytes:
    return b'"%b"' % escape(text)
