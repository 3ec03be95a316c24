"""Records as they stand in a Kafka record batch of format 2 (Kafka's documentation, "Record").

A record begins with two zero bytes here: no attributes, and no milliseconds behind the time of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from remora.codec import murmur2
from remora.codec.trace_context import TRACEPARENT
from remora.model.record import Record

# Header names are part of what consumers rely on: a reader of the topic proves with them that nothing is
# missing, doubled or reordered.
SHARD, POSITION, NEXT, EVENT_ID = "remora-shard", "remora-pos", "remora-next", "remora-event-id"
SEQUENCE = "remora-seq"
AFTER = "remora-after"

FRAME_BYTES = 23
"""The most that a record has besides key, value and headers, lengths included."""

HEADER_BYTES = 10
"""The most that the lengths of a header's name and value take."""

RECORD_BYTES = FRAME_BYTES + sum(HEADER_BYTES + len(name) for name in (SHARD, POSITION, NEXT, EVENT_ID))
"""The most that an event's record has besides key, value and the values of its headers."""

SEQUENCE_BYTES = HEADER_BYTES + len(SEQUENCE)
"""The most that the header of its number in the topic adds, besides the number."""

TRACE_BYTES = HEADER_BYTES + len(TRACEPARENT)
"""The most that the header of its trace context adds, besides the context."""


AFTER_BYTES = HEADER_BYTES + len(AFTER)
"""The most that the header of where the shards before this one ended adds, besides these ends."""


def varint(number: int) -> bytes:
    """A number from 0 on as Kafka has it: signed, so doubled, and seven bits a byte, the low ones first."""
    number <<= 1
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


_SMALL = [varint(number) for number in range(1 << 12)]


def _name(name: str) -> bytes:
    return varint(len(name)) + name.encode()


BEFORE_NEXT, BEFORE_EVENT_ID = _name(NEXT), _name(EVENT_ID)
BEFORE_SEQUENCE, BEFORE_TRACE = _name(SEQUENCE), _name(TRACEPARENT)
_SHARD, _POSITION = _name(SHARD), _name(POSITION)


def before_position(shard: bytes, headers: int = 4) -> bytes:
    """What stands between value and position in all records of a queue with `headers` headers."""
    return varint(headers) + _SHARD + varint(len(shard)) + shard + _POSITION


def encode_events(shard: bytes, prefix: bytes, records: Sequence[Record], first: int) -> bytes:
    """Events' records one behind the other, the first of which has this place in its batch.

    `shard` names their queue; `prefix` is its incarnation with a colon, which stands in front of every position.
    """
    common, before, small = before_position(shard), len(prefix), _SMALL
    made: list[bytes] = []
    for place, event in enumerate(records, first):
        key, body, event_id, _, position, next_position, _, sequence, trace, _ = event
        if sequence or trace:
            made.append(encode_event(shard, prefix, event, place))
            continue
        try:
            record = b"\0\0%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b%b" % (
                small[place],
                small[len(key)],
                key,
                small[len(body)],
                body,
                common,
                small[before + len(position)],
                prefix,
                position,
                BEFORE_NEXT,
                small[before + len(next_position)],
                prefix,
                next_position,
                BEFORE_EVENT_ID,
                small[len(event_id)],
                event_id,
            )
            made += (small[len(record)], record)
        except IndexError:  # something is large
            made.append(encode_event(shard, prefix, event, place))
    return b"".join(made)


def encode_event(
    shard: bytes, prefix: bytes, event: Record, place: int, further: Sequence[tuple[str, bytes]] = ()
) -> bytes:
    """An event's record of any size, with its number and its trace context where it has them, and `further` headers."""
    headers = [(SHARD, shard), (POSITION, prefix + event.position), (NEXT, prefix + event.next_position)]
    headers += [(EVENT_ID, event.event_id), *([(SEQUENCE, event.sequence)] if event.sequence else [])]
    headers += [(TRACEPARENT, event.traceparent)] if event.traceparent else []
    return encode_record(place, event.key, event.body, [*headers, *further])


def encode_with(
    shard: bytes, prefix: bytes, records: Sequence[Record], first: int, further: Sequence[Sequence[tuple[str, bytes]]]
) -> bytes:
    """As `encode_events`, each record with its `further` headers behind the usual ones."""
    return b"".join(
        encode_event(shard, prefix, event, place, more)
        for place, (event, more) in enumerate(zip(records, further, strict=True), first)
    )


def in_batches(
    records: Sequence[Record], partitions: int, around: int, room: int
) -> list[tuple[int, list[Record], int]]:
    """Records by partition, each with the most bytes that they take: as many together as `room` bytes hold, or one.

    `around` is what a record takes besides its own key, value, positions, event id, number and trace context. In the
    order in which each was begun; records of a partition keep theirs.
    """
    batches: list[tuple[int, list[Record], int]] = []
    last: dict[int, tuple[int, int]] = {}  # the batch that a partition's next record may join, and its bytes
    lanes = murmur2.partitions([record[0] for record in records], partitions)
    for record, lane in zip(records, lanes, strict=True):
        key, body, event_id, _, position, next_position, _, sequence, trace, _ = record
        nbytes = around + len(key) + len(body) + len(event_id) + len(position) + len(next_position)
        if sequence:
            nbytes += SEQUENCE_BYTES + len(sequence)
        if trace:
            nbytes += TRACE_BYTES + len(trace)
        if lane in last:
            at, before = last[lane]
            if before + nbytes <= room:
                batches[at][1].append(record)
                last[lane] = at, before + nbytes
                continue
            batches[at] = lane, batches[at][1], before
        last[lane] = len(batches), nbytes
        batches.append((lane, [record], nbytes))
    for lane, (at, nbytes) in last.items():
        batches[at] = lane, batches[at][1], nbytes
    return batches


def encode_record(place: int, key: bytes | None, value: bytes, headers: Sequence[tuple[str, bytes]]) -> bytes:
    """Any record; a key of None is none at all."""
    parts = [b"\0\0", varint(place), b"\x01" if key is None else varint(len(key)) + key, varint(len(value)), value]
    parts.append(varint(len(headers)))
    for name, text in headers:
        encoded = name.encode()
        parts += [varint(len(encoded)), encoded, varint(len(text)), text]
    record = b"".join(parts)
    return varint(len(record)) + record
