"""The sequencer's protocol, from bytes to bytes: frames in, replies out, and the counters between them.

A message is a 32-bit big-endian length and a proto2 body. The messages are those of ZLog's `seqr-server` of October
2014, with `count` of October 2015, and fields 7 and 8 of requests and 4 and 5 of replies, which are this project's own.
Requests are read as a proto2 parser reads them: fields in any order, the last one counts, unknown ones are skipped.
This is written by hand because protobuf's own library makes objects, which cost several times what all else does; the
tests hold both beside each other.

`_sequencer.pyx` is the same for a C compiler, and what servers run where there was one; it has to agree with this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from remora.model.errors import CodecError
from remora.model.log import MOST_POSITION, LogName

MOST_FRAME_BYTES = 1024
"""A body that is announced longer closes the connection."""

MOST_COUNT = 100
MOST_RANGE = 4096
MOST_PACKED = 128 << 10
"""Bytes of replies with several positions, above which no more requests of a connection are answered at once: these
replies are fifty times as long as their requests."""

_NESTED = 30

INIT_LOG = bytes.fromhex("0000000408001001")
"""The log is not served now: it is registered, or it does not exist, or the client knows a later epoch."""

STALE_EPOCH = bytes.fromhex("0000000408001002")
"""The client knows an epoch that is over."""


@dataclass(frozen=True, slots=True)
class PositionRequest:
    """What a client asks. `count` and `range` are 0 where they were not sent."""

    epoch: int
    pool: bytes
    name: bytes
    next: bool
    count: int = 0
    range: int = 0
    current: bool = False


class Result(Enum):
    """What became of a request, for metrics."""

    OK = "ok"
    TAIL = "tail"
    INIT_LOG = "init_log"
    STALE_EPOCH = "stale_epoch"
    AHEAD = "ahead"


# ------------------------------------------------------------------------------------------------ requests


def parse_request(body: bytes) -> PositionRequest:
    """The request of a frame's body. Raises CodecError for what closes the connection."""
    place, end = 0, len(body)
    epoch: int | None = None
    pool: bytes | None = None
    name: bytes | None = None
    hands_out: bool | None = None
    count = range_ = None
    current = False
    while place < end:
        tag, place = _tag(body, place)
        field, wire = tag >> 3, tag & 7
        if wire == 0:
            value, place = _varint(body, place)
            if field == 1:
                epoch = value
            elif field == 4:
                hands_out = bool(value)
            elif field == 5:
                count = value & 0xFFFFFFFF
            elif field == 7:
                range_ = value & 0xFFFFFFFF
            elif field == 8:
                current = bool(value)
        elif wire == 2:
            size, place = _length(body, place)
            if field == 2:
                pool = body[place : place + size]
            elif field == 3:
                name = body[place : place + size]
            place += size
        else:
            place = _skip(body, place, field, wire, _NESTED)
    if epoch is None or pool is None or name is None or hands_out is None:
        raise CodecError("request", end, "a required field is missing")
    if count is not None and not (1 <= count <= (MOST_COUNT if hands_out else 1)):
        raise CodecError("count", end, f"{count} positions cannot be asked for")
    if range_ == 0 and hands_out:
        raise CodecError("range", end, "a range of no positions")
    return PositionRequest(epoch, pool, name, hands_out, count or 0, range_ or 0, current)


def _tag(body: bytes, place: int) -> tuple[int, int]:
    tag, place = _short_varint(body, place)
    if tag < 8:
        raise CodecError("tag", place, "field number 0")
    return tag, place


def _length(body: bytes, place: int) -> tuple[int, int]:
    size, place = _short_varint(body, place)
    if size > len(body) - place:
        raise CodecError("length", place, f"{size} bytes are announced, {len(body) - place} are there")
    return size, place


def _short_varint(body: bytes, place: int) -> tuple[int, int]:
    """A tag or a length: five bytes at most, and less than 2 to the 32nd."""
    value, after = _varint(body, place, 5)
    if value > 0xFFFFFFFF:
        raise CodecError("varint", place, "more than 32 bits")
    return value, after


