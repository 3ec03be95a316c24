"""Events as S3's notifications write them in JSON, to entries of the queues of a topic.

Understood are the records that radosgw posts (every release), those of AWS S3 and of stores that follow it, and
MinIO's with the members that it adds. What an entry cannot hold is dropped and counted. Every other member has to
have the type that it has there, so that nothing is stored that was meant otherwise.

Promises about single members:

* `s3.object.key` is URL-decoded (`+` is a space), unless `eventSource` is `ceph:s3`, which does not encode keys. It
  may then be any bytes.
* `eventName`, `s3.bucket.name` and `s3.object.key` must be there. A text that is missing or null is empty, a size
  is 0, an `eventTime` is the time of storing, and a missing `eventId` is made from the seed and the record's index.
* MinIO's `userMetadata` is taken for `metadata` where there is none.
* Sizes are below 2^63, times within 1970 to 2106; the longest texts are below. A NUL is a character like others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, NoReturn
from urllib.parse import unquote_to_bytes

from remora.codec import event_entry
from remora.codec.record import sorted_metadata, sorted_tags
from remora.codec.shard_hash import shards
from remora.model.entry import Event, EventEntry, Pairs, Time
from remora.model.errors import RemoraError
from remora.model.ingest import Placed
from remora.model.topic import UNSET, Topic

MOST_KEY = 1024
"""Bytes of a decoded object key, as S3 limits it."""

MOST_BUCKET = 255
MOST_TEXT = 8192
"""Bytes of a bucket's name, and of any other text."""

MOST_PAIRS = 256
"""Pairs in the metadata, and in the tags, of an object."""

_STEP_BYTES = 128 << 10  # of lines that are taken in one step, which is about a millisecond
_STEP_RECORDS = 256


class MalformedEvent(RemoraError, ValueError):
    """Records that cannot be stored: which one, where in it, and why.

    `record` counts from 0 over the whole body, and `line` from 1; None where the body as a whole is meant, or has no
    lines. `field` is the dotted path within the record, empty where the record itself is meant.
    """

    def __init__(self, record: int | None, line: int | None, field: str, reason: str) -> None:
        place = [] if record is None else [f"record {record}"]
        place += [] if line is None else [f"line {line}"]
        place += [field] if field else []
        super().__init__(": ".join([*place, reason]))
        self.record, self.line, self.field, self.reason = record, line, field, reason


class TooManyEvents(MalformedEvent):
    """There are more records than may be sent at once."""


class Part(NamedTuple):
    """Some of the events, in order, and how many members of their records an entry could not hold."""

    events: list[Placed]
    dropped: int


def place(body: bytes, topic: Topic, *, ndjson: bool, most: int, created: Time, seed: bytes) -> Iterator[Part]:
    """Encode the records of a body as entries of a topic and choose their shards.

    The body is `{"Records":[...]}`, or with `ndjson` lines of which each is a record or such a document. Each part
    takes about a millisecond, so that a loop can do other things in between; only when the last one has come are
    all records known to be good. Raises MalformedEvent, and TooManyEvents beyond `most` records.

    `seed` makes the event ids of records that have none: the same seed gives the same ids. It must be unlike those
    of all other requests, for example an idempotency key with its topic, or random bytes.
    """
    encoder = _Encoder(topic, created, seed)
    for records in _steps(_lines(body) if ndjson else _document(body, 0, None), most):
        events = [encoder.entry(record) for record in records]
        keys = [key for key, _ in events]
        numbers = shards(keys, topic.shards)
        placed = [Placed(number, key, raw) for number, (key, raw) in zip(numbers, events, strict=True)]
        yield Part(placed, encoder.take_dropped())


# ------------------------------------------------------------------------------------- records of a body


class _Found(NamedTuple):
    """A record as it was parsed, with its place for messages."""

    value: object
    record: int
    line: int | None

    def refuse(self, field: str, reason: str) -> NoReturn:
        raise MalformedEvent(self.record, self.line, field, reason)


def _steps(found: Iterator[_Found], most: int) -> Iterator[Sequence[_Found]]:
    step: list[_Found] = []
    count = 0
    for each in found:
        count += 1
        if count > most:
            raise TooManyEvents(each.record, each.line, "", f"more than {most} records in one request")
        step.append(each)
        if len(step) == _STEP_RECORDS:
            yield step
            step = []
    if not count:
        raise MalformedEvent(None, None, "", "there are no records")
    if step:
        yield step


def _lines(body: bytes) -> Iterator[_Found]:
    """The records of every line; empty lines are passed over."""
    record = 0
    for line, text in enumerate(body.split(b"\n"), 1):
        if text.isspace() or not text:
            continue
        value = _json(text, record, line)
        if isinstance(value, dict) and "Records" in value:
            for each in _records(value, record, line):
                yield each
                record += 1
        else:
            yield _Found(value, record, line)
            record += 1


