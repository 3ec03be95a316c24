"""Records and dead letters as messages of NATS. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from remora.codec.kafka_records import AFTER, EVENT_ID, NEXT, POSITION, SEQUENCE, SHARD
from remora.codec.trace_context import TRACEPARENT
from remora.endpoints.headers import header_value, letter_headers, omitted
from remora.model.record import DeadLetter, Record

MESSAGE_ID = b"Nats-Msg-Id"
EXPECTED_STREAM = b"Nats-Expected-Stream"

# The names of the headers are those of Kafka's records, so that one sentence of the guarantees covers both.
_SHARD, _POSITION, _NEXT, _EVENT_ID = SHARD.encode(), POSITION.encode(), NEXT.encode(), EVENT_ID.encode()
_SEQUENCE, _TRACEPARENT, _AFTER = SEQUENCE.encode(), TRACEPARENT.encode(), AFTER.encode()


class NatsMessage(NamedTuple):
    """What is published: a subject, headers as they travel, and a body."""

    subject: bytes
    headers: bytes
    body: bytes

    @property
    def nbytes(self) -> int:
        """What limits of servers and streams count."""
        return len(self.headers) + len(self.body)

    def publish(self, reply: bytes) -> bytes:
        """The operation that has it stored; the acknowledgement comes to `reply`."""
        head = len(self.headers)
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
            self.subject, reply, head, head + len(self.body), self.headers, self.body,
        )  # fmt: skip


def _headers(lines: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % (name, header_value(value)) for name, value in lines) + b"\r\n"


class MessageSource:
    """The queue that messages come from, and the stream that they go to."""

    def __init__(self, queue: str, incarnation: str, stream: str) -> None:
        self.shard = header_value(queue.encode())
        self.prefix = incarnation.encode() + b":"
        self._head = b"NATS/1.0\r\n%b: %b\r\n%b: %b\r\n%b: " % (
            EXPECTED_STREAM, stream.encode(), _SHARD, self.shard, MESSAGE_ID,
        )  # fmt: skip

    def message_id(self, position: bytes) -> bytes:
        """What names an entry for ever, and what the stream knows a copy by: `<shard>/<incarnation>:<position>`."""
        return b"%b/%b%b" % (self.shard, self.prefix, position)

    def message(self, record: Record, subject: bytes, after: bytes = b"") -> NatsMessage:
        """The message of an event; `after` is what its shard's first one says of the shards before."""
        _, body, event_id, _, position, next_position, _, sequence, trace, _ = record
        prefix = self.prefix
        headers = b"%b%b/%b%b\r\n%b: %b%b\r\n%b: %b%b\r\n%b: %b\r\n%b%b%b\r\n" % (
            self._head, self.shard, prefix, position,
            _POSITION, prefix, position,
            _NEXT, prefix, next_position,
            _EVENT_ID, header_value(event_id),
            b"%b: %b\r\n" % (_SEQUENCE, sequence) if sequence else b"",
            b"%b: %b\r\n" % (_TRACEPARENT, trace) if trace else b"",
            b"%b: %b\r\n" % (_AFTER, after) if after else b"",
        )  # fmt: skip
        return NatsMessage(subject, headers, body)


def letter_message(letter: DeadLetter, subject: bytes, most_bytes: int) -> tuple[bytes, NatsMessage]:
    """The id and the message of a dead letter: the entry as its queue held it, and in headers all that is known of it.

    Where that is more than `most_bytes` the entry is left out, and a header says how many bytes it has.
    """
    place = f"letter/{letter.queue}/{letter.incarnation}:{letter.position}".encode()
    message_id = hashlib.sha256(place).hexdigest().encode()
    lines = [(MESSAGE_ID, message_id), *letter_headers(letter)]
    made = NatsMessage(subject, _headers(lines), letter.raw)
    if made.nbytes > most_bytes:
        made = NatsMessage(subject, _headers([*lines, omitted(letter.raw)]), b"")
    return message_id, made
