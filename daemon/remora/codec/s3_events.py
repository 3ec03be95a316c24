"""Events as S3's notifications write them in JSON, to entries of the queues of a topic.

`s3_bodies` finds the records of a body, and `s3_records` defines what a record may look like and what becomes of it.
Nearly all records are read and encoded by `_s3_records.pyx` in one pass. What it leaves, and everything where it was
not compiled, is tried in a quick way here, for records that look exactly as radosgw writes them. All others take the
plain way, and so does what is refused, so that every message comes from there. The three are tested to give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from struct import Struct
from typing import NamedTuple

import msgspec

from remora.codec import s3_bodies, s3_records, speedups
from remora.codec.ceph import Writer
from remora.codec.rendering_plain import sorted_metadata, sorted_tags
from remora.codec.s3_records import (
    MOST_BUCKET,
    MOST_KEY,
    MOST_PAIRS,
    Found,
    MalformedEvent,
    Reader,
    TooManyEvents,
    Unconfirmed,
    has_control,
    second,
)
from remora.codec.topic import has_literal_keys
from remora.model.entry import Pairs, S3Event, Time
from remora.model.errors import EndpointMisconfigured
from remora.model.ingest import RoutedEvent
from remora.model.topic import UNSET, Target, Topic

__all__ = ["MOST_BUCKET", "MOST_KEY", "MalformedEvent", "Part", "TooManyEvents", "Unconfirmed", "place"]

_STEP_BYTES = 128 << 10  # of records in the quick way that make one part, which is about a millisecond
_MOST_QUICK = 4 * _STEP_BYTES  # of which all may be pairs
_PLAIN_BYTES = 64 << 10  # of records in the plain way that make one part, which is some milliseconds
_STEP_RECORDS = 256

Keyed = tuple[bytes, bytes]
"""What an event's shard is chosen by, `bucket:object`, and its entry."""


class Part(NamedTuple):
    """Some of the events, in order, how many members of their records an entry could not hold, and how many test events
    there were beside them."""

    events: list[RoutedEvent]
    dropped: int
    tests: int = 0


class _Step(NamedTuple):
    """A part on its way."""

    keyed: list[Keyed]
    dropped: int = 0
    tests: int = 0


