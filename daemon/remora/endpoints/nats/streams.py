"""What a stream may have already: what a server says of it and its last messages, and what it is asked for first. Pure.

A stream drops a message whose id it has had within its duplicate window. An earlier attempt may lie further back: that
of a host which was away for an hour, or of another one. Where each object has a subject of its own, the last message of
the subject tells how far the object's events have come, since they arrive in their order.

A lane's messages are begun in their order, at most WINDOW of them without an answer. So of all that any owner of the
queue has ever begun in a lane, at most WINDOW have not arrived. Once a route has found more than that, what it begins
from then on was never begun by anybody, and it asks no longer. All owners must have the same LANES and WINDOW for this.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from remora.endpoints.nats.errors import why_refused
from remora.endpoints.nats.lines import read_answer
from remora.endpoints.runs import WINDOW
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable
from remora.model.record import Record

NO_MESSAGE = 10037

STORED_ON_DISK = "file"
KEPT_BY_LIMITS = "limits"


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream as its server describes it. `window_s` is how long it drops messages whose id it has had.

    `most_bytes` bounds headers and body of a message; None where only the server's limit does.
    """

    name: str
    subjects: tuple[str, ...] = ()
    window_s: float = 0.0
    most_bytes: int | None = None
    storage: str = STORED_ON_DISK
    retention: str = KEPT_BY_LIMITS

    def remarks(self, pause_s: float, *, looks: bool) -> Iterator[str]:
        """What an operator has to know of it; `pause_s` is the longest usual pause between two attempts.

        `looks` tells whether the last message of a subject is read before one is sent again.
        """
        if self.window_s < pause_s:
            beyond = (
                "beyond it the last message of the object's subject is read first"
                if looks
                else "beyond it copies are possible: objects share subjects, or the user may not read the stream"
            )
            yield (
                f"stream {self.name} drops copies for {self.window_s:g} s (its duplicate window), and attempts may lie "
                f"{pause_s:g} s apart: {beyond}"
            )
        if self.storage != STORED_ON_DISK:
            yield f"stream {self.name} keeps messages in memory: a server that ends loses what it has acknowledged"
        if looks and self.retention != KEPT_BY_LIMITS:
            yield (
                f"stream {self.name} deletes what was consumed (retention {self.retention}): the last message of a "
                "subject then shows nothing"
            )


def read_stream(reply: bytes, what: str) -> Stream:
    """A stream from the answer to a question for it. Raises EndpointError, which begins with `what`."""
    found = read_answer(reply, what)
    if error := found.get("error"):
        raise why_refused(error, what)
    try:
        config = found["config"]
        if config.get("no_ack"):
            raise EndpointMisconfigured(f"{what}: it acknowledges nothing (no_ack)")
        most = int(config.get("max_msg_size", -1))
        return Stream(
            str(config["name"]),
            tuple(map(str, config.get("subjects") or ())),
            int(config.get("duplicate_window", 0)) / 1e9,
            most if most >= 0 else None,
            str(config.get("storage", STORED_ON_DISK)),
            str(config.get("retention", KEPT_BY_LIMITS)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise EndpointUnavailable(f"{what}: the server's answer cannot be read") from None


def read_last(reply: bytes, what: str) -> dict[bytes, bytes]:
    """The headers of the last message of a subject; none where the stream has no such message. Raises EndpointError."""
    found = read_answer(reply, what)
    error = found.get("error")
    if isinstance(error, dict) and error.get("err_code") == NO_MESSAGE:
        return {}
    if error:
        raise why_refused(error, what)
    try:
        return read_headers(base64.b64decode(found["message"].get("hdrs") or ""))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise EndpointUnavailable(f"{what}: the server's answer cannot be read") from None


def read_headers(raw: bytes) -> dict[bytes, bytes]:
    """Headers by name in lower case; of several of a name the last."""
    lines = (each.partition(b":") for each in raw.split(b"\r\n")[1:] if each)
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def last_place(headers: Mapping[bytes, bytes], shard: bytes, prefix: bytes) -> tuple[int, int] | None:
    """The position of a message that this queue sent; None where another one did. `prefix` names its incarnation."""
    place = headers.get(b"remora-pos", b"")
    if headers.get(b"remora-shard") != shard or not place.startswith(prefix):
        return None
    return read_position(place[len(prefix) :])


_POSITION = re.compile(rb"([0-9]{1,20})/([0-9]{1,20})")


def read_position(text: bytes) -> tuple[int, int] | None:
    """A position as it is compared with others of its queue; None for a text that is none."""
    found = _POSITION.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


LANES = 64
"""Lanes of a shard, each with messages of up to WINDOW keys under way. See above before you change it."""

PART_OF_WINDOW = 2
"""An entry that is younger than half of the window was never sent before the window began. The other half is for
clocks, since the age is counted from when a gateway or a host committed it."""

Place = tuple[int, int]


class Before(Enum):
    """What is known of a message before it is sent."""

    NEW = auto()
    ARRIVED = auto()
    UNKNOWN = auto()


class SubjectLooks:
    """What one route has found out."""

    def __init__(self, window_s: float) -> None:
        self._window_ns = int(window_s * 1e9)
        self._left = [WINDOW + 1] * LANES
        self._places: list[dict[bytes, Place | None]] = [{} for _ in range(LANES)]

    def before(self, lane: int, record: Record, now_ns: int) -> Before:
        """What is known of this message; `now_ns` is in nanoseconds since the epoch."""
        if not self._left[lane]:
            return Before.NEW
        if record.key in self._places[lane]:
            return self._compared(lane, record, self._places[lane][record.key])
        is_young = 0 <= now_ns - record.created_ns < self._window_ns // PART_OF_WINDOW
        return Before.NEW if is_young else Before.UNKNOWN

    def found(self, lane: int, record: Record, place: Place | None) -> Before:
        """What is known now that the stream was asked: `place` is the position that its key has reached, if any."""
        if self._left[lane]:
            self._places[lane][record.key] = place
        return self._compared(lane, record, place)

    def _compared(self, lane: int, record: Record, place: Place | None) -> Before:
        own = read_position(record.position)
        if place is not None and own is not None and own <= place:
            return Before.ARRIVED
        if self._left[lane]:
            self._left[lane] -= 1
            if not self._left[lane]:
                self._places[lane].clear()
        return Before.NEW
