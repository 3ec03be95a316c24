"""Events as S3's notifications write them in JSON, the plain way: to values, or refused with the place and reason.

Understood are the records that radosgw posts (every release), those of AWS S3 and of stores that follow it, and
MinIO's with the members that it adds. What an entry cannot hold is dropped and counted. Every other member has to
have the type that it has there, so that nothing is stored that was meant otherwise.

Promises about single members:

* `s3.object.key` is URL-decoded (`+` is a space), unless `eventSource` is `ceph:s3`, which does not encode keys, or
  the topic says that its senders write literal keys. A decoded key may be any bytes.
* `eventName`, `s3.bucket.name` and `s3.object.key` must be there. A text that is missing or null is empty, a size
  is 0, and an `eventTime` is the time of storing. An `eventId` that is missing or empty is made from the seed and the
  record's index.
* MinIO's `userMetadata` is taken for `metadata` where there is none. What stands beside `Records` is passed over.
* A name that stands twice in an object is refused, where the object is read.
* Sizes are below 2^63, times within 1970 to 2106; the longest texts are below. A NUL is a character like others, but
  for `eventName`, which has no control characters.
* A record has at most the values and bytes of JSON that `json_pieces` takes, those that are dropped included.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, NoReturn
from urllib.parse import unquote_to_bytes

from remora.codec.json_pieces import (
    Repeating,
)
from remora.codec.rendering_plain import sorted_metadata, sorted_tags
from remora.model.entry import Pairs, S3Event, Time
from remora.model.errors import RemoraError

MOST_KEY = 1024
"""Bytes of a decoded object key, as S3 limits it."""

MOST_BUCKET = 255
MOST_TEXT = 8192
"""Bytes of a bucket's name, and of any other text."""

MOST_PAIRS = 256
"""Pairs in the metadata, and in the tags, of an object."""

_MOST_SHOWN = 200

HAS_SLASH = "has a '/', which no bucket of S3 or radosgw has in its name"

TWICE = "stands twice in its object"
"""Why a name is refused that says two things."""


class MalformedEvent(RemoraError, ValueError):
    """Records that cannot be stored: which one, where in it, and why.

    `record` counts from 0 over the whole body, and `line` from 1; None where the body as a whole is meant, or has no
    lines. `field` is the dotted path within the record, empty where the record itself is meant.
    """

    def __init__(self, record: int | None, line: int | None, field: str, reason: str) -> None:
        field = shown_field(field)
        place = [] if record is None else [f"record {record}"]
        place += [] if line is None else [f"line {line}"]
        place += [field] if field else []
        super().__init__(": ".join([*place, reason]))
        self.record, self.line, self.field, self.reason = record, line, field, reason


def shown_field(field: str) -> str:
    """A field's path as messages have it: the sender's own names can be a part of it."""
    return field if len(field) <= _MOST_SHOWN and field.isprintable() else ascii(field[:_MOST_SHOWN])[1:-1]


class TooManyEvents(MalformedEvent):
    """There are more records than may be sent at once."""


class Unconfirmed(MalformedEvent):
    """Amazon SNS asks whether it may post here, which an operator decides."""


class Found(NamedTuple):
    """A record as it was parsed, with its place for messages."""

    value: object
    record: int
    line: int | None
    size: int = 0
    """Of its JSON, in characters."""

    def refuse(self, field: str, reason: str) -> NoReturn:
        """Raise for one of its members."""
        raise MalformedEvent(self.record, self.line, field, reason)


