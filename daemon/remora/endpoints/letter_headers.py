"""What is known of a dead letter beside its bytes, as headers of the message that a broker gets. Pure."""

from __future__ import annotations

from contextlib import suppress

from remora.codec.event_entry import decode
from remora.codec.kafka_records import EVENT_ID, NEXT, POSITION, SEQUENCE, SHARD
from remora.codec.trace_context import TRACEPARENT, traceparent_of
from remora.model.errors import CodecError
from remora.model.record import DeadLetter

MOST_REASON_BYTES = 1000


def letter_headers(letter: DeadLetter) -> list[tuple[bytes, bytes]]:
    """Names and values, in their order.

    Shard and positions are written as in the events' own records: a reader that seeks gaps finds the letter of an entry
    that is missing by the same names and values.
    """
    prefix = letter.incarnation.encode() + b":"
    headers = [
        (SHARD.encode(), letter.queue.encode()),
        (POSITION.encode(), prefix + letter.position.encode()),
        (NEXT.encode(), prefix + letter.next_position.encode()),
        (b"remora-incarnation", letter.incarnation.encode()),
        (b"remora-cause", letter.cause.encode()),
        (b"remora-reason", letter.reason.encode()[:MOST_REASON_BYTES]),
        (b"remora-attempts", b"%d" % letter.attempts),
        (b"remora-first-seen", b"%.3f" % letter.first_seen),
        (b"remora-parked-at", b"%.3f" % letter.parked_at),
        *([(SEQUENCE.encode(), letter.sequence.encode())] if letter.sequence else []),
    ]
    if letter.is_as_committed:
        with suppress(CodecError):  # the letter's cause tells so
            headers.append((EVENT_ID.encode(), decode(letter.raw).event.event_id))
        if trace := traceparent_of(letter.raw):
            headers.append((TRACEPARENT.encode(), trace))
    return headers


def omitted(body: bytes) -> tuple[bytes, bytes]:
    """The header of a letter whose bytes the broker does not take: how many there are. The store keeps them."""
    return b"remora-omitted-bytes", b"%d" % len(body)
