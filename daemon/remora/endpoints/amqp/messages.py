"""Records and dead letters as messages of AMQP. Pure."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass

from remora.codec.event_entry import decode
from remora.codec.kafka_records import EVENT_ID, NEXT, POSITION, SEQUENCE, SHARD
from remora.codec.trace_context import TRACEPARENT, traceparent_of
from remora.endpoints.amqp.frames import BYTES, MOST_SHORT_BYTES, Content, make_content
from remora.endpoints.cloud_events import attributes
from remora.model.errors import CodecError
from remora.model.record import DeadLetter, Record

# The names of the headers are those of Kafka's records, so that one sentence of the guarantees covers both.
_SHARD, _POSITION, _NEXT, _EVENT_ID = SHARD.encode(), POSITION.encode(), NEXT.encode(), EVENT_ID.encode()
_SEQUENCE, _TRACEPARENT = SEQUENCE.encode(), TRACEPARENT.encode()

MOST_REASON_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Origin:
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

    def content(self, record: Record) -> Content:
        """The message of an event."""
        event_id = self.shard + b"/" + self.prefix + record.position
        further = attributes(record, event_id) if self.cloudevents else []
        headers = (
            (_SHARD, self.shard),
            (_POSITION, self.prefix + record.position),
            (_NEXT, self.prefix + record.next_position),
            (_EVENT_ID, record.event_id),
            *([(_SEQUENCE, record.sequence)] if record.sequence else []),
            *([(_TRACEPARENT, record.traceparent)] if record.traceparent else []),
            # CloudEvents' application properties, whose place headers have in AMQP 0-9-1.
            *((b"cloudEvents:" + name.encode(), text) for name, text in further),
        )
        return make_content(self.message_id(record.position), headers, record.body)


def letter_content(letter: DeadLetter, most_bytes: int | None = None) -> Content:
    """The message of a dead letter: the entry as its queue held it, and in headers everything that is known of it.

    An entry of more than `most_bytes` is left out, and a header tells how many bytes it has. The store keeps them.
    """
    origin = Origin(letter.queue.encode(), letter.incarnation.encode() + b":")
    headers = [
        (_SHARD, origin.shard),
        (_POSITION, origin.prefix + letter.position.encode()),
        (_NEXT, origin.prefix + letter.next_position.encode()),
        (b"remora-incarnation", letter.incarnation.encode()),
        (b"remora-cause", letter.cause.encode()),
        (b"remora-reason", letter.reason.encode()[:MOST_REASON_BYTES]),
        (b"remora-attempts", b"%d" % letter.attempts),
        (b"remora-first-seen", b"%.3f" % letter.first_seen),
        (b"remora-parked-at", b"%.3f" % letter.parked_at),
        *([(_SEQUENCE, letter.sequence.encode())] if letter.sequence else []),
    ]
    if letter.is_as_committed:
        with suppress(CodecError):  # the letter's cause tells so
            headers.append((_EVENT_ID, decode(letter.raw).event.event_id))
        if trace := traceparent_of(letter.raw):
            headers.append((_TRACEPARENT, trace))
    body = letter.raw
    if most_bytes is not None and len(body) > most_bytes:
        headers.append((b"remora-omitted-bytes", b"%d" % len(body)))
        body = b""
    name = hashlib.sha256(b"letter/" + origin.message_id(letter.position.encode())).hexdigest().encode()
    return make_content(name, headers, body, BYTES)