def _document(body: bytes, first: int, line: int | None) -> Iterator[_Found]:
    value = _json(body, None, line)
    if not isinstance(value, dict):
        raise MalformedEvent(None, line, "", f"expected an object with Records, not {_kind(value)}")
    if "Records" not in value:
        raise MalformedEvent(None, line, "Records", "is missing")
    return _records(value, first, line)


def _records(document: dict[str, object], first: int, line: int | None) -> Iterator[_Found]:
    records = document["Records"]
    if isinstance(document, _Repeating):
        raise MalformedEvent(None, line, document.name, "stands twice in its object")
    if not isinstance(records, list):
        raise MalformedEvent(None, line, "Records", f"expected a list, not {_kind(records)}")
    if not records:
        raise MalformedEvent(None, line, "Records", "is empty")
    return (_Found(each, first + i, line) for i, each in enumerate(records))


class _Repeating(dict[str, object]):
    """An object in which a name stands twice."""

    name = ""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeating = _Repeating(found)
    repeating.name = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
    return repeating


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _json(text: bytes, record: int | None, line: int | None) -> object:
    try:
        return json.loads(text.decode(), object_pairs_hook=_object, parse_constant=_not_json)
    except UnicodeDecodeError as exc:
        reason = f"not valid UTF-8 at byte {exc.start}"
    except json.JSONDecodeError as exc:
        reason = f"not valid JSON: {exc.msg} at character {exc.pos}"
    except ValueError as exc:
        reason = f"not valid JSON: {exc}"
    except RecursionError:
        reason = "nested too deeply"
    raise MalformedEvent(record, line, "", reason)


