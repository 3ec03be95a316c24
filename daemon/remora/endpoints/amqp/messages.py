"""Records and dead letters as messages of AMQP, and batches of them for each lane. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from remora.codec.kafka_records import AFTER, EVENT_ID, NEXT, POSITION, SEQUENCE, SHARD
from remora.codec.speedups import in_batches
from remora.codec.trace_context import TRACEPARENT
from remora.endpoints.amqp.frames import BYTES, MOST_SHORT_BYTES, MessageContent, make_content
from remora.endpoints.headers import HandoverNote, attributes, letter_headers, omitted
from remora.model.record import DeadLetter, Record

# The names of the headers are those of Kafka's records, so that one sentence of the guarantees covers both.
_SHARD, _POSITION, _NEXT, _EVENT_ID = SHARD.encode(), POSITION.encode(), NEXT.encode(), EVENT_ID.encode()
_SEQUENCE, _TRACEPARENT, _AFTER = SEQUENCE.encode(), TRACEPARENT.encode(), AFTER.encode()


@dataclass(frozen=True, slots=True)
class MessageOrigin:
    """The queue that messages come from. `prefix` is its incarnation with a colon, in front of every position.

    With `cloudevents` its messages have the attributes of CloudEvents among their headers.
    """

    shard: bytes
    prefix: bytes
    cloudevents: bool = False

    def message_id(self, position: bytes) -> bytes:
        """What names an entry for ever: `<shard>/<incarnation>:<pos>`, or a digest of that where it is too long."""
        name = self.shard + b"/" + self.prefix + position
        return name if len(name) <= MOST_SHORT_BYTES else hashlib.sha256(name).hexdigest().encode()

    def content(self, record: Record, after: bytes = b"") -> MessageContent:
        """The message of an event; `after` is what its first one says of the shards before."""
        event_id = self.shard + b"/" + self.prefix + record.position
        further = attributes(record, event_id) if self.cloudevents else []
        headers = (
            (_SHARD, self.shard),
            (_POSITION, self.prefix + record.position),
            (_NEXT, self.prefix + record.next_position),
            (_EVENT_ID, record.event_id),
            *([(_SEQUENCE, record.sequence)] if record.sequence else []),
            *([(_TRACEPARENT, record.traceparent)] if record.traceparent else []),
            *([(_AFTER, after)] if after else []),
            # CloudEvents' application properties, whose place headers have in AMQP 0-9-1.
            *((b"cloudEvents:" + name.encode(), text) for name, text in further),
        )
        return make_content(self.message_id(record.position), headers, record.body)


def letter_content(letter: DeadLetter, most_bytes: int | None = None) -> MessageContent:
    """The message of a dead letter: the entry as its queue held it, and in headers everything that is known of it.

    An entry of more than `most_bytes` is left out, and a header tells how many bytes it has. The store keeps them.
    """
    origin = MessageOrigin(letter.queue.encode(), letter.incarnation.encode() + b":")
    headers = letter_headers(letter)
    body = letter.raw
    if most_bytes is not None and len(body) > most_bytes:
        headers.append(omitted(body))
        body = b""
    name = hashlib.sha256(b"letter/" + origin.message_id(letter.position.encode())).hexdigest().encode()
    return make_content(name, headers, body, BYTES)


ROOM = 1 << 40
"""All records of a lane make one batch, whatever their size."""


@dataclass(slots=True, eq=False)
class AmqpBatch:
    """Records of one lane."""

    lane: int
    records: Sequence[Record]

    def __len__(self) -> int:
        return len(self.records)


class MessagePacker:
    """Sorts records by the hash of their key into `lanes`, and refuses those that the broker will not take."""

    def __init__(self, origin: MessageOrigin, lanes: int) -> None:
        self.lanes = lanes
        self._origin = origin
        self.note = HandoverNote()

    def pack(
        self, records: Sequence[Record], frame_bytes: int, message_bytes: int | None
    ) -> tuple[list[AmqpBatch], list[tuple[Record, str]]]:
        """Batches in the order in which each was begun, and the records that are too large, with why.

        `frame_bytes` bounds the header of a message, `message_bytes` its body where the broker's limit is known.
        """
        refused: dict[int, tuple[Record, str]] = {}
        is_long = self._origin.cloudevents  # keys and buckets stand in the attributes
        for at, record in enumerate(records):
            if message_bytes is not None and len(record.body) > message_bytes:
                refused[at] = record, f"{len(record.body)} bytes, more than the broker's max_message_size"
            elif (is_long or len(record.event_id) > 1024) and self._origin.content(record).header_bytes > frame_bytes:
                refused[at] = record, f"its headers take more than the broker's frame_max {frame_bytes}"
        taken = [each for at, each in enumerate(records) if at not in refused] if refused else records
        if self.note.is_pending and taken:
            self.note.goes_with(taken[0], frame_bytes - self._origin.content(taken[0]).header_bytes)
        batches = [AmqpBatch(lane, members) for lane, members, _ in in_batches(taken, self.lanes, 0, ROOM)]
        return batches, list(refused.values())
