"""What an answer means, by its status: the only place that decides it; and the reading of one connection's answers:
status, Retry-After, and where each ends. Bounded in bytes, and pure.

A head is read as radosgw's libcurl reads it (7.88 to 8.23; a fuzzer holds both side by side): a receiver that works
there would get copies without end here. Nothing can be smuggled in: one answer is read for one request.

By hand, since no parser that was weighed takes what radosgw's libcurl takes. httptools (llhttp, in C) refuses equal
lengths that stand twice, what is odd in a status line or in the name of a header, and lines of chunks that end with LF
alone; it takes an interim answer with an encoding for one with a body, and has no call for the end of the input. So
does aiohttp, over the same parser. h11 is stricter still. An answer of nginx takes 1.3 us here where its head is
remembered, else 4 us, and took 1.7 us over httptools, which calls for each header.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_tz
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from remora.policy.delivery.lane_steps import SLOW_S


class Verdict(Enum):
    """What a receiver's status says about the record that was posted."""

    ACK = "acknowledged"
    TRANSIENT = "transient"
    POISON = "poison"
    CONFIGURATION = "configuration"


TRANSIENT = frozenset({408, 409, 421, 423, 425, 429, 500, 502, 503, 504, 507, 508, 509, 510, *range(512, 600)})
POISON = frozenset({400, 413, 414, 415, 422, 431})
"""Refusals of the one record that was posted, perhaps; a batch is halved first, until one record is left."""

MOST_RETRY_AFTER_S = 300.0

QUICK_TRIES = 3
QUICK_BASE_S = 0.1
QUICK_WINDOW_S = 10.0
"""A lane tries a transient answer again itself, so often and within this time of the first try."""


def verdict(status: int) -> Verdict:
    """What is done about an answer of this status.

    All that is neither an acknowledgement, nor known to pass, nor about the one record is configuration: redirects are
    not followed, and 410 is not given up.
    """
    if 200 <= status < 300:
        return Verdict.ACK
    if status in TRANSIENT:
        return Verdict.TRANSIENT
    return Verdict.POISON if status in POISON else Verdict.CONFIGURATION


def retry_after_s(text: str, now: float) -> float | None:
    """Seconds that a Retry-After asks for, at most five minutes; None where it says nothing that can be used.

    `now` is seconds since the epoch, for those that name a date.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,18}", text):
        asked = float(text)
    else:
        try:
            asked = _epoch_s(text) - now
        except (ValueError, OverflowError, IndexError, TypeError):
            return None
    return min(MOST_RETRY_AFTER_S, asked) if asked > 0 else None


def _epoch_s(text: str) -> float:
    """Seconds since the epoch of a date in any of the forms of RFC 9110, 5.6.7. Raises what its parser raises.

    All of them are UTC, also asctime's, which names no zone, and those with the zone -0000, which names none either.
    """
    found = parsedate_tz(text)
    if found is None:
        raise ValueError("no date")
    second = 59 if found[5] == 60 else found[5]  # a leap second is the one before it
    return (datetime(*found[:5], second, tzinfo=UTC) - timedelta(seconds=found[9] or 0)).timestamp()


def quick_pause_s(tries: int, most: int, asked_s: float | None, spent_s: float) -> float | None:
    """Seconds until a lane tries a record again itself after `tries` tries; None when the engine's pause is due.

    `asked_s` is the answer's Retry-After, `spent_s` the time since the first try.
    """
    if not 1 <= tries <= most:
        return None
    pause_s = asked_s if asked_s is not None else QUICK_BASE_S * 2 ** (tries - 1)
    return pause_s if spent_s + pause_s < QUICK_WINDOW_S else None


BATCHED_LANES = (8, 1024)
"""With which a target of batches begins, and the most: a batch is what a lane has of a listing, and few lanes make
large ones."""


def batched_lanes(lanes: int, mean_s: float, *, has_backlog: bool) -> int:
    """How many lanes the batches of a shard should come from, now that answers take `mean_s` on average.

    By Little's law lanes and latency bound the rate; more of them cost a connection each, so only a backlog gets them.
    It is one when more has been read than all lanes can have under way. They get twice as many at most, since more
    lanes than that would only make smaller batches.
    """
    return min(2 * lanes, BATCHED_LANES[1]) if has_backlog and mean_s > SLOW_S else lanes


PUSH_S = 0.25
"""What arrived counts as done when its push ends: a longer one keeps the front of a queue back."""

MOST_IN_PUSH = 1024
FIRST_IN_PUSH = 4


def push_records(mean_s: float, together: int = 1) -> int:
    """How many records of a lane one push has: what takes `PUSH_S`, so that a session can end soon.

    `together` of them go in one request, which takes `mean_s` on average; 0 where no answer is known yet.
    """
    if mean_s <= 0:
        return min(MOST_IN_PUSH, together * FIRST_IN_PUSH)
    return min(MOST_IN_PUSH, together * max(1, int(min(MOST_IN_PUSH, PUSH_S / mean_s))))


MOST_LINE_BYTES = 16 << 10
"""Of a line with a chunk's size, and of all trailers."""

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,17})(?![0-9A-Fa-f])")