def kind_of(value: object) -> str:
    """What a JSON value is called, for messages."""
    names = {str: "a string", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return "null" if value is None else names.get(type(value), "an object")


# ----------------------------------------------------------------------------------------- one record


class MemberReader:
    """Reads the members of one object of a record, each once, and counts those that were not asked for."""

    __slots__ = ("_asked", "_found", "_members", "_path", "_within")

    def __init__(self, found: Found, path: str, value: object) -> None:
        self._found, self._path, self._asked, self._within = found, path, 0, 0
        if value is None and path:
            value = {}
        if not isinstance(value, dict):
            found.refuse(path, f"expected an object, not {kind_of(value)}")
        if isinstance(value, Repeating):
            found.refuse(self._name(value.name), TWICE)
        self._members: dict[str, object] = value

    @property
    def dropped(self) -> int:
        """Members that were not asked for, so far, those of its pairs included."""
        return len(self._members) - self._asked + self._within

    def text(self, name: str, most: int = MOST_TEXT, *, required: bool = False) -> bytes:
        """A string of at most `most` bytes; empty where it is missing and not required."""
        value = self._get(name)
        if value is None and not required:
            return b""
        text = _text(self._found, self._name(name), value, most)
        if required and not text:
            self.refuse(name, "is empty")
        return text

    def number(self, name: str) -> int:
        """A whole number; 0 where it is missing."""
        value = self._get(name)
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(name, f"expected a whole number, not {value if isinstance(value, float) else kind_of(value)}")
        if not 0 <= value < 1 << 63:
            self.refuse(name, "is not within 0 to 2^63 - 1")
        return value

    def inner(self, name: str) -> MemberReader:
        """An object within; one without members where it is missing."""
        return MemberReader(self._found, self._name(name), self._get(name))

    def pairs(self, name: str) -> Pairs:
        """A list of objects with `key` and `val`."""
        values = self._get(name)
        if values is None:
            return ()
        if not isinstance(values, list):
            self.refuse(name, f"expected a list, not {kind_of(values)}")
        if len(values) > MOST_PAIRS:
            self.refuse(name, f"has {len(values)} pairs, more than {MOST_PAIRS}")
        return tuple([self._pair(f"{name}[{i}]", value) for i, value in enumerate(values)])

    def _pair(self, name: str, value: object) -> tuple[bytes, bytes]:
        reader = MemberReader(self._found, self._name(name), value)
        pair = reader.text("key"), reader.text("val")
        self._within += reader.dropped
        return pair

    def mapping(self, name: str) -> Pairs:
        """An object whose members are strings."""
        return self.inner(name)._members_as_pairs()  # noqa: SLF001  # its own class

    def _members_as_pairs(self) -> Pairs:
        if len(self._members) > MOST_PAIRS:
            self._found.refuse(self._path, f"has {len(self._members)} pairs, more than {MOST_PAIRS}")
        return tuple([(_text(self._found, self._name(key), key, MOST_TEXT), self.text(key)) for key in self._members])

    def refuse(self, name: str, reason: str) -> NoReturn:
        """Raise for one of the members."""
        self._found.refuse(self._name(name), reason)

    def _get(self, name: str) -> object:
        if name in self._members:
            self._asked += 1
        return self._members.get(name)

    def _name(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def _text(found: Found, path: str, value: object, most: int) -> bytes:
    if not isinstance(value, str):
        found.refuse(path, "is missing" if value is None else f"expected a string, not {kind_of(value)}")
    try:
        text = value.encode()
    except UnicodeEncodeError:
        found.refuse(path, "has half of a surrogate pair")
    if len(text) > most:
        found.refuse(path, f"has {len(text)} bytes, more than {most}")
    return text


class Read(NamedTuple):
    """An event, and how many members of its record had no place in it."""

    event: S3Event
    dropped: int


def read(found: Found, created: Time, seed: bytes, *, literal_keys: bool = False) -> Read:
    """The event of a record. `created` and `seed` stand in for an `eventTime` and an `eventId` that it lacks.

    With `literal_keys` the object's key is taken as it stands, whatever the record's source is.
    """
    record = MemberReader(found, "", found.value)
    user, request = record.inner("userIdentity"), record.inner("requestParameters")
    response, s3 = record.inner("responseElements"), record.inner("s3")
    bucket, thing = s3.inner("bucket"), s3.inner("object")
    owner = bucket.inner("ownerIdentity")
    source = record.text("eventSource")
    metadata = thing.pairs("metadata") or thing.mapping("userMetadata")
    event = S3Event(
        event_version=record.text("eventVersion"),
        event_source=source,
        aws_region=record.text("awsRegion"),
        event_time=_time(record) or created,
        event_name=_name(record),
        user_identity=user.text("principalId"),
        source_ip_address=request.text("sourceIPAddress"),
        x_amz_request_id=response.text("x-amz-request-id"),
        x_amz_id_2=response.text("x-amz-id-2"),
        s3_schema_version=s3.text("s3SchemaVersion"),
        configuration_id=s3.text("configurationId"),
        bucket_name=bucket.text("name", MOST_BUCKET, required=True),
        bucket_owner_identity=owner.text("principalId"),
        bucket_arn=bucket.text("arn"),
        object_key=_key(thing, literal=literal_keys or source == b"ceph:s3"),
        object_size=thing.number("size"),
        object_etag=thing.text("eTag"),
        object_version_id=thing.text("versionId"),
        object_sequencer=thing.text("sequencer"),
        event_id=record.text("eventId") or made_id(seed, found.record),
        bucket_id=bucket.text("id"),
        metadata=sorted_metadata(metadata),
        tags=sorted_tags(thing.pairs("tags")),
        opaque_data=record.text("opaqueData"),
    )
    if b"/" in event.bucket_name:  # a record's key is bucket/object, and is taken apart at the first one
        bucket.refuse("name", HAS_SLASH)
    return Read(event, sum(each.dropped for each in (record, user, request, response, s3, bucket, owner, thing)))


def _name(record: MemberReader) -> bytes:
    name = record.text("eventName", required=True)
    if _CONTROL.search(name):
        record.refuse("eventName", "has control characters")
    return name


_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


def _key(thing: MemberReader, *, literal: bool) -> bytes:
    if literal:
        return thing.text("key", MOST_KEY, required=True)
    key = unquote_to_bytes(thing.text("key", 3 * MOST_KEY, required=True).replace(b"+", b" "))
    if len(key) > MOST_KEY:
        thing.refuse("key", f"has {len(key)} bytes, more than {MOST_KEY}")
    return key


def made_id(seed: bytes, record: int) -> bytes:
    """An event id for a record that has none, always the same for a seed and a place."""
    return sha256(b"%d:%b:%d" % (len(seed), seed, record)).hexdigest()[:32].encode()


# -------------------------------------------------------------------------------------------- times

_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_EARLY = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")


def _time(record: MemberReader) -> Time | None:
    """`eventTime`: ISO 8601 with a zone, or the seconds that radosgw writes for the first ten years after 1970."""
    text = record.text("eventTime", 64).decode()
    if not text:
        return None
    if match := _EARLY.fullmatch(text):
        return Time(int(match[1]), _nanoseconds(match[2]))
    match = _ISO.fullmatch(text)
    if not match:
        record.refuse("eventTime", "is not a time such as 2026-01-31T23:59:59.000Z")
    try:
        sec = _second(match[1])
    except ValueError:
        record.refuse("eventTime", "is not a time that exists")
    if match[3]:
        offset = int(match[4]) * 3600 + int(match[5]) * 60
        sec += offset if match[3] == "-" else -offset
    if not 0 <= sec < 1 << 32:
        record.refuse("eventTime", "is not within 1970 to 2106")
    return Time(sec, _nanoseconds(match[2] or "0"))


@lru_cache(maxsize=1024)
def _second(text: str) -> int:
    """Seconds since the epoch of a time as `_ISO` has it; ValueError where there is no such time."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def _nanoseconds(fraction: str) -> int:
    return int(fraction.ljust(9, "0"))
