"""What is delivered of an event: by what was compiled, straight from an entry's bytes to its record, or the plain way.

What repeats in entries is remembered here with the JSON that it makes, and `_compiled.pyx` makes a record of remembered
regions and what varies. Everything unusual (a region not seen before, a format older or newer than today's, malformed
bytes) goes the plain way through `event_entry` and `rendering_plain`, which decide what is right and raise what is
wrong. So a hit is only ever taken for bytes that were decoded in full once, and a miss costs nothing but time.

Where nothing was compiled, everything goes the plain way, and nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from remora.codec import event_entry, rendering_plain, speedups
from remora.codec.ceph import FieldWriter
from remora.codec.rendering_plain import Rendered
from remora.model.entry import EventEntry, S3Event
from remora.model.errors import CodecError
from remora.model.record import Page, Record

if TYPE_CHECKING:
    from remora.codec._compiled import CompiledRendering

MAX_CACHED_BYTES = 16 << 20
"""When the remembered regions exceed this, all are forgotten and learned anew."""

_MAX_REGION = 8 << 10  # bytes; an entry with larger regions is not remembered
_COST_OF_OBJECTS = 600  # bytes that a region takes beside its contents


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


class Renderer:
    """Makes records of entries. Keep one for long: what it remembers is its speed, and is bounded."""

    def __init__(self, compiled: type[CompiledRendering] | None = speedups.CompiledRendering) -> None:
        self._sources: dict[bytes, bytes] = {}
        self._actors: dict[bytes, bytes] = {}
        self._buckets: dict[bytes, Bucket] = {}
        self._opaques: dict[bytes, bytes] = {}
        self._cached_bytes = 0
        self._compiled = compiled(self._sources, self._actors, self._buckets) if compiled else None

    def render(
        self, page: Page, opaque: bytes | None = None, sequence: bytes = b""
    ) -> tuple[Sequence[Record], dict[int, CodecError]]:
        """The records of a listing in order, and what is wrong with its other entries: `rendering_plain.records`."""
        if self._compiled is None:
            return rendering_plain.records(page, opaque, sequence)
        opaque_json = None if opaque is None else self._opaques.get(opaque) or self._learn_opaque(opaque)
        return self._compiled.render(
            page.entries, page.positions, opaque_json, lambda entry: self._plain(entry, opaque), sequence
        )

    def _plain(self, data: bytes, opaque: bytes | None) -> Rendered:
        """The record by decoding the entry in full; remembers its regions, which may come again."""
        entry = event_entry.decode(data)
        self._learn(entry)
        return rendering_plain.rendered(entry, opaque)

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
            self._sources.clear()
            self._actors.clear()
            self._buckets.clear()
            self._cached_bytes = 0
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

    def _learn_opaque(self, opaque: bytes) -> bytes:
        made = _opaque_json(opaque)
        if len(self._opaques) >= 256:
            self._opaques.clear()
        if len(opaque) <= _MAX_REGION:
            self._opaques[opaque] = made
        return made


def _strings(*texts: bytes) -> bytes:
    """Fields as an entry has them."""
    writer = FieldWriter()
    for text in texts:
        writer.string(text)
    return writer.encoded()


def _bucket(entry: EventEntry) -> Bucket:
    event = entry.event
    bucket_id = _strings(event.bucket_id)
    attributes = _strings(entry.push_endpoint, entry.push_endpoint_args, entry.arn_topic)
    tail = _strings(event.opaque_data) + attributes
    return Bucket(
        json=_bucket_json(event),
        key=rendering_plain.key_prefix(event),
        id=bucket_id,
        quiet=bucket_id + bytes(8) + tail,
        tail=tail,
        attributes=len(attributes),
        opaque=_opaque_json(event.opaque_data),
    )


# The JSON between the parts that vary. Each piece begins and ends inside a string.


def _source_json(event: S3Event) -> bytes:
    return b'{"Records":[{"eventVersion":"%b","eventSource":"%b","awsRegion":"%b","eventTime":"' % _escaped(
        event.event_version, event.event_source, event.aws_region
    )


def _actor_json(event: S3Event) -> bytes:
    return (
        b'","eventName":"%b","userIdentity":{"principalId":"%b"},"requestParameters":{"sourceIPAddress":"%b"},'
        b'"responseElements":{"x-amz-request-id":"'
    ) % _escaped(event.event_name, event.user_identity, event.source_ip_address)


def _bucket_json(event: S3Event) -> bytes:
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
    return b'","opaqueData":"%b"}]}' % rendering_plain.escape(opaque)


def _escaped(*texts: bytes) -> tuple[bytes, ...]:
    return tuple(map(rendering_plain.escape, texts))