class NotHttp(Exception):
    """What came is no answer that can be read to its end; the text says why."""


class AnswerHead(NamedTuple):
    """What counts of a head. `length` is None where only the connection's end ends the body, unless it is in chunks.

    `may_stay` tells whether the connection may take another request behind the body.
    """

    status: int
    retry_after: str
    length: int | None
    is_chunked: bool
    may_stay: bool


BEGIN = b"HTTP/"
"""How an answer begins."""

END = re.compile(rb"\n(?:\r[^\n]*)?\n")
"""The end of a head: a line that is empty, or that begins with a CR."""

_STATUS_LINE = re.compile(rb"HTTP/1\.([01])[ \t]+([1-9][0-9]{2})")
_FOLD = re.compile(rb"\r*\n[ \t]+")
_NO_FIELD = re.compile(rb"\n[^:\n]*(?=\n)")
_FIELD = re.compile(rb"\n(content-length|transfer-encoding|connection|retry-after):([^\n]*)", re.IGNORECASE)

MOST_LENGTH = (1 << 63) - 1


@lru_cache(maxsize=64)
def head_of(raw: bytes) -> AnswerHead:
    """What a head says, given up to the end of its last line. Raises NotHttp.

    Remembered, since a receiver's heads differ at most in their second.
    """
    status_line = _STATUS_LINE.match(raw)
    if status_line is None:
        raise NotHttp("is of another version of HTTP, or has no status")
    if b"\0" in raw:
        raise NotHttp("has a NUL in its headers")
    if b"\n " in raw or b"\n\t" in raw:
        raw = _FOLD.sub(b" ", raw)
    if _NO_FIELD.search(raw):
        raise NotHttp("has a header without a colon")
    fields: dict[bytes, list[bytes]] = {}
    for name, value in _FIELD.findall(raw):
        fields.setdefault(name.lower(), []).append(value.strip())
    status = int(status_line[2])
    retry_after = fields.get(b"retry-after", [b""])[-1].decode("latin-1")
    may_stay = _may_stay(status_line[1], fields.get(b"connection", []))
    if status < 200 or status in (204, 304):
        return AnswerHead(status, retry_after, 0, False, may_stay and status != 101)
    if b"transfer-encoding" in fields:
        # The length counts for nothing beside it, but RFC 9112, 6.3 has the connection closed behind both.
        # Whether chunks are the last of the codings, and whether there is no doubt about it.
        codings = [each.strip().lower() for each in b",".join(fields[b"transfer-encoding"]).split(b",")]
        counting = [each for each in codings if each not in (b"", b"identity")]
        is_chunked, is_clear = counting[-1:] == [b"chunked"], counting == codings
        may_stay = may_stay and is_clear and b"content-length" not in fields
        return AnswerHead(status, retry_after, None, is_chunked, may_stay)
    length, is_clear = _length_of(fields.get(b"content-length", []))
    return AnswerHead(status, retry_after, length, False, may_stay and is_clear)


def _may_stay(minor: bytes, connection: list[bytes]) -> bool:
    said = b",".join(connection).lower()
    if b"close" in said:  # also within another word, as to older releases of libcurl
        return False
    return minor == b"1" or b"keep-alive" in [each.strip() for each in said.split(b",")]


def _length_of(values: list[bytes]) -> tuple[int | None, bool]:
    """The length, which may stand there several times alike (RFC 9110, 8.6), and whether there is no doubt about it.

    One that is too large for any counter says nothing. Raises NotHttp.
    """
    if not values:
        return None, True
    found = {each.strip() for each in b",".join(values).split(b",")}
    if not all(each.isdigit() for each in found):
        raise NotHttp("has a Content-Length that is no number")
    numbers = {each.lstrip(b"0") or b"0" for each in found}
    lengths = {int(each) for each in numbers if len(each) < 20 and int(each) <= MOST_LENGTH}
    if len(lengths) > 1:
        raise NotHttp("has several lengths")
    return (lengths.pop() if lengths else None), len(numbers) == 1


