"""Events as S3's notifications write them in JSON, to entries of the queues of a topic.

`s3_bodies` finds the records of a body, and `s3_records` defines what a record may look like and what becomes of it.
Nearly all records are read and encoded by `_s3_records.pyx` in one pass. What it leaves takes the plain way, so does
what is refused: every message comes from there. So does everything where it was not compiled. Both give the same, as
tests hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from struct import Struct
from typing import NamedTuple

from remora.codec import s3_bodies, s3_records, speedups
from remora.codec.ceph import FieldWriter
from remora.codec.s3_records import (
    HAS_SLASH,
    MOST_BUCKET,
    MOST_KEY,
    Found,
    MalformedEvent,
    TooManyEvents,
    Unconfirmed,
)
from remora.codec.topic import has_literal_keys
from remora.model.entry import S3Event, Time
from remora.model.errors import EndpointMisconfigured
from remora.model.ingest import RoutedEvent
from remora.model.topic import UNSET, Target, Topic

__all__ = [
    "HAS_SLASH",
    "MOST_BUCKET",
    "MOST_KEY",
    "EventPart",
    "Keyed",
    "MalformedEvent",
    "TooManyEvents",
    "Unconfirmed",
    "encode",
]

_STEP_BYTES = 128 << 10  # of records in the compiled way that make one part, which is below a millisecond
_MOST_COMPILED = 4 * _STEP_BYTES  # all of them may be pairs
_PLAIN_BYTES = 64 << 10  # of records in the plain way that make one part, which is some milliseconds
_STEP_RECORDS = 256

Keyed = tuple[bytes, bytes]
"""What an event's shard is chosen by, `bucket:object`, and its entry."""


class EventPart(NamedTuple):
    """Some of the events, in order, how many members of their records an entry could not hold, and how many test events
    there were beside them."""

    events: list[Keyed]
    dropped: int = 0
    tests: int = 0

    def routed(self, shards: int) -> list[RoutedEvent]:
        """The events, each in one of so many shards."""
        keys, entries = zip(*self.events, strict=True) if self.events else ((), ())
        return routed(keys, entries, shards)


def encode(body: bytes, topic: Topic, *, ndjson: bool, most: int, created: Time, seed: bytes) -> Iterator[EventPart]:
    """Encode the records of a body as entries of a topic.

    The body is `{"Records":[...]}`, or with `ndjson` lines of which each is a record or such a document. Each part
    takes some milliseconds at most, so that a loop can do other things in between, and may be empty; only when the last
    one has come are all records known to be good. There are no events at all where the body is an `s3:TestEvent`.
    Raises MalformedEvent, and TooManyEvents beyond `most` records.

    `seed` makes the event ids of records that have none: the same seed gives the same ids. It must be unlike those
    of all other requests, for example an idempotency key with its topic, or random bytes.
    """
    encoder = _Encoder(topic, created, seed)
    count = tests = 0
    for step in _from_lines(body, encoder) if ndjson else _from_document(body, encoder):
        count += len(step.events)
        tests += step.tests
        if count > most:
            raise TooManyEvents(most, None, "", f"more than {most} records in one request")
        yield step
    if not count and not tests:
        raise MalformedEvent(None, None, "", "there are no records")


_new_routed_event: Callable[[Iterable[object]], RoutedEvent] = partial(tuple.__new__, RoutedEvent)
"""Makes one from its three parts, unchecked: in half the time."""


def routed(keys: Sequence[bytes], entries: Sequence[bytes], shards: int) -> list[RoutedEvent]:
    """Entries with their shards, each by its key."""
    return list(map(_new_routed_event, zip(speedups.shards(keys, shards), keys, entries, strict=True)))


def _from_lines(body: bytes, encoder: _Encoder) -> Iterator[EventPart]:
    """The events of a body of lines."""
    record, line, start = 0, 1, 0
    while start < len(body):  # the lines of a part are counted only where another part comes behind it
        end = body.find(b"\n", start + _STEP_BYTES) + 1 if len(body) - start > _STEP_BYTES else 0
        text = body[start : end or len(body)]
        if step := encoder.compiled_lines(text, record):
            record += len(step.events)
            yield step
        else:
            for step in encoder.plain(s3_bodies.in_lines(text.split(b"\n"), record, line)):
                record += len(step.events)
                yield step
        start += len(text)
        if start < len(body):
            line += text.count(b"\n")


_HEAD, _NEXT, _TAIL = b'{"Records":[', b'},{"eventVersion":', b"]}"


def _from_document(body: bytes, encoder: _Encoder) -> Iterator[EventPart]:
    """The events of a document."""
    done = start = 0
    while True:
        # In JSON this stands in no text. Where it stands within a record, the piece before it is no list of records.
        end = body.find(_NEXT, start + _STEP_BYTES) + 1 if len(body) - start > _STEP_BYTES else 0
        piece = (_HEAD if start else b"") + body[start : end or None] + (_TAIL if end else b"")
        step = encoder.compiled_document(piece, done, is_whole=not (start or end))
        if not step:
            break
        yield step
        if not end:
            return
        done, start = done + len(step.events), end + 1
    yield from encoder.plain(s3_bodies.in_document(body, done, start))