def _kind(value: object) -> str:
    """What a JSON value is called, for messages."""
    names = {str: "a string", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return "null" if value is None else names.get(type(value), "an object")


# ----------------------------------------------------------------------------------------- one record


class _Reader:
    """Reads the members of one object of a record, and counts those that nobody asked for."""

    __slots__ = ("_asked", "_found", "_members", "_path")

    def __init__(self, found: _Found, path: str, value: object) -> None:
        self._found, self._path, self._asked = found, path, 0
        if value is None and path:
            value = {}
        if not isinstance(value, dict):
            found.refuse(path, f"expected an object, not {_kind(value)}")
        if isinstance(value, _Repeating):
            found.refuse(self._name(value.name), "stands twice in its object")
        self._members: dict[str, object] = value

    @property
    def dropped(self) -> int:
        """Members that were not asked for, so far."""
        return len(self._members) - self._asked

    def has(self, name: str) -> bool:
        return self._members.get(name) is not None

    def text(self, name: str, most: int = MOST_TEXT, *, required: bool = False) -> bytes:
        value = self._get(name)
        if value is None and not required:
            return b""
        text = _text(self._found, self._name(name), value, most)
        if required and not text:
            self.refuse(name, "is empty")
        return text

    def number(self, name: str) -> int:
        value = self._get(name)
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(name, f"expected a whole number, not {value if isinstance(value, float) else _kind(value)}")
        if not 0 <= value < 1 << 63:
            self.refuse(name, "is not within 0 to 2^63 - 1")
        return value

    def inner(self, name: str) -> _Reader:
        return _Reader(self._found, self._name(name), self._get(name))

    def pairs(self, name: str) -> Pairs:
        """A list of objects with `key` and `val`."""
        values = self._get(name)
        if values is None:
            return ()
        if not isinstance(values, list):
            self.refuse(name, f"expected a list, not {_kind(values)}")
        if len(values) > MOST_PAIRS:
            self.refuse(name, f"has {len(values)} pairs, more than {MOST_PAIRS}")
        return tuple([self._pair(f"{name}[{i}]", value) for i, value in enumerate(values)])

    def _pair(self, name: str, value: object) -> tuple[bytes, bytes]:
        reader = _Reader(self._found, self._name(name), value)
        return reader.text("key"), reader.text("val")

    def mapping(self, name: str) -> Pairs:
        """An object whose members are strings."""
        return self.inner(name)._members_as_pairs()  # noqa: SLF001  # its own class

    def _members_as_pairs(self) -> Pairs:
        if len(self._members) > MOST_PAIRS:
            self._found.refuse(self._path, f"has {len(self._members)} pairs, more than {MOST_PAIRS}")
        return tuple([(_text(self._found, self._name(key), key, MOST_TEXT), self.text(key)) for key in self._members])

    def refuse(self, name: str, reason: str) -> NoReturn:
        self._found.refuse(self._name(name), reason)

    def _get(self, name: str) -> object:
        if name in self._members:
            self._asked += 1
        return self._members.get(name)

    def _name(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def _text(found: _Found, path: str, value: object, most: int) -> bytes:
    if not isinstance(value, str):
        found.refuse(path, "is missing" if value is None else f"expected a string, not {_kind(value)}")
    try:
        text = value.encode()
    except UnicodeEncodeError:
        found.refuse(path, "has half of a surrogate pair")
    if len(text) > most:
        found.refuse(path, f"has {len(text)} bytes, more than {most}")
    return text


class _Encoder:
    """Makes entries of one topic, all created at one time."""

    __slots__ = ("_created", "_dropped", "_seed", "_topic")

    def __init__(self, topic: Topic, created: Time, seed: bytes) -> None:
        self._topic, self._created, self._seed = topic, created, seed
        self._dropped = 0

    def take_dropped(self) -> int:
        """Members dropped since the last time."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def entry(self, found: _Found) -> tuple[bytes, bytes]:
        """What the shard is chosen by, and the entry."""
        event = self._event(found)
        topic = self._topic
        entry = EventEntry(
            event=event,
            push_endpoint=_bytes(topic.target.uri),
            push_endpoint_args=_bytes(topic.target.args),
            arn_topic=_bytes(topic.target.topic),
            creation_time=self._created,
            time_to_live=_limit(topic.time_to_live_s),
            max_retries=_limit(topic.max_retries),
            retry_sleep_duration=_limit(topic.retry_sleep_s),
        )
        return b"%b:%b" % (event.bucket_name, event.object_key), event_entry.encode(entry)

    def _event(self, found: _Found) -> Event:
        record = _Reader(found, "", found.value)
        user, request = record.inner("userIdentity"), record.inner("requestParameters")
        response, s3 = record.inner("responseElements"), record.inner("s3")
        bucket, thing = s3.inner("bucket"), s3.inner("object")
        owner = bucket.inner("ownerIdentity")
        source = record.text("eventSource")
        metadata = thing.pairs("metadata")
        if not metadata and thing.has("userMetadata"):
            metadata = thing.mapping("userMetadata")
        opaque = record.text("opaqueData")
        event = Event(
            event_version=record.text("eventVersion"),
            event_source=source,
            aws_region=record.text("awsRegion"),
            event_time=_time(record.text("eventTime", 64), record) if record.has("eventTime") else self._created,
            event_name=record.text("eventName", required=True),
            user_identity=user.text("principalId"),
            source_ip_address=request.text("sourceIPAddress"),
            x_amz_request_id=response.text("x-amz-request-id"),
            x_amz_id_2=response.text("x-amz-id-2"),
            s3_schema_version=s3.text("s3SchemaVersion"),
            configuration_id=s3.text("configurationId"),
            bucket_name=bucket.text("name", MOST_BUCKET, required=True),
            bucket_owner_identity=owner.text("principalId"),
            bucket_arn=bucket.text("arn"),
            object_key=_key(thing, source),
            object_size=thing.number("size"),
            object_etag=thing.text("eTag"),
            object_version_id=thing.text("versionId"),
            object_sequencer=thing.text("sequencer"),
            event_id=record.text("eventId") or _made_id(self._seed, found.record),
            bucket_id=bucket.text("id"),
            metadata=sorted_metadata(metadata),
            tags=sorted_tags(thing.pairs("tags")),
            opaque_data=self._topic.opaque_data or opaque,
        )
        self._dropped += sum(each.dropped for each in (record, user, request, response, s3, bucket, owner, thing))
        return event


def _key(thing: _Reader, source: bytes) -> bytes:
    if source == b"ceph:s3":
        return thing.text("key", MOST_KEY, required=True)
    key = unquote_to_bytes(thing.text("key", 3 * MOST_KEY, required=True).replace(b"+", b" "))
    if len(key) > MOST_KEY:
        thing.refuse("key", f"has {len(key)} bytes, more than {MOST_KEY}")
    return key


def _made_id(seed: bytes, record: int) -> bytes:
    """An event id for a record that has none, always the same for a seed and a place."""
    return sha256(b"%d:%b:%d" % (len(seed), seed, record)).hexdigest()[:32].encode()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _limit(value: int | None) -> int:
    return UNSET if value is None else value


# -------------------------------------------------------------------------------------------- times

_ISO = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_EARLY = re.compile(rb"([0-9]{1,9})\.([0-9]{1,9})")


def _time(text: bytes, record: _Reader) -> Time:
    """A time in ISO 8601 with its zone, or the seconds that radosgw writes for the first ten years after 1970."""
    if match := _EARLY.fullmatch(text):
        return Time(int(match[1]), _nanoseconds(match[2]))
    if not (match := _ISO.fullmatch(text)):
        record.refuse("eventTime", "is not a time such as 2026-01-31T23:59:59.000Z")
    second, fraction, sign, hours, minutes = match.groups()
    try:
        sec = _second(second)
    except ValueError:
        record.refuse("eventTime", "is not a time that exists")
    if sign:
        offset = int(hours) * 3600 + int(minutes) * 60
        sec += offset if sign == b"-" else -offset
    if not 0 <= sec < 1 << 32:
        record.refuse("eventTime", "is not within 1970 to 2106")
    return Time(sec, _nanoseconds(fraction or b"0"))


@lru_cache(maxsize=1024)
def _second(text: bytes) -> int:
    """Seconds since the epoch of `2026-01-31T23:59:59`."""
    return int(datetime.fromisoformat(text.decode()).replace(tzinfo=UTC).timestamp())


def _nanoseconds(fraction: bytes) -> int:
    return int(fraction.ljust(9, b"0"))
