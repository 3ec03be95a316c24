"""What is delivered of an event, the fast way: straight from an entry's bytes to its record.

This is the daemon's hot path: one pass over the entry, no values in between. It rests on what repeats. Three
regions of an entry are the same for all events of a bucket, a kind or a topic, so their bytes are kept with the
JSON that they make, and an entry that has the very same bytes at that place takes the JSON as it is.

Everything unusual (a region not seen before, a format older or newer than today's, malformed bytes) goes the plain
way through `event_entry` and `record`, which decide what is right and raise what is wrong. So a hit is only ever
taken for bytes that were decoded in full once, and a miss costs nothing but time.
"""

from __future__ import annotations

from binascii import Error as HexError
from binascii import unhexlify
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from remora.codec import event_entry, record
from remora.codec.ceph import Writer
from remora.model.entry import Event, EventEntry

Rendered = tuple[bytes, bytes, bytes, int]
"""The record's key, its body, the event's id, and its age zero in ns since the epoch."""

MAX_CACHED_BYTES = 16 << 20
"""When the remembered regions exceed this, all are forgotten and learned anew."""

_MAX_REGION = 8 << 10  # bytes; an entry with larger regions is not remembered
_COST_OF_OBJECTS = 600  # bytes that a region takes beside its contents

_HEADERS = Struct("<BBIBBI").unpack_from  # of the entry, then of the event inside
_U32 = Struct("<I").unpack_from
_TIME = Struct("<II").unpack_from
_SIZE_ETAG = Struct("<QI").unpack_from  # the object's size, the length of its etag
_PLAIN_VERSION = Struct("<II16sI").unpack_from  # no version id; a sequencer of 16; the length of the event id

_TO_ESCAPE = bytes([*range(0x20), 0x7F, ord('"'), ord("\\")])
_BEHIND_STRINGS = (0, 0, 8, 20)  # bytes behind `arn_topic`, by the version of the entry


class _Bucket(NamedTuple):
    """The regions that a bucket's notification repeats, each with its JSON.

    `id` is the encoded bucket id, `tail` the fields from `opaque_data` to `arn_topic`, `attributes` the number
    of its bytes that lie behind the event. `quiet` is both with empty metadata and tags in between, as most
    events have them.
    """

    json: bytes
    key: bytes
    id: bytes
    quiet: bytes
    tail: bytes
    attributes: int
    opaque: bytes

    @property
    def cost(self) -> int:
        """Bytes that it holds."""
        return len(self.json) + len(self.quiet) + len(self.tail) + len(self.opaque)