class _Encoder:
    """Makes entries of one topic, all created at one time, each with what its shard is chosen by."""

    __slots__ = ("_compiled", "_created", "_literal_keys", "_opaque", "_seed", "_tail")

    def __init__(self, topic: Topic, created: Time, seed: bytes) -> None:
        self._created, self._seed = created, seed
        self._opaque = topic.opaque_data or b""
        self._literal_keys = _has_literal_keys(topic.target)
        self._tail = behind_event(topic, created)
        self._compiled = None
        if speedups.RecordEncoder:
            self._compiled = speedups.RecordEncoder(created, seed, self._opaque, self._tail, self._literal_keys)

    def plain(self, found: s3_bodies.Records) -> Iterator[EventPart]:
        """The entries of records, and how many of their members were dropped. Raises MalformedEvent."""
        keyed: list[Keyed] = []
        dropped = tests = size = 0
        for each in found:
            if isinstance(each, Found):
                event, more = s3_records.read(each, self._created, self._seed, literal_keys=self._literal_keys)
                keyed.append((b"%b:%b" % (event.bucket_name, event.object_key), self._entry(event)))
                dropped, size = dropped + more, size + each.size
            elif each is not None:
                tests += 1
            if each is None or size >= _PLAIN_BYTES or len(keyed) == _STEP_RECORDS:
                yield EventPart(keyed, dropped, tests)
                keyed, dropped, tests, size = [], 0, 0, 0
        yield EventPart(keyed, dropped, tests)

    def _entry(self, e: S3Event) -> bytes:
        head = _strings(e.event_version, e.event_source, e.aws_region)
        body = _strings(
            e.event_name, e.user_identity, e.source_ip_address, e.x_amz_request_id, e.x_amz_id_2,
            e.s3_schema_version, e.configuration_id, e.bucket_name, e.bucket_owner_identity, e.bucket_arn, e.object_key,
        )  # fmt: skip
        etag = _strings(e.object_etag, e.object_version_id, e.object_sequencer, e.event_id, e.bucket_id)
        pairs = FieldWriter().pairs(e.metadata).pairs(e.tags).encoded() if e.metadata or e.tags else _NO_PAIRS
        opaque = _strings(self._opaque or e.opaque_data)
        event = b"".join((head, _TIME.pack(*e.event_time), body, _U64.pack(e.object_size), etag, pairs, opaque))
        length = len(event)
        return b"".join((_HEADERS.pack(3, 1, 6 + length + len(self._tail), 4, 1, length), event, self._tail))

    def compiled_lines(self, text: bytes, record: int) -> EventPart | None:
        """The entries of lines, of which the first has this record; None where one of them has to go the plain way."""
        if self._compiled and len(text) <= _MOST_COMPILED and (found := self._compiled.lines(text, record)):
            return EventPart(*found)
        return None

    def compiled_document(self, text: bytes, record: int, *, is_whole: bool) -> EventPart | None:
        """The entries of a document, or of some of its records in the form of one."""
        if (
            self._compiled
            and len(text) <= _MOST_COMPILED
            and (found := self._compiled.document(text, record, is_whole))
        ):
            return EventPart(*found)
        return None


_U64 = Struct("<Q")
_TIME = Struct("<II")
_LIMITS = Struct("<III")
_HEADERS = Struct("<BBIBBI")  # of the entry, then of the event inside
_NO_PAIRS = bytes(8)


@lru_cache(maxsize=256)
def _has_literal_keys(target: Target) -> bool:
    try:
        return has_literal_keys(target)
    except EndpointMisconfigured:  # no command stores such a topic; its keys are read as S3 writes them
        return False


def behind_event(topic: Topic, created: Time) -> bytes:
    """What stands behind the event in each entry of a topic that is created at this time."""
    kept = _behind.get(id(topic)) or _keep_behind(topic)
    return kept[1] + _TIME.pack(*created) + kept[2]


_MOST_BEHIND = 1024

_behind: dict[int, tuple[Topic, bytes, bytes]] = {}
"""By its identity each topic with what stands behind its events up to the time of creation, and behind that. A topic
that is kept here is alive, so no other one has its identity. To hash a topic would take longer than the rest."""


def _keep_behind(topic: Topic) -> tuple[Topic, bytes, bytes]:
    target = topic.target
    tail = _strings(*(text.encode("utf-8", "surrogateescape") for text in (target.uri, target.args, target.topic)))
    ttl, retries, sleep = topic.time_to_live_s, topic.max_retries, topic.retry_sleep_s
    limits = _LIMITS.pack(*(UNSET if each is None else each for each in (ttl, retries, sleep)))
    if len(_behind) >= _MOST_BEHIND:
        _behind.clear()
    found = _behind[id(topic)] = (topic, tail, limits)
    return found


def _strings(*texts: bytes) -> bytes:
    """Texts as an entry has them."""
    return b"".join([part for text in texts for part in (len(text).to_bytes(4, "little"), text)])