def place(body: bytes, topic: Topic, *, ndjson: bool, most: int, created: Time, seed: bytes) -> Iterator[Part]:
    """Encode the records of a body as entries of a topic, and choose their shards.

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
        count += len(step.keyed)
        tests += step.tests
        if count > most:
            raise TooManyEvents(most, None, "", f"more than {most} records in one request")
        yield Part(_routed(step.keyed, topic.shards), step.dropped, step.tests)
    if not count and not tests:
        raise MalformedEvent(None, None, "", "there are no records")


_new_routed_event: Callable[[Iterable[object]], RoutedEvent] = partial(tuple.__new__, RoutedEvent)
"""Makes one from its three parts, unchecked: in half the time."""


def _routed(keyed: Sequence[Keyed], shards: int) -> list[RoutedEvent]:
    if not keyed:
        return []
    keys, entries = zip(*keyed, strict=True)
    return list(map(_new_routed_event, zip(speedups.shards(keys, shards), keys, entries, strict=True)))


def _from_lines(body: bytes, encoder: _Encoder) -> Iterator[_Step]:
    """The events of a body of lines."""
    record, line, start = 0, 1, 0
    while start < len(body):  # the lines of a part are counted only where another part comes behind it
        end = body.find(b"\n", start + _STEP_BYTES) + 1 if len(body) - start > _STEP_BYTES else 0
        text = body[start : end or len(body)]
        if step := encoder.quick_lines(text, record):
            record += len(step.keyed)
            yield step
        else:
            for step in encoder.plain(s3_bodies.in_lines(text.split(b"\n"), record, line)):
                record += len(step.keyed)
                yield step
        start += len(text)
        if start < len(body):
            line += text.count(b"\n")


_HEAD, _NEXT, _TAIL = b'{"Records":[', b'},{"eventVersion":', b"]}"


def _from_document(body: bytes, encoder: _Encoder) -> Iterator[_Step]:
    """The events of a document."""
    done = start = 0
    while True:
        # In JSON this stands in no text. Where it stands within a record, the piece before it is no list of records.
        end = body.find(_NEXT, start + _STEP_BYTES) + 1 if len(body) - start > _STEP_BYTES else 0
        piece = (_HEAD if start else b"") + body[start : end or None] + (_TAIL if end else b"")
        step = encoder.quick_document(piece, done, is_whole=not (start or end))
        if not step:
            break
        yield step
        if not end:
            return
        done, start = done + len(step.keyed), end + 1
    yield from encoder.plain(s3_bodies.in_document(body, done, start))


class _Encoder:
    """Makes entries of one topic, all created at one time, each with what its shard is chosen by."""

    __slots__ = ("_compiled", "_created", "_literal_keys", "_opaque", "_seed", "_tail")

    def __init__(self, topic: Topic, created: Time, seed: bytes) -> None:
        self._created, self._seed = created, seed
        self._opaque = topic.opaque_data or b""
        self._literal_keys, tail, limits = _of_topic(topic)
        self._tail = tail + _TIME.pack(*created) + limits
        self._compiled = None
        if speedups.RecordEncoder:
            self._compiled = speedups.RecordEncoder(created, seed, self._opaque, self._tail, self._literal_keys)

    def plain(self, found: s3_bodies.Records) -> Iterator[_Step]:
        """The entries of records, and how many of their members were dropped. Raises MalformedEvent."""
        keyed: list[Keyed] = []
        dropped = tests = size = 0
        for each in found:
            if isinstance(each, Found):
                event, more = s3_records.read(each, self._created, self._seed, literal_keys=self._literal_keys)
                keyed.append((b"%b:%b" % (event.bucket_name, event.object_key), self._plain_entry(event)))
                dropped, size = dropped + more, size + each.size
            elif each is not None:
                tests += 1
            if each is None or size >= _PLAIN_BYTES or len(keyed) == _STEP_RECORDS:
                yield _Step(keyed, dropped, tests)
                keyed, dropped, tests, size = [], 0, 0, 0
        yield _Step(keyed, dropped, tests)

    def _plain_entry(self, e: S3Event) -> bytes:
        head = _strings(e.event_version, e.event_source, e.aws_region)
        body = _strings(
            e.event_name, e.user_identity, e.source_ip_address, e.x_amz_request_id, e.x_amz_id_2,
            e.s3_schema_version, e.configuration_id, e.bucket_name, e.bucket_owner_identity, e.bucket_arn, e.object_key,
        )  # fmt: skip
        etag = _strings(e.object_etag, e.object_version_id, e.object_sequencer, e.event_id, e.bucket_id)
        pairs = Writer().pairs(e.metadata).pairs(e.tags).finish() if e.metadata or e.tags else _NO_PAIRS
        opaque = _strings(self._opaque or e.opaque_data)
        return self._entry((head, _TIME.pack(*e.event_time), body, _U64.pack(e.object_size), etag, pairs, opaque))

    def _entry(self, fields: tuple[bytes, ...]) -> bytes:
        event, tail = b"".join(fields), self._tail
        length = len(event)
        return b"".join((_HEADERS.pack(3, 1, 6 + length + len(tail), 4, 1, length), event, tail))

    def quick_lines(self, text: bytes, record: int) -> _Step | None:
        """The entries of lines, of which the first has this record; None where one of them has to go the plain way."""
        if self._compiled and len(text) <= _MOST_QUICK and (found := self._compiled.lines(text, record)):
            return _Step(*found)
        keyed = self.quick(_quick_lines(text))
        return _Step(keyed) if keyed else None

    def quick_document(self, text: bytes, record: int, *, is_whole: bool) -> _Step | None:
        """The entries of a document, or of some of its records in the form of one."""
        if self._compiled and len(text) <= _MOST_QUICK and (found := self._compiled.document(text, record, is_whole)):
            return _Step(*found)
        keyed = self.quick(_quick_document(text))
        return _Step(keyed) if keyed else None

    def quick(self, records: Sequence[_Record]) -> list[Keyed]:
        """The entries of records; none when one of them has to go the plain way."""
        entry = self._quick_entry
        try:
            return [entry(record) for record in records]
        except (_Unusual, ValueError, IndexError):  # what the plain way refuses, and a text beyond the table of lengths
            return []

    def _quick_entry(self, r: _Record) -> Keyed:
        # The source, the actor and the bucket hardly vary, so that what is encoded of them is remembered.
        source, is_ceph = _source(r.eventVersion, r.eventSource, r.awsRegion)
        actor = _actor(r.eventName, bytes(r.userIdentity), bytes(r.requestParameters))
        response, s3 = r.responseElements, r.s3
        bucket, prefix, bucket_id = _bucket(response.host, s3.s3SchemaVersion, s3.configurationId, bytes(s3.bucket))

        time = r.eventTime
        if len(time) != 27 or time[19] != "." or time[26] != "Z":
            raise _Unusual
        sec, micros = second(time[:19]), time[20:26]
        if sec >> 32 or not (micros.isdigit() and micros.isascii()):
            raise _Unusual

        thing = s3.object
        name = thing.key
        if not (is_ceph or self._literal_keys) and ("%" in name or "+" in name):
            raise _Unusual
        key, size = name.encode(), thing.size
        if not 0 < len(key) <= MOST_KEY or size >> 63 or not r.eventId:
            raise _Unusual
        request_id, etag, version_id = response.request.encode(), thing.eTag.encode(), thing.versionId.encode()
        sequencer, event_id = thing.sequencer.encode(), r.eventId.encode()
        pairs = _lists(thing.metadata, thing.tags) if thing.metadata or thing.tags else _NO_PAIRS
        opaque = self._opaque or r.opaqueData.encode()

        counted = _COUNTED
        return prefix + key, self._entry((
            source, _TIME.pack(sec, int(micros) * 1000), actor,
            counted[len(request_id)], request_id, bucket,
            counted[len(key)], key, _U64.pack(size), counted[len(etag)], etag,
            counted[len(version_id)], version_id, counted[len(sequencer)], sequencer, counted[len(event_id)], event_id,
            bucket_id, pairs, counted[len(opaque)], opaque,
        ))  # fmt: skip


_U64 = Struct("<Q")
_TIME = Struct("<II")
_LIMITS = Struct("<III")
_HEADERS = Struct("<BBIBBI")  # of the entry, then of the event inside
_NO_PAIRS = bytes(8)
_COUNTED = tuple(n.to_bytes(4, "little") for n in range(2049))


def _has_literal_keys(target: Target) -> bool:
    try:
        return has_literal_keys(target)
    except EndpointMisconfigured:  # no command stores such a topic; its keys are read as S3 writes them
        return False


@lru_cache(maxsize=256)
def _of_topic(topic: Topic) -> tuple[bool, bytes, bytes]:
    """Whether a topic's keys are literal, and what stands behind the event in each of its entries: up to the time of
    creation, and behind that."""
    target = topic.target
    tail = _strings(*(_bytes(text) for text in (target.uri, target.args, target.topic)))
    return _has_literal_keys(target), tail, _LIMITS.pack(*_limits(topic))


def _limits(topic: Topic) -> tuple[int, int, int]:
    ttl, retries, sleep = topic.time_to_live_s, topic.max_retries, topic.retry_sleep_s
    return (UNSET if ttl is None else ttl, UNSET if retries is None else retries, UNSET if sleep is None else sleep)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _strings(*texts: bytes) -> bytes:
    """Texts as an entry has them."""
    return b"".join([part for text in texts for part in (len(text).to_bytes(4, "little"), text)])


# ------------------------------------------------------------------------------ records as radosgw writes them


class _Pair(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: str
    val: str


class _Object(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: str
    size: int
    eTag: str  # noqa: N815  # the format's own names, here and below
    versionId: str  # noqa: N815
    sequencer: str
    metadata: list[_Pair]
    tags: list[_Pair]


class _S3(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    s3SchemaVersion: str  # noqa: N815
    configurationId: str  # noqa: N815
    bucket: msgspec.Raw
    object: _Object


class _Response(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    request: str = msgspec.field(name="x-amz-request-id")
    host: str = msgspec.field(name="x-amz-id-2")


class _Record(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record that has every member that radosgw writes, and no other."""

    eventVersion: str  # noqa: N815
    eventSource: str  # noqa: N815
    awsRegion: str  # noqa: N815
    eventTime: str  # noqa: N815
    eventName: str  # noqa: N815
    userIdentity: msgspec.Raw  # noqa: N815
    requestParameters: msgspec.Raw  # noqa: N815
    responseElements: _Response  # noqa: N815
    s3: _S3
    eventId: str  # noqa: N815
    opaqueData: str  # noqa: N815