class Renderer:
    """Makes records of entries. Keep one for long: what it remembers is its speed, and is bounded."""

    def __init__(self) -> None:
        self._sources: dict[bytes, bytes] = {}  # eventVersion .. awsRegion
        self._source, self._source_json = b"", b""  # the one last seen; rarely is there more than one
        self._actors: dict[bytes, bytes] = {}  # eventName .. sourceIPAddress
        self._buckets: dict[bytes, _Bucket] = {}  # x_amz_id_2 .. bucket_arn
        self._opaques: dict[bytes, bytes] = {}
        self._cached_bytes = 0
        self._second = -1
        self._before = self._after = b""

    def render(self, entry: bytes, opaque: bytes | None = None) -> Rendered:
        """The record of one entry; `opaque` as in `record.body`. Raises CodecError."""
        try:
            rendered = self._fast(entry, opaque)
        except (struct_error, IndexError):
            rendered = None
        return self._plain(entry, opaque) if rendered is None else rendered

    def _fast(self, d: bytes, opaque: bytes | None) -> Rendered | None:
        """The record, or None when the plain way must decide.

        Reads run unchecked, and may end behind the bytes or the event: positions only ever grow, so that the
        comparison of the last one with the event's end, and of that with the entry's, finds it.
        """
        version, compat, size, event_version, event_compat, event_size = _HEADERS(d)
        if compat > 3 or event_compat > 4 or event_version < 4:
            return None
        if not (d.startswith(self._source, 12) and self._source) and not self._find_source(d):
            return None

        p = 12 + len(self._source)
        sec, nsec = _TIME(d, p)
        if nsec > 999_999_999:
            return None
        if sec != self._second:
            self._before, self._after = record.second_text(sec)
            self._second = sec

        # Where a region ends is guessed from the lowest byte of each length. A wrong guess does not hit, since
        # only exact regions are in the dictionaries.
        p += 8
        q = p + 4 + d[p]
        q += 4 + d[q]
        q += 4 + d[q]
        actor = self._actors.get(d[p:q])
        if actor is None:
            return None

        p = q + 4 + _U32(d, q)[0]
        request_id = d[q + 4 : p]

        q = p + 4 + d[p]
        q += 4 + d[q]
        q += 4 + d[q]
        q += 4 + d[q]
        q += 4 + d[q]
        q += 4 + d[q]
        bucket = self._buckets.get(d[p:q])
        if bucket is None:
            return None
        bucket_json, key_prefix, bucket_id, quiet, tail, attributes, opaque_json = bucket

        p = q + 4 + _U32(d, q)[0]
        key = d[q + 4 : p]
        object_size, length = _SIZE_ETAG(d, p)
        q = p + 12 + length
        etag = d[p + 12 : q]
        version_length, length, sequencer, id_length = _PLAIN_VERSION(d, q)
        if version_length or length != 16:
            p = q + 4 + version_length
            version_id = d[q + 4 : p]
            q = p + 4 + _U32(d, p)[0]
            sequencer = d[p + 4 : q]
            p = q + 4 + _U32(d, q)[0]
            event_id = d[q + 4 : p]
        else:
            version_id = b""
            p = q + 28 + id_length
            event_id = d[q + 28 : p]

        if d.startswith(quiet, p):
            p += len(quiet)
            lists = b'","metadata":[],"tags":[]}},"eventId":"'
        elif d.startswith(bucket_id, p):
            metadata, p = _pairs(d, p + len(bucket_id), strict=True)
            tags, p = _pairs(d, p, strict=False)
            if not d.startswith(tail, p):
                return None
            p += len(tail)
            lists = b'","metadata":[%b],"tags":[%b]}},"eventId":"' % (metadata, tags)
        else:
            return None

        end = 6 + size
        if p - attributes != 12 + event_size or p + _BEHIND_STRINGS[min(version, 3)] > end or end > len(d):
            return None

        if version > 1:
            created_sec, created_nsec = _TIME(d, p)
            created_ns = created_sec * 1_000_000_000 + created_nsec
        else:
            created_ns = 0
        created_ns = created_ns or _sequencer_ns(sequencer) or sec * 1_000_000_000 + nsec

        if opaque is not None and version > 2:
            opaque_json = self._opaques.get(opaque) or self._learn_opaque(opaque)
        record_key, raw_id = key_prefix + key, event_id
        varying = b"".join((request_id, key, etag, version_id, sequencer, event_id))
        if len(varying.translate(None, _TO_ESCAPE)) != len(varying):
            escape = record.escape
            request_id, key, etag = escape(request_id), escape(key), escape(etag)
            version_id, sequencer, event_id = escape(version_id), escape(sequencer), escape(event_id)
        body = b'%b%b%06d%b%b%b%b%b","size":%d,"eTag":"%b","versionId":"%b","sequencer":"%b%b%b%b' % (
            self._source_json,
            self._before,
            nsec // 1000,
            self._after,
            actor,
            request_id,
            bucket_json,
            key,
            object_size,
            etag,
            version_id,
            sequencer,
            lists,
            event_id,
            opaque_json,
        )
        return record_key, body, raw_id, created_ns

    def _plain(self, data: bytes, opaque: bytes | None) -> Rendered:
        """The record by decoding the entry in full; remembers its regions, which may come again."""
        entry = event_entry.decode(data)
        event = entry.event
        self._learn(entry)
        return record.key(event), record.body(entry, opaque), event.event_id, record.created_ns(entry)

    def _find_source(self, d: bytes) -> bool:
        q = 16 + d[12]
        q += 4 + d[q]
        q += 4 + d[q]
        known = self._sources.get(d[12:q])
        if known is None:
            return False
        self._source, self._source_json = d[12:q], known
        return True

    def _learn(self, entry: EventEntry) -> None:
        event = entry.event
        sources = (event.event_version, event.event_source, event.aws_region)
        actors = (event.event_name, event.user_identity, event.source_ip_address)
        regions = (
            event.x_amz_id_2,
            event.s3_schema_version,
            event.configuration_id,
            event.bucket_name,
            event.bucket_owner_identity,
            event.bucket_arn,
        )
        if max(map(len, sources + actors + regions)) > 0xFF:
            return  # its end would never be guessed
        source, actor, region = _strings(*sources), _strings(*actors), _strings(*regions)
        bucket = _bucket(entry)
        cost = len(region) + bucket.cost
        if cost > _MAX_REGION:
            return
        if self._cached_bytes > MAX_CACHED_BYTES - _COST_OF_OBJECTS - 4 * _MAX_REGION:
            self._forget()
        if source not in self._sources:
            self._sources[source] = self._charged(_source_json(event))
        if actor not in self._actors:
            self._actors[actor] = self._charged(_actor_json(event))
        before = self._buckets.get(region)
        self._cached_bytes += bucket.cost - before.cost if before else _COST_OF_OBJECTS + cost
        self._buckets[region] = bucket

    def _charged(self, json: bytes) -> bytes:
        self._cached_bytes += _COST_OF_OBJECTS + 2 * len(json)  # the key is shorter than the JSON
        return json

    def _forget(self) -> None:
        self._sources.clear()
        self._actors.clear()
        self._buckets.clear()
        self._cached_bytes = 0

    def _learn_opaque(self, opaque: bytes) -> bytes:
        made = _opaque_json(opaque)
        if len(self._opaques) >= 256:
            self._opaques.clear()
        if len(opaque) <= _MAX_REGION:
            self._opaques[opaque] = made
        return made


