"""An entry to its record by what repeats: the daemon's hot path, one pass over the entry, no values in between.

Three regions of an entry are the same for all events of a bucket, a kind or a topic, so their bytes are kept with the
JSON that they make (`codec/rendering_cached.py`), and an entry that has the very same bytes at that place takes the
JSON as it is. `_compiled.pyx` is the same for a C compiler; both have the same tests. Change them together.
"""

from __future__ import annotations

from binascii import Error as HexError
from binascii import unhexlify
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from remora.codec import rendering_plain
from remora.codec.sequence import number_of
from remora.codec.trace_context import traceparent_of
from remora.model.errors import CodecError
from remora.model.record import Record

Rendered = tuple[bytes, bytes, bytes, int, int]
"""The record's key, its body, the event's id, its age zero and its own time, both in ns since the epoch."""

_HEADERS = Struct("<BBIBBI").unpack_from  # of the entry, then of the event inside
_U32 = Struct("<I").unpack_from
_TIME = Struct("<II").unpack_from
_SIZE_ETAG = Struct("<QI").unpack_from  # the object's size, the length of its etag
_PLAIN_VERSION = Struct("<II16sI").unpack_from  # no version id; a sequencer of 16; the length of the event id

_new = tuple.__new__  # Record's own takes twice as long

_TO_ESCAPE = bytes([*range(0x20), 0x7F, ord('"'), ord("\\")])
_BEHIND_STRINGS = (0, 0, 8, 20)  # bytes behind `arn_topic`, by the version of the entry


class Bucket(NamedTuple):
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


class FastRendering:
    """Makes records of entries whose regions are known: `sources` (eventVersion .. awsRegion), `actors` (eventName ..
    sourceIPAddress) and `buckets` (x_amz_id_2 .. bucket_arn), by their bytes. Its maker may add to them."""

    def __init__(
        self, sources: Mapping[bytes, bytes], actors: Mapping[bytes, bytes], buckets: Mapping[bytes, Bucket]
    ) -> None:
        self._sources, self._actors, self._buckets = sources, actors, buckets
        self._source, self._source_json = b"", b""  # the one last seen; rarely is there more than one
        self._second = -1
        self._before = self._after = b""

    def render(
        self,
        entries: Sequence[bytes],
        positions: Sequence[bytes],
        opaque_json: bytes | None,
        plain: Callable[[bytes], Rendered],
        sequence: bytes = b"",
    ) -> tuple[Sequence[Record], dict[int, CodecError]]:
        """The records of a listing in order, and the CodecErrors by place that `plain` has raised.

        It is asked where the plain way must decide. `positions` are one more than entries; `opaque_json` takes the
        place of the entries' own; `sequence` stands before the number of each entry, or is empty where these have none.
        """
        records: list[Record] = []
        refused: dict[int, CodecError] = {}
        render, new = self._render, _new
        for i, entry in enumerate(entries):
            try:
                made = render(entry, opaque_json)
            except (struct_error, IndexError):
                made = None
            if made is None:
                try:
                    made = plain(entry)
                except CodecError as exc:
                    refused[i] = exc
                    continue
            key, body, event_id, created_ns, event_ns = made
            numbered = _numbered(sequence, entry) if sequence else b""
            at, behind, trace = positions[i], positions[i + 1], traceparent_of(entry)
            records.append(new(Record, (key, body, event_id, created_ns, at, behind, i, numbered, trace, event_ns)))
        return records, refused

    def _render(self, d: bytes, new_opaque_json: bytes | None) -> Rendered | None:
        """The record, or None when the plain way must decide; that is also meant by struct's error and IndexError.

        Reads run unchecked, and may end behind the bytes or the event: positions only ever grow, so that the
        comparison of the last one with the event's end, and of that with the entry's, finds it."""
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
            self._before, self._after = rendering_plain.second_text(sec)
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
            metadata, p = pairs(d, p + len(bucket_id), strict=True)
            tags, p = pairs(d, p, strict=False)
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
        event_ns = sec * 1_000_000_000 + nsec
        created_ns = created_ns or _sequencer_ns(sequencer) or event_ns

        if new_opaque_json is not None and version > 2:
            opaque_json = new_opaque_json
        record_key, raw_id = key_prefix + key, event_id
        varying = b"".join((request_id, key, etag, version_id, sequencer, event_id))
        if len(varying.translate(None, _TO_ESCAPE)) != len(varying):
            escape = rendering_plain.escape
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
        return record_key, body, raw_id, created_ns, event_ns

    def _find_source(self, d: bytes) -> bool:
        q = 16 + d[12]
        q += 4 + d[q]
        q += 4 + d[q]
        known = self._sources.get(d[12:q])
        if known is None:
            return False
        self._source, self._source_json = d[12:q], known
        return True


def _numbered(sequence: bytes, entry: bytes) -> bytes:
    """The number behind an entry as the record's header has it; empty where there is none."""
    number = number_of(entry)
    return b"" if number is None else b"%b%d" % (sequence, number)


_PAIR = b'{"key":"%b","val":"%b"}'
_PAIRS = [b",".join([_PAIR] * count) for count in range(33)]


def pairs(d: bytes, p: int, *, strict: bool) -> tuple[bytes, int]:
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
        texts = [rendering_plain.escape(text) for text in texts]
    return (_PAIRS[count] if count < len(_PAIRS) else b",".join([_PAIR] * count)) % tuple(texts), p


def _sequencer_ns(sequencer: bytes) -> int:
    if len(sequencer) != 16:
        return 0
    try:
        sec, nsec = _TIME(unhexlify(sequencer))
    except HexError:
        return 0
    return int(sec * 1_000_000_000 + nsec)
