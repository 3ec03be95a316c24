"""The bytes of requests: radosgw's body, radosgw's headers, and those that name a record's place. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from remora import __version__
from remora.codec.kafka_records import AFTER, EVENT_ID, NEXT, POSITION, SEQUENCE, SHARD
from remora.codec.trace_context import TRACEPARENT
from remora.endpoints.headers import CloudEvent, HandoverNote, cloud_event, header_value
from remora.endpoints.http.credentials import Credential, message_id, signature
from remora.endpoints.http.target import HttpTarget
from remora.model.record import Record

BEFORE, BEHIND = b'{"Records":[', b"]}"
"""What stands around the one record of a body."""

CONTENT_TYPES = {
    "": b"application/json",
    "records": b"application/json",
    "ndjson": b"application/x-ndjson",
    "cloudevents": b"application/cloudevents-batch+json",
}


def place_of(queue: str, incarnation: str, position: bytes) -> tuple[bytes, bytes]:
    """Where a record stands: its shard, and its position with the incarnation of the queue, as headers have them."""
    return header_value(queue.encode()), incarnation.encode() + b":" + position


MOST_AFTER_BYTES = 4096
"""Common servers refuse a request one of whose headers is longer than 8 KiB, with all the others."""


class RequestMaker:
    """Makes the requests of one shard to one target."""

    def __init__(self, target: HttpTarget, credential: Credential | None, queue: str, incarnation: str) -> None:
        self._target = target
        self._secrets = credential.secrets if credential is not None else ()
        self._shard = header_value(queue.encode())
        self._prefix = incarnation.encode() + b":"
        kind = target.batching.kind if target.batching is not None else ""
        lines = [
            b"POST %b HTTP/1.1" % target.path.encode(),
            b"Host: %b" % target.host.encode(),
            *self._authorization(credential),
            b"User-Agent: remora/%b" % __version__.encode(),
            b"Accept: */*",
            b"Content-Type: %b" % CONTENT_TYPES[kind],
            *([b"ce-specversion: 1.0"] if target.cloudevents and not kind else []),
            b"%b: %b" % (SHARD.encode(), self._shard),
            b"",
        ]
        self._head = b"\r\n".join(lines)
        self._is_plain = not (target.cloudevents or target.idempotency_keys or self._secrets)
        self._note = HandoverNote()

    def succeeds(self, after: bytes) -> None:
        """The first record that is packed next says where the shards before its own ended."""
        self._note.succeeds(after)
        self._is_plain = False

    def begin(self, records: Sequence[Record]) -> None:
        """These records are packed, in this order."""
        if self._note.is_pending and records:
            self._note.goes_with(records[0], MOST_AFTER_BYTES)

    def place(self, record: Record) -> tuple[bytes, bytes]:
        """As `place_of` has it."""
        return self._shard, self._prefix + record.position

    def one(self, record: Record, timestamp: int) -> bytes:
        """The request for one record; `timestamp` is now, in seconds since the epoch."""
        _, body, event_id, _, position, next_position, _, sequence, trace, _ = record
        prefix = self._prefix
        return b"%b%b%b%b%b: %b%b\r\n%b: %b%b\r\n%b: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            self._head,
            b"%b: %b\r\n" % (_SEQUENCE, sequence) if sequence else b"",
            b"%b: %b\r\n" % (_TRACEPARENT, trace) if trace else b"",
            b"" if self._is_plain else self._further(record, body, timestamp),
            _POSITION, prefix, position,
            _NEXT, prefix, next_position,
            _EVENT_ID, header_value(event_id),
            len(body), body,
        )  # fmt: skip

    def batch(self, records: Sequence[Record], timestamp: int) -> bytes:
        """The request for several records, in the form that the target asks for."""
        body = self._batch_body(records)
        return b"%b%b%b: %b%b\r\n%b: %b%b\r\nremora-count: %d\r\nContent-Length: %d\r\n\r\n%b" % (
            self._head,
            b"" if self._is_plain else self._further(records[0], body, timestamp),
            _POSITION, self._prefix, records[0].position,
            _NEXT, self._prefix, records[-1].next_position,
            len(records), len(body), body,
        )  # fmt: skip

    def _batch_body(self, records: Sequence[Record]) -> bytes:
        assert self._target.batching is not None
        match self._target.batching.kind:
            case "records":
                return BEFORE + b",".join(each.body[len(BEFORE) : -len(BEHIND)] for each in records) + BEHIND
            case "ndjson":  # radosgw escapes line ends, so no body has one
                return b"".join(each.body + b"\n" for each in records)
            case _:
                return b"[" + b",".join(map(self._structured, records)) + b"]"

    def _structured(self, record: Record) -> bytes:
        event = cloud_event(record)
        found = {
            "specversion": b"1.0",
            "id": self._event_id(event, record),
            "type": event.type,
            "source": event.source,
            "time": event.time,
            "subject": event.subject,
            "datacontenttype": b"application/json",
        }
        attributes = {name: value.decode("utf-8", "surrogateescape") for name, value in found.items() if value}
        text = json.dumps(attributes, ensure_ascii=False, separators=(",", ":"))
        return text[:-1].encode("utf-8", "surrogateescape") + b',"data":' + record.body + b"}"

    def _event_id(self, event: CloudEvent, record: Record) -> bytes:
        return self._place(record) if self._target.positions_as_ids else event.id

    def _place(self, record: Record) -> bytes:
        """`<shard>/<incarnation>:<position>`, which no other record has."""
        return b"%b/%b%b" % (self._shard, self._prefix, record.position)

    def _further(self, record: Record, body: bytes, timestamp: int) -> bytes:
        """The headers that a target asks for."""
        target, lines = self._target, [(_AFTER, self._note.told_by(record))]
        if target.cloudevents and target.batching is None:
            event = cloud_event(record)
            lines += [
                (b"ce-id", self._event_id(event, record)),
                (b"ce-type", event.type),
                (b"ce-source", event.source),
                (b"ce-time", event.time),
                (b"ce-subject", event.subject),
            ]
        if self._secrets:
            message = message_id(self._shard, self._prefix + record.position)
            lines += [
                (b"webhook-id", message.encode()),
                (b"webhook-timestamp", b"%d" % timestamp),
            ]
        made = [b"%b: %b\r\n" % (name, header_value(value)) for name, value in lines if value]
        if self._secrets:  # which holds a space between signatures
            made.append(b"webhook-signature: %b\r\n" % signature(self._secrets, message, timestamp, body).encode())
        if target.idempotency_keys:
            made.append(b'Idempotency-Key: "%b"\r\n' % self._place(record))
        return b"".join(made)

    def _authorization(self, credential: Credential | None) -> list[bytes]:
        if credential is not None and credential.bearer:
            return [b"Authorization: Bearer " + credential.bearer.encode()]
        if (login := self._target.login) is not None:
            return [b"Authorization: Basic " + base64.b64encode(login.user + b":" + login.password)]
        return []


_POSITION, _NEXT, _EVENT_ID, _AFTER = POSITION.encode(), NEXT.encode(), EVENT_ID.encode(), AFTER.encode()
_SEQUENCE, _TRACEPARENT = SEQUENCE.encode(), TRACEPARENT.encode()
