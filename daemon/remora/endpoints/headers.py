"""What headers say beside an event: of a dead letter, of the shards that a shard took over from, and what radosgw and
CloudEvents 1.0.2 have as an event's attributes. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from remora.codec.event_entry import decode
from remora.codec.kafka_records import AFTER, EVENT_ID, NEXT, POSITION, SEQUENCE, SHARD
from remora.codec.rendering_plain import second_text
from remora.codec.trace_context import TRACEPARENT, traceparent_of
from remora.model.errors import CodecError
from remora.model.record import DeadLetter, Record
from remora.model.topic import generation_of

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


FRAMING_BYTES = 16
"""The most that a header takes besides its name and value, in every protocol that has text for headers."""


class HandoverNote:
    """The header `remora-after`, which a shard's first record has, also when it is sent again.

    Where the ends do not fit, only the generation that they are of is told; where that does not fit either, nothing.
    """

    def __init__(self) -> None:
        self._after = self._text = self._first = b""

    def succeeds(self, after: bytes) -> None:
        """The next record that is packed is the first of a shard whose parents ended so."""
        self._after = after

    @property
    def is_pending(self) -> bool:
        """Whether a record may have to tell."""
        return bool(self._after)

    def goes_with(self, record: Record, room: int) -> None:
        """Of those that are packed this record comes first, and its headers may grow by `room` bytes."""
        self._first = self._first or record.position
        if record.position == self._first:
            left = room - len(AFTER) - FRAMING_BYTES
            self._text = next((each for each in self._forms() if len(each) <= left), b"")

    def told_by(self, record: Record) -> bytes:
        """The value of the header in this record; empty where it has none."""
        return self._text if self._text and record.position == self._first else b""

    def _forms(self) -> Iterator[bytes]:
        """Where each parent ended, and then, in place of that, the generation that they are of."""
        yield self._after
        if self._after and not self._after.startswith(b"generation="):
            yield b"generation=%d" % generation_of(self._after.partition(b"=")[0].decode())


_PLAIN = re.compile(rb"[!#$&-~]*")  # 0x21 to 0x7E without the quote and the percent sign
_TO_ENCODE = re.compile(rb'[^!-~]|["%]')


def header_value(raw: bytes) -> bytes:
    """Any bytes as a header's value: what is not printable ASCII, and space, quote and percent sign, become `%XX`.

    So does CloudEvents' HTTP binding (1.0.2, 3.1.3.2). radosgw encodes nothing: a line's end in an object's key makes
    headers there.
    """
    if _PLAIN.fullmatch(raw):
        return raw
    return _TO_ENCODE.sub(lambda match: b"%%%02X" % match[0][0], raw)


class CloudEvent(NamedTuple):
    """The attributes that radosgw makes of an event; `time` is empty where the event has none."""

    id: bytes
    type: bytes
    source: bytes
    time: bytes
    subject: bytes


class _Ids(msgspec.Struct):
    request: str = msgspec.field(name="x-amz-request-id", default="")
    id_2: str = msgspec.field(name="x-amz-id-2", default="")


class _EventBucket(msgspec.Struct):
    name: str = ""


class _EventS3(msgspec.Struct):
    bucket: _EventBucket


class _EventNames(msgspec.Struct):
    source: str = msgspec.field(name="eventSource")
    region: str = msgspec.field(name="awsRegion")
    name: str = msgspec.field(name="eventName")
    ids: _Ids = msgspec.field(name="responseElements")
    s3: _EventS3


class _Envelope(msgspec.Struct):
    records: list[_EventNames] = msgspec.field(name="Records")


_decode = msgspec.json.Decoder(_Envelope).decode


def cloud_event(record: Record) -> CloudEvent:
    """What radosgw writes into the ce- headers of this event; `id` is not unique there."""
    try:
        event = _decode(record.body).records[0]
    except (msgspec.MsgspecError, UnicodeDecodeError):  # a key that is not UTF-8 stands in the body as it is
        found: Any = json.loads(record.body.decode("utf-8", "surrogateescape"))
        event = msgspec.convert(found, _Envelope).records[0]
    # As radosgw writes it here; empty where the body has a duration instead of a time.
    second, nanosecond = divmod(record.event_ns, 1_000_000_000)
    before, after = second_text(second & 0xFFFF_FFFF)
    return CloudEvent(
        _raw(f"{event.ids.request}.{event.ids.id_2}"),
        _raw(f"com.amazonaws.{event.name}"),
        _raw(f"{event.source}.{event.region}.{event.s3.bucket.name}"),
        b"%b%09d%b" % (before, nanosecond, after) if after else b"",
        record.key.partition(b"/")[2],
    )


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def attributes(record: Record, event_id: bytes) -> list[tuple[str, bytes]]:
    """The attributes of an event for the headers of a message, in UTF-8; those that it does not have are left out.

    `event_id` names the entry for ever, so that a copy has the id of the first. Bytes of a key that are no UTF-8, which
    CloudEvents does not allow, are replaced.
    """
    event = cloud_event(record)
    found = (
        ("specversion", b"1.0"),
        ("id", event_id),
        ("type", event.type),
        ("source", event.source),
        ("time", event.time),
        ("subject", event.subject),
        ("partitionkey", record.key),
    )
    return [(name, value.decode("utf-8", "replace").encode()) for name, value in found if value]