class ChunkedEnd:
    """Looks for the end of one body. `data_bytes` is what its chunks have had so far."""

    __slots__ = ("_is_behind_data", "_is_in_trailers", "_left", "_line", "_trailer_bytes", "data_bytes")

    def __init__(self) -> None:
        self._line = b""
        self._left = self._trailer_bytes = self.data_bytes = 0
        self._is_behind_data = self._is_in_trailers = False

    def feed(self, data: bytes) -> bytes | None:
        """What comes behind the body, once its end has come. Raises NotHttp."""
        if self._line:
            data, self._line = self._line + data, b""
        at, size = 0, len(data)
        while at < size:
            if self._left:
                taken = min(self._left, size - at)
                self._left -= taken
                self._is_behind_data = not self._left
                self.data_bytes += taken
                at += taken
                continue
            end = data.find(b"\n", at)
            line = data[at : size if end < 0 else end]
            if self._is_behind_data and line.strip(b"\r"):
                raise NotHttp("has a chunk that is longer than it says")
            if len(line) + self._trailer_bytes > MOST_LINE_BYTES:
                raise NotHttp(f"has a line of more than {MOST_LINE_BYTES >> 10} KiB between its chunks")
            if end < 0:
                self._line = line
                return None
            at = end + 1
            if self._is_in_trailers:
                if line in (b"", b"\r"):
                    return data[at:]
                self._take_trailer(line)
            elif self._is_behind_data:
                self._is_behind_data = False
            else:
                self._take_size(line)
        return None

    def _take_size(self, line: bytes) -> None:
        size = _SIZE.match(line)  # what stands behind it is no matter
        if size is None:
            raise NotHttp("has a chunk without a size")
        self._left = int(size[1], 16)
        self._is_in_trailers = not self._left

    def _take_trailer(self, line: bytes) -> None:
        if b":" not in line or b"\r" in line[:-1]:
            raise NotHttp("has a trailer that is no header")
        self._trailer_bytes += len(line)


MOST_HEAD_BYTES = 16 << 10
MOST_BODY_BYTES = 64 << 10
MOST_INTERIM = 8


class Answer(NamedTuple):
    """A complete answer. `stays` tells whether the connection may take another request."""

    status: int
    retry_after: str
    stays: bool


class AnswerReader:
    """One for each connection: `feed` and `end` give the answer to the request that is under way."""

    def __init__(self) -> None:
        self._raw_head, self._searched = b"", 0
        self._head: AnswerHead | None = None
        self._chunks: ChunkedEnd | None = None
        self._body_bytes = self._interim = 0
        self._may_stay = True
        self.has_begun = False
        """Whether a byte of the answer has come."""

    def feed(self, data: bytes) -> Answer | None:
        """The answer, once it is complete. Raises NotHttp.

        What comes behind a complete answer makes the connection useless: no request asked for it.
        """
        self.has_begun = True
        head = self._head
        if head is None:
            found = self._feed_head(data)
            if found is None:
                return None
            head, data = found
            self._head = head
            self._chunks = ChunkedEnd() if head.is_chunked else None
        behind = data if head.length == 0 else self._behind_body(head, data)
        if behind is None:
            return None
        self._head, self.has_begun = None, False
        self._body_bytes = self._interim = 0
        return Answer(head.status, head.retry_after, self._may_stay and not behind)

    def end(self) -> Answer | None:
        """The answer that the end of the connection completes; None where it is cut short, or none is under way."""
        head = self._head
        if head is None or head.is_chunked or head.length is not None:
            return None
        return Answer(head.status, head.retry_after, False)

    def _feed_head(self, data: bytes) -> tuple[AnswerHead, bytes] | None:
        """The head of the answer and what comes behind it, once it is whole; interim answers are passed over."""
        raw = self._raw_head + data if self._raw_head else data
        while True:
            if not raw.startswith(BEGIN) and not BEGIN.startswith(raw):
                raise NotHttp("is no HTTP")
            end = END.search(raw, self._searched)
            if (end.end() if end else len(raw)) > MOST_HEAD_BYTES:
                raise NotHttp(f"has more than {MOST_HEAD_BYTES >> 10} KiB of headers")
            if end is None:
                self._raw_head, self._searched = raw, max(raw.rfind(b"\n"), 0)
                return None
            head = head_of(raw[: end.start() + 1])
            raw = raw[end.end() :]
            self._raw_head, self._searched = b"", 0
            self._may_stay = self._may_stay and head.may_stay
            if not 100 <= head.status < 200 or head.status == 101:  # behind 101 comes no other: nobody here asks for it
                return head, raw
            self._interim += 1
            if self._interim > MOST_INTERIM:
                raise NotHttp(f"comes after more than {MOST_INTERIM} interim ones")

    def _behind_body(self, head: AnswerHead, data: bytes) -> bytes | None:
        """What comes behind the body, once the body is whole; the body itself is not kept. Raises NotHttp."""
        behind: bytes | None = None
        if self._chunks is not None:
            behind = self._chunks.feed(data)
            self._body_bytes = self._chunks.data_bytes
        else:
            if head.length is not None and len(data) >= (left := head.length - self._body_bytes):
                data, behind = data[:left], data[left:]
            self._body_bytes += len(data)
        if self._body_bytes > MOST_BODY_BYTES:
            raise NotHttp(f"has more than {MOST_BODY_BYTES >> 10} KiB")
        return behind