_PAIR = b'{"key":"%b","val":"%b"}'
_PAIRS = [b",".join([_PAIR] * count) for count in range(33)]


def _pairs(d: bytes, p: int, *, strict: bool) -> tuple[bytes, int]:
    """The JSON of an encoded map inside its brackets, and where the map ends.

    Pairs in an order in which radosgw would not write them (`strict`: or a key twice) are left to the plain
    way: then the end is behind everything, where nothing can follow.
    """
    count, p = _U32(d, p)[0], p + 4
    if not count:
        return b"", p
    texts: list[bytes] = []
    last = b""
    for i in range(count):
        q = p + 4 + _U32(d, p)[0]
        key = d[p + 4 : q]
        p = q + 4 + _U32(d, q)[0]
        if i and (key < last or (strict and key == last)):
            return b"", len(d) + 1
        last = key
        texts.append(key)
        texts.append(d[q + 4 : p])
    varying = b"".join(texts)
    if len(varying.translate(None, _TO_ESCAPE)) != len(varying):
        texts = [record.escape(text) for text in texts]
    return (_PAIRS[count] if count < len(_PAIRS) else b",".join([_PAIR] * count)) % tuple(texts), p


def _sequencer_ns(sequencer: bytes) -> int:
    if len(sequencer) != 16:
        return 0
    try:
        sec, nsec = _TIME(unhexlify(sequencer))
    except HexError:
        return 0
    return int(sec * 1_000_000_000 + nsec)


def _strings(*texts: bytes) -> bytes:
    """Fields as an entry has them."""
    writer = Writer()
    for text in texts:
        writer.string(text)
    return writer.finish()


def _bucket(entry: EventEntry) -> _Bucket:
    event = entry.event
    bucket_id = _strings(event.bucket_id)
    attributes = _strings(entry.push_endpoint, entry.push_endpoint_args, entry.arn_topic)
    tail = _strings(event.opaque_data) + attributes
    return _Bucket(
        json=_bucket_json(event),
        key=record.key_prefix(event),
        id=bucket_id,
        quiet=bucket_id + bytes(8) + tail,
        tail=tail,
        attributes=len(attributes),
        opaque=_opaque_json(event.opaque_data),
    )


# The JSON between the parts that vary. Each piece begins and ends inside a string.


def _source_json(event: Event) -> bytes:
    return b'{"Records":[{"eventVersion":"%b","eventSource":"%b","awsRegion":"%b","eventTime":"' % _escaped(
        event.event_version, event.event_source, event.aws_region
    )


def _actor_json(event: Event) -> bytes:
    return (
        b'","eventName":"%b","userIdentity":{"principalId":"%b"},"requestParameters":{"sourceIPAddress":"%b"},'
        b'"responseElements":{"x-amz-request-id":"'
    ) % _escaped(event.event_name, event.user_identity, event.source_ip_address)


def _bucket_json(event: Event) -> bytes:
    return (
        b'","x-amz-id-2":"%b"},"s3":{"s3SchemaVersion":"%b","configurationId":"%b","bucket":{"name":"%b",'
        b'"ownerIdentity":{"principalId":"%b"},"arn":"%b","id":"%b"},"object":{"key":"'
    ) % _escaped(
        event.x_amz_id_2,
        event.s3_schema_version,
        event.configuration_id,
        event.bucket_name,
        event.bucket_owner_identity,
        event.bucket_arn,
        event.bucket_id,
    )


def _opaque_json(opaque: bytes) -> bytes:
    return b'","opaqueData":"%b"}]}' % record.escape(opaque)


def _escaped(*texts: bytes) -> tuple[bytes, ...]:
    return tuple(map(record.escape, texts))
