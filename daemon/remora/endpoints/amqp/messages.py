"""Records and dead letters as messages of AMQP. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from remora.codec.kafka_records import AFTER, EVENT_ID, NEXT, POSITION, SEQUENCE, SHARD
from remora.codec.trace_context import TRACEPARENT
from remora.endpoints.amqp.frames import BYTES, MOST_SHORT_BYTES, MessageContent, make_content
from remora.endpoints.cloud_events import attributes
from remora.endpoints.letter_headers import letter_headers, omitted
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
