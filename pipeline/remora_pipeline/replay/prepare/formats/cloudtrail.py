"""CloudTrail data events of S3, with one second of resolution.

CloudTrail writes `{"Records":[...]}`, one document a file, and digests of its files beside them; what passes events on
writes one event a line, or arrays of them. All are read, however they are laid out. S3's event notifications look alike
(`eventSource` aws:s3, keys encoded): they are refused by name. No order is promised within a file; an event may come
twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from io import BytesIO
from typing import BinaryIO

import msgspec

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.prepare.entry import (
    READ,
    Dropped,
    FormatContext,
    FoundLine,
    Outcome,
    iso_us,
    malformed,
    no_event,
    write,
)
from remora_pipeline.replay.prepare.lines import numbered
from remora_pipeline.replay.prepare.objects import objects
from remora_pipeline.replay.shape import COPY, DELETE, MPU_COMPLETE, PUT

NOTIFICATIONS = (
    "these are S3 event notifications, and not CloudTrail's data events; `remora send` sends them as they are"
)
_EVENTS = {
    "PutObject": PUT,
    "PostObject": PUT,
    "CopyObject": COPY,
    "CompleteMultipartUpload": MPU_COMPLETE,
    "DeleteObject": DELETE,
}
_SOURCE = re.compile(rb'"eventSource"\s*:\s*"([^"]*)"')
_NOTIFIERS = ("aws:s3", "ceph:s3", "minio:s3")
_BEGIN = re.compile(rb"[\s\[]*\{")
_EMPTY = re.compile(rb'\s*\{\s*"Records"\s*:\s*(?:\[\s*\]|null)\s*\}')
_RECORDS = b'"Records"'
_DOCUMENT = re.compile(rb'\s*\{\s*"Records"\s*:\s*\[')
_READ_BYTES = 1 << 16
_DIGEST = b'"digestStartTime"', b'"logFiles"'
_EVENT = b'"eventSource"', b'"eventName"', b'"eventTime"'
_BUCKET = re.compile(r"arn:[a-z-]+:s3:::([^/]+)")
_SHOWN = 400
_NOTHING = msgspec.Raw(b"null")
_NO_EVENT = malformed("not an event of CloudTrail")
_NO_DOCUMENT = malformed("not a document of CloudTrail")


class _Parameters(msgspec.Struct, rename={"bucket": "bucketName"}):
    bucket: str = ""
    key: str = ""


class _More(msgspec.Struct, rename={"bytes_in": "bytesTransferredIn"}):
    bytes_in: int | float | None = None


class _Resource(msgspec.Struct, rename={"arn": "ARN"}):
    arn: str = ""


class _Event(msgspec.Struct, rename="camel"):
    """An event of any service: each has parameters of its own, which are looked at where they are S3's."""

    event_time: str = ""
    event_source: str = ""
    event_name: str = ""
    request_parameters: msgspec.Raw = _NOTHING
    additional_event_data: msgspec.Raw = _NOTHING
    event_id: str | None = msgspec.field(name="eventID", default=None)
    shared_event_id: str | None = msgspec.field(name="sharedEventID", default=None)
    resources: msgspec.Raw = _NOTHING
    read_only: bool | None = None
    error_code: str | None = None
    management_event: bool = False
    event_category: str = "Data"


class _Value(msgspec.Struct, rename="camel"):
    """A document, an event by itself or as EventBridge passes it on, or a digest."""

    records: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.field(name="Records", default=msgspec.UNSET)
    event_name: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    detail: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    digest_start_time: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_values = msgspec.json.Decoder(list[msgspec.Raw] | _Value)
_events = msgspec.json.Decoder(_Event, strict=False)
_parameters = msgspec.json.Decoder(_Parameters | None)
_resources = msgspec.json.Decoder(list[_Resource] | None)
_more = msgspec.json.Decoder(_More | None, strict=False)


def is_notification(head: bytes) -> bool:
    """Whether a file begins with S3's event notifications, which are no log."""
    first = _SOURCE.search(head) if _BEGIN.match(head) else None
    return first is not None and first[1].decode("utf-8", "replace") in _NOTIFIERS


def recognises(head: bytes) -> bool:
    """Whether a file begins with an event, in a document or not, with an empty document, or with a digest."""
    if _BEGIN.match(head) is None:
        return False
    return _EMPTY.match(head) is not None or any(all(name in head for name in names) for names in (_EVENT, _DIGEST))


