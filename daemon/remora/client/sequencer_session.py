"""One connection to a sequencer: requests as bytes, replies from bytes, and whose each reply is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal, cast

from remora.model.log import LogName, Token

MOST_REQUEST_BYTES = 1024
"""Servers close the connection of a longer one."""

MOST_RANGE = (1 << 32) - 1
"""The longest range that a request has room for."""

MOST_REPLY_BYTES = 1 << 20

OK, INIT_LOG, STALE_EPOCH = 0, 1, 2


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def request_frame(log: LogName, epoch: int, *, hands_out: bool, wanted: int = 0, current: bool = False) -> bytes:
    """A request with its length in front."""
    body = b"\x08" + _varint(epoch) + b"\x12" + _varint(len(log.pool)) + log.pool
    body += b"\x1a" + _varint(len(log.name)) + log.name + (b"\x20\x01" if hands_out else b"\x20\x00")
    if wanted:
        body += b"\x38" + _varint(wanted)
    if current:
        body += b"\x40\x01"
    return len(body).to_bytes(4, "big") + body


@dataclass(frozen=True, slots=True)
class SequencerReply:
    """The fields of a reply; `epoch` only where it was asked for."""

    position: int = 0
    status: int = 0
    granted: int = 0
    epoch: int | None = None


def _reply(body: bytes) -> SequencerReply:
    """Returns a reply's fields. Raises ValueError for a field that is not a varint, and where there is no position."""
    values: dict[int, int] = {}
    place = 0
    while place < len(body):
        tag, place = _read(body, place)
        if tag & 7:
            raise ValueError("a field of a reply is no number")
        values[tag >> 3], place = _read(body, place)
    if 1 not in values:
        raise ValueError("a reply has no position")
    return SequencerReply(values[1], values.get(2, 0), values.get(4, 0), values.get(5))


def _read(body: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70 and place < len(body):
        byte = body[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("a number of a reply is cut short")


Outcome = asyncio.Future[Token | tuple[SequencerReply, int]]
"""A position for a caller that wants one, else the reply and the epoch that was sent."""


@dataclass(slots=True)
class PositionsAsked:
    """Callers that want one position each, or one that wants several, the tail (0), or the epoch served ("current").

    Those who ask in the same turn of the event loop share one. The first turn behind `ends` tells them that the time is
    over.
    """

    log: LogName
    wanted: int
    asks: Literal["next", "tail", "current"]
    outcomes: list[Outcome]
    ends: float = inf


@dataclass(slots=True)
class RequestSent:
    """One request under way, and whose it is: several callers' where it is a range that was made for them.

    `tries_range`: the reply shows whether the server grants ranges.
    """

    asked: PositionsAsked
    outcomes: list[Outcome]
    epoch: int
    tries_range: bool = False


class SequencerSession(asyncio.Protocol):
    """Replies in the order of the requests. A server that owes one and says nothing for `silent_s` is left: the
    connections of a process that stands still, or whose host is gone, stay open."""

    def __init__(
        self,
        on_reply: Callable[[RequestSent, SequencerReply], None],
        on_lost: Callable[[SequencerSession], None],
        silent_s: float,
    ) -> None:
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._silent_s = silent_s
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self.sent: deque[RequestSent] = deque()
        self.transport: asyncio.WriteTransport | None = None
        self.gives_nothing = False
        """Whether the client goes on with the next address."""
        self.has_answered = False
        """Whether anything came that is a reply."""
        self._owes_since = inf  # or when it said something last while it owed replies
        self._look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)  # uvloop's is no subclass of it

    def write(self, data: bytes) -> None:
        """Write the requests that were added to `sent` last."""
        assert self.transport is not None
        self.transport.write(data)
        if self._owes_since == inf:
            self._owes_since = self._loop.time()
        if self._look is None:
            self._look = self._loop.call_at(self._owes_since + self._silent_s, self._look_whether_silent)

    def _look_whether_silent(self) -> None:
        """One timer serves all requests that are sent before it ends."""
        self._look, ends = None, self._owes_since + self._silent_s
        if ends <= self._loop.time():
            self.gives_nothing = True
            self.close()
        elif ends < inf:
            self._look = self._loop.call_at(ends, self._look_whether_silent)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        place, end = 0, len(data)
        while place + 4 <= end:
            size = int.from_bytes(data[place : place + 4], "big")
            if size > MOST_REPLY_BYTES:
                self.close()
                return
            if place + 4 + size > end:
                break
            try:
                reply = _reply(data[place + 4 : place + 4 + size])
                sent = self.sent.popleft()
            except (ValueError, IndexError):  # no reply, or one without a request: nothing behind it has a meaning
                self.close()
                return
            self._on_reply(sent, reply)
            place += 4 + size
        self._rest = data[place:]
        self.has_answered = self.has_answered or place > 0
        self._owes_since = self._loop.time() if self.sent else inf
        if self.gives_nothing:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._look is not None:
            self._look.cancel()
        self._on_lost(self)

    def end(self) -> None:
        """Close when all replies have come that are owed. The client sends nothing more, and goes on elsewhere."""
        self.gives_nothing = True
        if not self.sent:
            self.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
