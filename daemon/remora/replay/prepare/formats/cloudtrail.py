"""CloudTrail data events of S3: `{"Records":[...]}`, one document a file, with one second of resolution.

S3's event notifications look alike (`eventSource` aws:s3, keys encoded): they are refused by name. No order is promised
within a file; an event may come twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from remora.replay.errors import ReplayRefused
from remora.replay.prepare.entry import READ, Dropped, Found, Outcome, Source, iso_us, malformed, no_event, write
from remora.replay.shape import COPY, DELETE, MPU_COMPLETE, PUT

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
_NOTIFICATION = re.compile(rb'"eventSource"\s*:\s*"(?:aws|ceph|minio):s3"')
_BEGIN = re.compile(rb'\s*\{\s*"Records"\s*:')
_SHOWN = 400


class _Parameters(msgspec.Struct, rename={"bucket": "bucketName"}):
    bucket: str = ""
    key: str = ""


class _More(msgspec.Struct, rename={"bytes_in": "bytesTransferredIn"}):
    bytes_in: int | float | None = None


class _Event(msgspec.Struct, rename="camel"):
    event_time: str
    event_source: str
    event_name: str
    request_parameters: _Parameters | None = None
    additional_event_data: _More | None = None
    event_id: str | None = msgspec.field(name="eventID", default=None)
    read_only: bool | None = None
    error_code: str | None = None
    management_event: bool = False
    event_category: str = "Data"


class _Document(msgspec.Struct):
    records: list[msgspec.Raw] = msgspec.field(name="Records")


_documents = msgspec.json.Decoder(_Document)
_events = msgspec.json.Decoder(_Event)


def is_notification(text: bytes) -> bool:
    """Whether these are S3's event notifications, which are no log."""
    return _NOTIFICATION.search(text) is not None


def recognises(head: bytes) -> bool:
    """Whether a file begins as such a document does."""
    return _BEGIN.match(head) is not None and b'"eventName"' in head


def records(stream: BinaryIO, source: Source) -> Iterator[Found]:
    """The records of a file, counted from 1. Raises ReplayRefused for notifications, and for what is no document."""
    text = stream.read()
    for number, raw in enumerate(_raw_records(text, source.name), start=1):
        if is_notification(raw):
            raise ReplayRefused(f"{source.name}: record {number}: {NOTIFICATIONS}")
        yield Found(number, (_outcome(raw),), raw[:_SHOWN].decode("utf-8", "replace"))


def _raw_records(text: bytes, name: str) -> Iterator[bytes]:
    """The records of one document, or of one document on each line."""
    try:
        documents = [_documents.decode(text)] if text.strip() else []
    except (ValueError, RecursionError) as first:
        documents = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                documents += [_documents.decode(line)] if line.strip() else []
            except (ValueError, RecursionError) as exc:
                reason = exc if number > 1 else first
                raise ReplayRefused(f"{name}:{number}: not a document of CloudTrail: {reason}") from exc
    for document in documents:
        yield from map(bytes, document.records)


def _outcome(raw: bytes) -> Outcome:
    try:
        event = _events.decode(raw)
        ts_us = iso_us(event.event_time)
    except (ValueError, RecursionError):
        return malformed("not an event of CloudTrail")
    if event.event_source != "s3.amazonaws.com":
        return Dropped("an event of another service than S3")
    if event.management_event or event.event_category != "Data":
        return Dropped("a management event")
    if event.error_code:
        return Dropped("failed with an error code")
    if event.event_name == "DeleteObjects":
        return Dropped("a delete of several objects that does not tell their keys")
    op = _EVENTS.get(event.event_name)
    if op is None:
        return Dropped(READ) if event.read_only else no_event(event.event_name)
    where = event.request_parameters or _Parameters()
    return write(ts_us, op, where.bucket, where.key, _size(event, op), request=event.event_id)


def _size(event: _Event, op: str) -> int | None:
    """The request's bytes, which is the object only when the object is in the request."""
    sent = event.additional_event_data.bytes_in if event.additional_event_data else None
    return int(sent) if op == PUT and sent is not None and 0 <= sent < 1e18 else None