def records(stream: BinaryIO, source: FormatContext) -> Iterator[FoundLine]:
    """The records of a file, counted from 1; where it has several texts of JSON, each is at the line that it begins at.

    Of a file that ends early, or is damaged, the events before that are there. Raises ReplayRefused for notifications,
    and OSError behind the last event that can be read.
    """
    text, trouble = _readable(stream)
    try:
        several = _split(text)
    except (ValueError, RecursionError):
        yield from objects(numbered(BytesIO(_without_a_begin(text))), partial(_parsed, source.name))
    else:
        for number, raw in enumerate(several, start=1):
            shown = bytes(raw)[:_SHOWN].decode("utf-8", "replace")
            yield FoundLine(number, (_outcome(raw, f"{source.name}: record {number}"),), shown)
    if trouble is not None:
        raise trouble


def _readable(stream: BinaryIO) -> tuple[bytes, OSError | None]:
    """A file as far as it can be read, and why no further."""
    parts: list[bytes] = []
    try:
        # Not read(): what that has in hand when it raises is lost.
        while data := stream.read1(_READ_BYTES):  # type: ignore[attr-defined]  # each stream that is buffered has it
            parts.append(data)
    except OSError as exc:
        return b"".join(parts), exc
    return b"".join(parts), None


def _without_a_begin(text: bytes) -> bytes:
    """What stands behind the head of a single document whose end is missing; any other text as it is."""
    begin = _DOCUMENT.match(text)
    if begin is None or text.count(_RECORDS) > 1:
        return text
    return b"\n" * begin[0].count(b"\n") + text[begin.end() :]


def _parsed(name: str, text: str) -> Sequence[Outcome]:
    """What one text of JSON says, however many events are in it."""
    try:
        several = _split(text.encode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return (_NO_DOCUMENT,)
    return [_outcome(raw, name) for raw in several]


def _split(text: bytes | msgspec.Raw) -> list[bytes | msgspec.Raw]:
    """The events of a text, and digests as they are; nothing of an empty one. Raises ValueError for what is no JSON."""
    value = _values.decode(text) if bytes(text).strip() else []
    if isinstance(value, list):
        return [event for each in value for event in _split(each)]
    if isinstance(value.records, list):
        return list(value.records)
    if value.records is None:
        return []
    if isinstance(value.detail, msgspec.Raw) and value.event_name is msgspec.UNSET:
        return [value.detail]
    return [text]


def _outcome(raw: bytes | msgspec.Raw, where: str) -> Outcome:
    try:
        event = _events.decode(raw)
    except (ValueError, RecursionError):
        return _other(raw)
    if event.event_source in _NOTIFIERS:
        raise ReplayRefused(f"{where}: {NOTIFICATIONS}")
    try:
        ts_us = iso_us(event.event_time)
    except ValueError:
        return _other(raw)
    if event.management_event or event.event_category != "Data":
        return Dropped("a management event")
    if event.event_source != "s3.amazonaws.com":
        return Dropped("an event of another service than S3")
    if event.error_code:
        return Dropped("failed with an error code")
    if event.event_name == "DeleteObjects":
        return Dropped("a delete of several objects that does not tell their keys")
    op = _EVENTS.get(event.event_name)
    if op is None:
        return Dropped(READ) if event.read_only else no_event(event.event_name)
    try:
        named = _parameters.decode(event.request_parameters) or _Parameters()
    except (ValueError, RecursionError):
        return _NO_EVENT
    # The request's bytes are the object's only where the object is in the request.
    size = _bytes_in(event.additional_event_data) if op == PUT else None
    bucket = _behind(event.resources) or named.bucket if named.bucket.startswith("arn:") else named.bucket
    return write(ts_us, op, bucket, named.key, size, request=_request(event, bucket, named.key))


def _request(event: _Event, bucket: str, key: str) -> str | None:
    """The same for an event that comes twice, also for one that two accounts are told, each under an id of its own."""
    if event.shared_event_id:
        return f"{event.shared_event_id} {event.event_name} {bucket} {key}"
    return event.event_id


def _behind(told: msgspec.Raw) -> str:
    """The bucket of an access point, where an event tells one and no other."""
    try:
        arns = [each.arn for each in _resources.decode(told) or ()]
    except (ValueError, RecursionError):
        return ""
    names = {found[1] for arn in arns if (found := _BUCKET.fullmatch(arn))}
    return names.pop() if len(names) == 1 else ""


def _bytes_in(told: msgspec.Raw) -> int | None:
    """How many bytes came with a request; None where that is not told."""
    try:
        more = _more.decode(told)
    except (ValueError, RecursionError):
        return None
    sent = more.bytes_in if more else None
    return int(sent) if sent is not None and 0 <= sent < 1e18 else None


def _other(raw: bytes | msgspec.Raw) -> Outcome:
    """What is no event: a digest, or something that is not CloudTrail's."""
    try:
        value = _values.decode(raw)
    except (ValueError, RecursionError):
        return _NO_EVENT
    if isinstance(value, _Value) and value.digest_start_time is not msgspec.UNSET:
        return Dropped("a digest of CloudTrail's files")
    return _NO_EVENT
