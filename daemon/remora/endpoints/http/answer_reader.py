"""Reads the answers of one connection: status, Retry-After, and where each ends. Bounded in bytes, and pure.

By hand, since no parser that was weighed takes what radosgw's libcurl takes. httptools (llhttp, in C) refuses equal
lengths that stand twice, what is odd in a status line or in the name of a header, and lines of chunks that end with LF
alone; it takes an interim answer with an encoding for one with a body, and has no call for the end of the input. So
does aiohttp, over the same parser. h11 is stricter still. An answer of nginx takes 1.3 us here where its head is
remembered, else 4 us, and took 1.7 us over httptools, which calls for each header.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from remora.endpoints.http.heads import BEGIN, END, AnswerHead, NotHttp, head_of

MOST_LINE_BYTES = 16 << 10
"""Of a line with a chunk's size, and of all trailers."""

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,17})(?![0-9A-Fa-f])")


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
            if not head.is_interim:
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
