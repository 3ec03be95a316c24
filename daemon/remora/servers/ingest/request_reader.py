"""What a request says: its headers, its trace context with the span, and the events that a reservation announces.

All of it may be nonsense.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from types import MappingProxyType, TracebackType
from typing import Annotated, Any, NamedTuple

import msgspec

from remora.codec.s3_events import HAS_SLASH, MOST_BUCKET, MOST_KEY, MalformedEvent, TooManyEvents, Unconfirmed
from remora.codec.s3_records import TWICE, shown_field
from remora.codec.shard_hash import shards
from remora.codec.speedups import repeated_name
from remora.codec.trace_context import TRACEPARENT, parse
from remora.model.ingest import ReservedRoom
from remora.model.notification import ExpectedEvent
from remora.model.topic import Topic
from remora.ports.tracing import NO_SPAN, Span, Tracer, Work
from remora.servers.http.begun import in_task
from remora.servers.http.head import Head, Headers
from remora.servers.ingest.problems import BAD_REQUEST, MALFORMED, TOO_MANY, UNCONFIRMED, WRONG_TYPE, RefusedRequest

JSON = "application/json"
NDJSON = "application/x-ndjson"

ROOM_BYTES = 4096
MOST_ROOM_BYTES = 16 << 20
MOST_NAME = 200
"""What an event to come is reserved when its sender does not say, and the most that may be said."""

DIGEST_AT_ONCE_BYTES = 1 << 20


class BodyForm(Enum):
    """How a body has its records, as far as its type says."""

    DOCUMENT = "one document"
    LINES = "in lines"
    OPEN = "the body tells"


_TYPES = MappingProxyType(
    {JSON: BodyForm.DOCUMENT, NDJSON: BodyForm.LINES, "application/ndjson": BodyForm.LINES}
    | dict.fromkeys(
        (
            "",
            "text/plain",  # SNS without its envelope, and stores whose webhooks name no type of their own
            "application/octet-stream",
            "binary/octet-stream",
            "application/x-www-form-urlencoded",  # what `curl -d` says of anything
        ),
        BodyForm.OPEN,
    )
)
"""Those that say nothing of the body are what S3-compatible senders use. All others are meant for something else."""

_CHARSET = re.compile(r'charset="?([^";\s]*)', re.IGNORECASE)
_BEGINS_OBJECT = re.compile(rb"\s*\{")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event to come, as a reservation announces it."""

    bucket: Annotated[str, msgspec.Meta(min_length=1)]
    object: Annotated[str, msgspec.Meta(min_length=1)]
    bytes: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROOM_BYTES)] = ROOM_BYTES


class EventToCome(Event, frozen=True, forbid_unknown_fields=True):
    """One that names no topic, and may say what notifications ask for; what it leaves out is not known yet."""

    eventName: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME)] | None = None  # noqa: N815 - S3's name
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    metadata: dict[str, str] | None = None
    tags: dict[str, str] | None = None


class ToCome(NamedTuple):
    """An event to come: key (`bucket:object`) and most bytes of its entry, and what is known of it."""

    key: bytes
    nbytes: int
    expected: ExpectedEvent


class _Announced:
    """Decodes the body of a reservation; that there are too many events is seen before they are all decoded."""

    def __init__(self, most: int, event: type[Event] = Event) -> None:
        self._most = most
        self._found = 0
        counted = msgspec.defstruct(
            "Counted", [], bases=(event,), namespace={"__post_init__": lambda _: self._count()}, frozen=True
        )
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            msgspec.defstruct("Announced", [("events", list[counted])], forbid_unknown_fields=True)  # type: ignore[valid-type]  # made just now
        )

    def decode(self, body: bytes) -> Sequence[Event]:
        """The events. Raises what msgspec raises, and Problem where there are too many."""
        self._found = 0
        events: Sequence[Event] = self._decoder.decode(body).events
        return events

    def _count(self) -> None:
        self._found += 1
        if self._found > self._most:
            raise RefusedRequest(TOO_MANY, f"more than {self._most} events")


_announced_at_most = lru_cache(maxsize=4)(_Announced)


def form_of(headers: Headers) -> BodyForm:
    """How the body has its records. Raises Problem for a type that no JSON has, or another encoding of texts."""
    return _form_of(headers.get(b"content-type"))


