"""What a notification is: the one parser of Kafka's values, for the jobs that land them and those that judge them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US = 86_400_000_000
FIRST_US = (datetime.min.replace(tzinfo=UTC) - EPOCH).days * _DAY_US
LAST_US = ((datetime.max.replace(tzinfo=UTC) - EPOCH).days + 1) * _DAY_US
"""The years 1 to 9999, which all readers of tables know."""
_MICROSECOND = timedelta(microseconds=1)
_EARLY = re.compile(r"[0-9]{1,9}(\.[0-9]*)?")
_MOST_SHOWN = 300

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Unusable(ValueError):
    """A value that is no notification; the text is the cause."""


def unforeseen(exc: Exception) -> str:
    """The cause where the parser itself fails: whatever a record holds, the batch goes on without it."""
    told = f"remora cannot read it: {type(exc).__name__}: {exc}"[:_MOST_SHOWN]
    return told.encode(errors="replace").decode()


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


class NotificationRecord(msgspec.Struct):
    """One of the Records of a value, as it stands there."""

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
    records: list[NotificationRecord] = msgspec.field(name="Records")


_decode = msgspec.json.Decoder(_Document).decode


class Notified(NamedTuple):
    """An event that a record tells of. `time_us` counts from 1970, `day` is that of the time in UTC."""

    record: NotificationRecord
    event_name: str
    key: str
    time_us: int
    day: str


def notified(value: bytes | None, *, is_decoded: bool) -> list[Notified]:
    """The events of a record's value, all of them. Raises Unusable with the cause.

    Keys are URL-decoded, as S3's own notifications need it, unless `eventSource` is ceph:s3, which does not encode
    them, or `is_decoded`: remora delivers keys as they are, from every sender.
    """
    if value is None:
        raise Unusable("the record has no value")
    try:
        document = _decode(value)
    except msgspec.ValidationError as exc:
        raise Unusable(f"not a notification: {exc}"[:_MOST_SHOWN]) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:  # of what is not UTF-8 either, by release
        try:
            value.decode()
        except UnicodeDecodeError as unreadable:
            raise Unusable(f"not UTF-8: {unreadable.reason}") from exc
        raise Unusable(f"not JSON: {exc}"[:_MOST_SHOWN]) from exc
    except RecursionError as exc:
        raise Unusable("not JSON: nested too deeply") from exc
    if not document.records:
        raise Unusable("not a notification: Records is empty")
    return [_notified(record, is_decoded=is_decoded) for record in document.records]


def _notified(record: NotificationRecord, *, is_decoded: bool) -> Notified:
    if not record.s3.bucket.name:
        raise Unusable("not a notification: s3.bucket.name is empty")
    key = record.s3.object.key
    if not (is_decoded or record.source == "ceph:s3"):
        key = _url_decoded(key)
    if not key:
        raise Unusable("not a notification: s3.object.key is empty")
    if not record.event_name:
        raise Unusable("not a notification: eventName is empty")
    return Notified(record, record.event_name.removeprefix("s3:"), key, *_time(record.event_time))


def _url_decoded(key: str) -> str:
    if "%" not in key and "+" not in key:  # as most are
        return key
    try:
        return unquote_to_bytes(key.replace("+", " ")).decode()
    except UnicodeDecodeError as exc:
        raise Unusable("not UTF-8: s3.object.key after URL-decoding") from exc


def pairs(given: list[_Pair] | dict[str, str] | None) -> list[tuple[str, str]]:
    """Metadata or tags, each key once: the last one wins."""
    if not given:
        return []
    return list((given if isinstance(given, dict) else {pair.key: pair.val for pair in given}).items())


def _time(text: str) -> tuple[int, str]:
    """Microseconds since 1970, and the day in UTC. radosgw writes times of the first ten years as seconds."""
    is_date = text[4:5] == "-"  # as nearly all are; the pattern takes longer
    time = _seconds(text) if not is_date and _EARLY.fullmatch(text) else _iso(text)
    try:
        utc = time if time.tzinfo is UTC else time.astimezone(UTC)
    except OverflowError as exc:
        raise Unusable("not a notification: eventTime is not a time") from exc
    return (utc - EPOCH) // _MICROSECOND, utc.date().isoformat()


def _seconds(text: str) -> datetime:
    whole, _, fraction = text.partition(".")
    return EPOCH + timedelta(seconds=int(whole), microseconds=int(fraction[:6].ljust(6, "0")))


def _iso(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as exc:
        raise Unusable("not a notification: eventTime is not a time") from exc
    if time.tzinfo is None:
        raise Unusable("not a notification: eventTime has no zone")
    return time