def _varint(body: bytes, place: int, most: int = 10) -> tuple[int, int]:
    """A varint and the place behind it; it need not be minimal, and bits beyond 64 are dropped."""
    value = shift = 0
    for at in range(place, min(place + most, len(body))):
        byte = body[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + 1
        shift += 7
    raise CodecError("varint", place, "cut short, or too long")


def _skip(body: bytes, place: int, field: int, wire: int, nested: int) -> int:
    """The place behind a field of any type."""
    match wire:
        case 0:
            return _varint(body, place)[1]
        case 1 | 5:
            place += 8 if wire == 1 else 4
            if place > len(body):
                raise CodecError("fixed", place, "cut short")
            return place
        case 2:
            size, place = _length(body, place)
            return place + size
        case 3 if nested:
            while place < len(body):
                tag, place = _tag(body, place)
                if tag & 7 == 4:
                    if tag >> 3 != field:
                        break
                    return place
                place = _skip(body, place, tag >> 3, tag & 7, nested - 1)
    raise CodecError("field", place, f"wire type {wire} cannot be here")


# ------------------------------------------------------------------------------------------------- replies


def varint(value: int) -> bytes:
    """The shortest varint of a number."""
    made = bytearray()
    while value > 0x7F:
        made.append((value & 0x7F) | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def reply(position: int, granted: int = 0, epoch: int = -1) -> bytes:
    """The frame of one position; `granted` and `epoch` where they were asked for."""
    body = b"\x08" + varint(position)
    if granted:
        body += b"\x20" + varint(granted)
    if epoch >= 0:
        body += b"\x28" + varint(epoch)
    return _framed(body)


def packed_reply(first: int, count: int, epoch: int = -1) -> bytes:
    """The frame of several positions, as ZLog of October 2015 reads it."""
    positions = b"".join(map(varint, range(first, first + count)))
    body = b"\x0a" + varint(len(positions)) + positions
    if epoch >= 0:
        body += b"\x28" + varint(epoch)
    return _framed(body)


# ------------------------------------------------------------------------------------------------ counters


class Counter:
    """A log that is served: its epoch, the last position that was handed out, and the last one that may be.

    `requests` counts those that handed positions out.
    """

    __slots__ = ("bound", "epoch", "log", "position", "requests")

    def __init__(self, log: LogName, epoch: int, position: int, bound: int) -> None:
        self.log = log
        self.epoch = epoch
        self.position = position
        self.bound = bound
        self.requests = 0


class SequencerReplies(NamedTuple):
    """What came of the bytes of a connection.

    `consumed` bytes are done with. With `closes` the connection is to be closed behind the replies. `waits` is a log
    that the next request asks for and whose bound must be raised before it is answered. Without either, and where
    `has_more` says so of the rest, more is to be answered once these replies are sent.
    """

    replies: bytes
    consumed: int
    closes: bool = False
    waits: LogName | None = None


def has_more(rest: bytes) -> bool:
    """Whether what was not consumed begins with a frame that is whole, or that is none."""
    size = int.from_bytes(rest[:4], "big")
    return len(rest) >= 4 and (not 0 < size <= MOST_FRAME_BYTES or len(rest) >= 4 + size)


class Core:
    """Answers requests from the counters of the logs that are served.

    `on_miss` is called for a request that no counter answers: for a log that is not served, or with an epoch that is
    ahead. It must not wait. Nothing of a counter outlives `forget`.
    `client` is a number of the caller's for the one whose bytes are answered.
    """

    def __init__(
        self, on_miss: Callable[[LogName, Result], None], most_range: int = MOST_RANGE, bound_room: int = 0
    ) -> None:
        """`bound_room`: with fewer positions left below a log's bound it is named in `low`, once."""
        self._on_miss = on_miss
        self._most_range = most_range
        self._room = bound_room
        self._counters: dict[LogName, Counter] = {}
        self.client = 0
        self.low: set[LogName] = set()
        self.results = dict.fromkeys(Result, 0)

    @property
    def counters(self) -> dict[LogName, Counter]:
        """The logs that are served."""
        return self._counters

    def serve(self, log: LogName, epoch: int, position: int, bound: int) -> None:
        """Hand out the positions of a log from behind this one on, in place of whatever was served of it."""
        self.forget(log)
        self._counters[log] = Counter(log, epoch, position, bound)

    def forget(self, log: LogName) -> Counter | None:
        """Stops serving a log; returns its last counter."""
        self.low.discard(log)
        return self._counters.pop(log, None)

    def raise_bound(self, log: LogName, epoch: int, bound: int) -> None:
        """More positions may be handed out; means nothing where another epoch is served by now."""
        counter = self._counters.get(log)
        if counter is not None and counter.epoch == epoch:
            counter.bound = max(bound, counter.bound)
            self.low.discard(log)

    def answer(self, data: bytes) -> SequencerReplies:
        """Answer the whole frames at the front of what a connection has sent, all but for MOST_PACKED."""
        replies: list[bytes] = []
        place, end, packed = 0, len(data), 0
        while place + 4 <= end and packed <= MOST_PACKED:
            size = int.from_bytes(data[place : place + 4], "big")
            if not 0 < size <= MOST_FRAME_BYTES:
                return SequencerReplies(b"".join(replies), place, closes=True)
            after = place + 4 + size
            if after > end:
                break
            try:
                request = parse_request(data[place + 4 : after])
            except CodecError:
                return SequencerReplies(b"".join(replies), place, closes=True)
            made = self._reply(request)
            if made is None:
                return SequencerReplies(b"".join(replies), place, waits=LogName(request.pool, request.name))
            replies.append(made)
            place = after
            if request.count > 1:
                packed += len(made)
        return SequencerReplies(b"".join(replies), place)

    def _reply(self, request: PositionRequest) -> bytes | None:
        """The reply to one request; None where its log's bound is in the way."""
        log = LogName(request.pool, request.name)
        counter = self._counters.get(log)
        if counter is None:
            return self._missed(log, Result.INIT_LOG, INIT_LOG)
        if not request.current and request.epoch != counter.epoch:
            if request.epoch < counter.epoch:
                self.results[Result.STALE_EPOCH] += 1
                return STALE_EPOCH
            return self._missed(log, Result.AHEAD, INIT_LOG)
        epoch = counter.epoch if request.current else -1
        if not request.next:
            self.results[Result.TAIL] += 1
            return reply(counter.position, epoch=epoch)
        room = counter.bound - counter.position
        count = min(request.range, self._most_range, max(room, 1)) if request.range else request.count or 1
        if count > room:
            if counter.bound >= MOST_POSITION:  # the last bound that a log can have: its positions end here
                return self._missed(log, Result.INIT_LOG, INIT_LOG)
            return None
        first = counter.position + 1
        counter.position += count
        counter.requests += 1
        if counter.bound - counter.position < self._room:
            self.low.add(counter.log)
        if request.range:
            return reply(first, count, epoch)
        return packed_reply(first, count, epoch) if count > 1 else reply(first, epoch=epoch)

    def _missed(self, log: LogName, result: Result, made: bytes) -> bytes:
        self.results[result] += 1
        self._on_miss(log, result)
        return made