@lru_cache(maxsize=64)
def _form_of(given: str) -> BodyForm:
    name, _, parameters = given.partition(";")
    found = _TYPES.get(name.strip().lower())
    charset = _CHARSET.search(parameters)
    if found is None or (charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii")):
        raise RefusedRequest(WRONG_TYPE, f"expected {JSON} or {NDJSON} in UTF-8, not {given!r}")
    return found


def has_lines(form: BodyForm, body: bytes) -> bool:
    """Whether a body has its records in lines.

    Where its type does not tell, it has if its first line is an object and another one follows: in one document a comma
    would stand between them.
    """
    if form is not BodyForm.OPEN:
        return form is BodyForm.LINES
    text = body.lstrip()
    end = text.find(b"\n")
    is_object = end > 0 and text[:1] == b"{" and text[:end].rstrip()[-1:] == b"}"
    return is_object and _BEGINS_OBJECT.match(text, end) is not None


def idempotency_key(headers: Headers) -> str:
    """The header's value; the draft writes it in quotes, many clients do not."""
    if b"idempotency-key" not in headers:
        return ""
    given = headers.get(b"idempotency-key")
    key = given[1:-1] if len(given) > 1 and given[0] == given[-1] == '"' else given
    if not _KEY.fullmatch(key):
        raise RefusedRequest(
            BAD_REQUEST, "Idempotency-Key: expected 1 to 255 visible ASCII characters", field="Idempotency-Key"
        )
    return key


async def digest(body: bytes, ndjson: bool) -> bytes:
    """What tells two requests apart that have the same key."""
    if len(body) > DIGEST_AT_ONCE_BYTES:
        await in_task()
        return await asyncio.to_thread(_digest, body, ndjson)
    return _digest(body, ndjson)


def _digest(body: bytes, ndjson: bool) -> bytes:
    return hashlib.blake2b(body, digest_size=16, person=b"ndjson" if ndjson else b"json").digest()


def rooms_of(body: bytes, topic: Topic, most: int) -> Sequence[ReservedRoom]:
    """The room that a reservation asks for. Raises Problem with the event and the field that are wrong."""
    announced = _announced(body, most)
    keys = [_key_of(number, each) for number, each in enumerate(announced)]
    numbers = shards(keys, topic.shards)
    return [ReservedRoom(number, key, each.bytes) for number, key, each in zip(numbers, keys, announced, strict=True)]


def to_come(body: bytes, most: int) -> Sequence[ToCome]:
    """The events that a reservation without a topic announces. Raises RefusedRequest as `rooms_of`."""
    found = []
    for number, each in enumerate(_announced(body, most, EventToCome)):
        assert isinstance(each, EventToCome)
        key = _key_of(number, each)
        expected = ExpectedEvent(
            each.bucket.encode(errors="surrogatepass"),
            each.object.encode(errors="surrogatepass"),
            None if each.eventName is None else each.eventName.encode(errors="surrogatepass"),
            each.size,
            _pairs(each.metadata),
            _pairs(each.tags),
        )
        found.append(ToCome(key, each.bytes, expected))
    return found


def _pairs(given: dict[str, str] | None) -> tuple[tuple[bytes, bytes], ...] | None:
    if given is None:
        return None
    return tuple(
        (name.encode(errors="surrogatepass"), value.encode(errors="surrogatepass")) for name, value in given.items()
    )


def malformed(exc: MalformedEvent) -> RefusedRequest:
    match exc:
        case TooManyEvents():
            kind = TOO_MANY
        case Unconfirmed():
            kind = UNCONFIRMED
        case _:
            kind = MALFORMED
    return RefusedRequest(kind, str(exc), record=exc.record, line=exc.line, field=exc.field or None)


def _announced(body: bytes, most: int, event: type[Event] = Event) -> Sequence[Event]:
    try:
        events = _announced_at_most(most, event).decode(body)
    except msgspec.ValidationError as exc:
        reason, _, path = str(exc).partition(" - at ")
        raise _malformed_announcement(path.strip("`").removeprefix("$").removeprefix("."), reason) from exc
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise RefusedRequest(MALFORMED, f"not valid JSON: {exc}") from exc
    if (name := repeated_name(body)) is not None:
        raise _malformed_announcement(shown_field(name), TWICE)
    if not events:
        raise RefusedRequest(MALFORMED, "events is empty", field="events")
    return events


def _malformed_announcement(path: str, reason: str) -> RefusedRequest:
    number = re.match(r"events\[([0-9]+)\]\.?", path)
    return RefusedRequest(
        MALFORMED,
        f"{path}: {reason}" if path else reason,
        record=int(number[1]) if number else None,
        field=(path[number.end() :] if number else path) or None,
    )


def _key_of(number: int, event: Event) -> bytes:
    """What the event's shard is chosen by."""
    for name, text, most in (("bucket", event.bucket, MOST_BUCKET), ("object", event.object, MOST_KEY)):
        if len(text.encode(errors="surrogatepass")) > most:
            raise RefusedRequest(MALFORMED, f"{name} is longer than {most} bytes", record=number, field=name)
    if "/" in event.bucket:
        raise RefusedRequest(MALFORMED, f"bucket {HAS_SLASH}", record=number, field="bucket")
    return f"{event.bucket}:{event.object}".encode(errors="surrogatepass")


_TRACEPARENT = TRACEPARENT.encode()


def _begin_span(tracer: Tracer, head: Head, topic: str) -> tuple[bytes, Span]:
    """The context of the events of a request, empty where there is none, and the span of storing them.

    The context is the one that the client sent, as it is: who reads the events is to see whose they are. Without one it
    is that of the request's span, where that is sampled. Two headers are none, as W3C says.
    """
    given = b""
    if _TRACEPARENT in head.headers:
        values = head.headers.every(_TRACEPARENT)
        given = parse(values[0]) if len(values) == 1 else b""
    if not tracer.is_on:
        return given, NO_SPAN
    about = {"http.request.method": head.method, "url.path": head.path}
    span = tracer.begin(Work.REQUEST, topic, about, parent=given)
    return given or span.context, span


class Traced:
    """The context of a request's events, while the block stores them; its end is that of the request's span."""

    __slots__ = ("_span", "context")

    def __init__(self, tracer: Tracer, head: Head, topic: str) -> None:
        self.context, self._span = _begin_span(tracer, head, topic)

    def __enter__(self) -> bytes:
        return self.context

    def __exit__(self, _: type[BaseException] | None, exc: BaseException | None, __: TracebackType | None) -> None:
        if exc is None:
            self._span.end()
        else:
            self._span.end(str(exc) or type(exc).__name__)