_NAMES = 31  # in a record, without those of metadata and tags


class _Document(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    Records: list[_Record]


_decode_lines = msgspec.json.Decoder(_Record).decode_lines
_decode_document = msgspec.json.Decoder(_Document).decode
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Unusual(Exception):
    """A record that the quick way does not know."""


def _quick_lines(text: bytes) -> list[_Record]:
    """The records of lines, where all of them are as radosgw writes them, one a line; else none."""
    if len(text) > _MOST_QUICK:
        return []
    try:
        records = _decode_lines(text)
    except _UNDECODABLE:
        return []
    # msgspec takes a record of several lines, and several records of a line. Within a record no `}` precedes a `{`.
    between = len(records) - 1
    is_one_a_line = text.count(b"}\n{") == between == text.count(b"\n") - text.endswith(b"\n")
    return records if is_one_a_line and _names_stand_once(text, records, 0) else []


def _quick_document(body: bytes) -> list[_Record]:
    """The records of a document, where all of them are as radosgw writes them; else none."""
    if len(body) > _MOST_QUICK:
        return []
    try:
        records = _decode_document(body).Records
    except _UNDECODABLE:
        return []
    return records if b"\n" not in body and _names_stand_once(body, records, 1) else []


def _names_stand_once(text: bytes, records: Sequence[_Record], more: int) -> bool:
    """Whether no name stands twice in an object, which msgspec passes over.

    All names are known to be there, so that it is enough to count them. That needs a text without blanks before its
    colons; and a text that has what looks like the end of a name inside a string is left to the plain way.
    """
    for record in records:
        thing = record.s3.object
        if thing.metadata or thing.tags:
            more += 2 * (len(thing.metadata) + len(thing.tags))
    return (
        text.count(b'":') == _NAMES * len(records) + more
        and b'" :' not in text
        and b"\t" not in text
        and b"\r" not in text
    )


# What is remembered of a record's parts was read in the plain way once. A part that is not exactly as radosgw writes
# it, or too long to be remembered, is unusual.

_MOST_REMEMBERED = 2048  # bytes


@lru_cache(maxsize=256)
def _source(version: str, source: str, region: str) -> tuple[bytes, bool]:
    return _remembered(version.encode(), source.encode(), region.encode()), source == "ceph:s3"


@lru_cache(maxsize=1024)
def _actor(name: str, user: bytes, request: bytes) -> bytes:
    users, requests = _reader(user), _reader(request)
    principal, address = users.text("principalId"), requests.text("sourceIPAddress")
    if not (name and not has_control(name.encode()) and users.is_just(1) and requests.is_just(1)):
        raise _Unusual
    return _remembered(name.encode(), principal, address)


@lru_cache(maxsize=1024)
def _bucket(host: str, schema: str, configuration: str, bucket: bytes) -> tuple[bytes, bytes, bytes]:
    """The host up to the bucket's ARN; what its keys begin with; its id."""
    reader = _reader(bucket)
    owner, name = reader.inner("ownerIdentity"), reader.text("name", MOST_BUCKET, required=True)
    principal, arn, number = owner.text("principalId"), reader.text("arn"), reader.text("id")
    if not (reader.is_just(4) and owner.is_just(1)):
        raise _Unusual
    texts = (host.encode(), schema.encode(), configuration.encode(), name, principal, arn)
    return _remembered(*texts), name + b":", _remembered(number)


def _reader(json: bytes) -> Reader:
    if len(json) > _MOST_REMEMBERED:
        raise _Unusual
    found = s3_bodies.only(json)
    return Reader(found, "", found.value)


def _remembered(*texts: bytes) -> bytes:
    if sum(map(len, texts)) > _MOST_REMEMBERED:
        raise _Unusual
    return _strings(*texts)


def _lists(metadata: Sequence[_Pair], tags: Sequence[_Pair]) -> bytes:
    return _list(metadata, sorted_metadata) + _list(tags, sorted_tags)


def _list(pairs: Sequence[_Pair], in_order: Callable[[Pairs], Pairs]) -> bytes:
    if len(pairs) > MOST_PAIRS:
        raise _Unusual
    texts: Pairs = tuple([(pair.key.encode(), pair.val.encode()) for pair in pairs])
    if len(texts) > 1:
        texts = in_order(texts)
    counted = _COUNTED
    parts = [counted[len(texts)]]
    for key, value in texts:
        parts += (counted[len(key)], key, counted[len(value)], value)
    return b"".join(parts)
