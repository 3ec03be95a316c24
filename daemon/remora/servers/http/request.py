"""A request as the API gets it: its head, and its body as it arrives, by its length or in chunks; and who answers it.

Chunks (RFC 9112, 7.1) are decoded strictly: where one ends must not be a matter of opinion.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Protocol

from remora.servers.http.head import Head, NotARequest
from remora.servers.http.response import Response

MOST_UNREAD = 128 << 10
"""Bytes of a body that may wait for their reader; beyond that the connection is not read."""


class BodyBroken(Exception):
    """The body will never be whole: the connection has ended, or what came is none."""


class BodyStream:
    """The body of one request, as it arrives: the connection feeds it, and one reads it."""

    __slots__ = ("_broken", "_go_on", "_is_full", "_nbytes", "_pieces", "_waiter", "is_complete")

    def __init__(self, go_on: Callable[[], None]) -> None:
        """`go_on` is called when a stream that was full has room again."""
        self._go_on = go_on
        self._pieces: deque[bytes] = deque()
        self._nbytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._broken = ""
        self._is_full = False
        self.is_complete = False
        """Whether all of it has come."""

    @property
    def is_read(self) -> bool:
        """Whether all of it was read."""
        return self.is_complete and not self._pieces

    def feed(self, data: bytes) -> bool:
        """A part has arrived; whether the stream has room for more."""
        if data:
            self._pieces.append(data)
            self._nbytes += len(data)
            self._wake()
        self._is_full = self._nbytes > MOST_UNREAD
        return not self._is_full

    def end(self) -> None:
        """It is complete."""
        self.is_complete = True
        self._wake()

    def fail(self, reason: str) -> None:
        """It will never be complete."""
        if not self.is_complete:
            self._broken = self._broken or reason
            self._wake()

    async def read(self) -> bytes:
        """What has come, as soon as something has; nothing at the end. Raises BodyBroken."""
        while not self._pieces:
            if self._broken:
                raise BodyBroken(self._broken)
            if self.is_complete:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._nbytes = 0
        if self._is_full:
            self._is_full = False
            self._go_on()
        return piece

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Request:
    """One request. `body` is all of its body where that came with the head, else None."""

    __slots__ = ("_content", "body", "head", "tell")

    def __init__(
        self, head: Head, body: bytes | None, content: BodyStream | None, tell: Callable[[bytes], None]
    ) -> None:
        """`tell` sends something before the answer. One of `body` and `content` is given."""
        self.head = head
        self.body = body
        self.tell = tell
        self._content = content

    @property
    def content(self) -> BodyStream:
        """The body as it arrives."""
        if self._content is None:
            self._content = BodyStream(lambda: None)  # nothing waits for a body that has come whole
            self._content.feed(self.body or b"")
            self._content.end()
        return self._content


MOST_LINE = 1024
"""Bytes of a chunk's first line, which has its length and extensions that nobody needs."""

MOST_TRAILERS = 8192
"""Bytes of the trailers, which are passed over."""

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")


class ChunkDecoder:
    """Decodes one body from bytes that come in parts."""

    def __init__(self) -> None:
        self._left = 0
        self._is_behind_data = self._is_in_trailers = False
        self._trailer_bytes = 0
        self.is_whole = False
        """Whether its end has come."""

    def decode(self, data: bytearray) -> bytes:
        """Take what can be decoded from the beginning of `data`, and return what it stands for. Raises NotHttp."""
        pieces: list[bytes] = []
        begin = 0
        while not self.is_whole and begin < len(data):
            if self._left:
                piece = bytes(data[begin : begin + self._left])
                pieces.append(piece)
                begin += len(piece)
                self._left -= len(piece)
                self._is_behind_data = not self._left
                continue
            if (line := _line(data, begin)) is None:
                break
            begin += len(line) + 2
            self._take(line)
        del data[:begin]
        return b"".join(pieces)

    def _take(self, line: bytes) -> None:
        """The next line that is not data."""
        if self._is_behind_data:
            if line:
                raise NotARequest("a chunk is longer than it says")
            self._is_behind_data = False
        elif self._is_in_trailers:
            self._take_trailer(line)
        elif found := _SIZE.fullmatch(line):
            self._left = int(found[1], 16)
            self._is_in_trailers = not self._left
        else:
            raise NotARequest("a chunk has no length")

    def _take_trailer(self, line: bytes) -> None:
        if not line:
            self.is_whole = True
            return
        self._trailer_bytes += len(line)
        if self._trailer_bytes > MOST_TRAILERS or not _TRAILER.fullmatch(line):
            raise NotARequest("the trailers are too long, or none")


def _line(data: bytearray, begin: int) -> bytes | None:
    """The line that begins here, without its end; None while it is not complete."""
    end = data.find(b"\n", begin, begin + MOST_LINE + 2)
    if end < 0:
        if len(data) - begin > MOST_LINE:
            raise NotARequest(f"a line between chunks is longer than {MOST_LINE} bytes")
        return None
    if data[end - 1 : end] != b"\r" or end == begin:
        raise NotARequest("a line between chunks does not end in CR LF")
    return bytes(data[begin : end - 1])


class ArrivingBody:
    """The body that is arriving; without a stream it is thrown away."""

    __slots__ = ("_chunks", "_left", "stream")

    def __init__(self, length: int | None, stream: BodyStream) -> None:
        self._left = length or 0
        self._chunks = ChunkDecoder() if length is None else None
        self.stream: BodyStream | None = stream

    def take(self, data: bytes) -> tuple[bytes, bool]:
        """Take what belongs to it from the beginning of `data`; what is left, and whether there is room for more.

        Raises NotHttp.
        """
        if self._chunks:
            ahead = bytearray(data)
            data, rest = self._chunks.decode(ahead), bytes(ahead)
        elif len(data) <= self._left:
            rest = b""
            self._left -= len(data)
        else:
            data, rest = data[: self._left], data[self._left :]
            self._left = 0
        has_room = self.stream.feed(data) if self.stream else True
        if self.is_whole and self.stream:
            self.stream.end()
        return rest, has_room

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return self._chunks.is_whole if self._chunks else not self._left


class BodyReader(Protocol):
    """A connection, as far as it is read or not."""

    def hold_for_memory(self) -> None:
        """Read nothing more of it for now."""

    def go_on_for_memory(self) -> None:
        """Read it again."""


class Peer(BodyReader, Protocol):
    """A connection, as those see it who answer its requests."""

    @property
    def peer(self) -> str:
        """The client's address; empty on a Unix socket."""
        ...

    def told(self, name: str) -> object:
        """What its transport says by this name (`get_extra_info`); None as soon as the connection is gone."""
        ...


class Service(Protocol):
    """Who answers the requests of all connections."""

    @property
    def stopping(self) -> bool:
        """Whether a connection ends with its next answer."""
        ...

    async def answer(self, request: Request, connection: Peer, answered: Callable[[Response], None]) -> None:
        """Call `answered` with the answer, whatever happens. It may be begun without a task: see `begun`."""
        ...

    def refuse(self, request: Request | None, exc: Exception, peer: str) -> Response:
        """The answer to what failed with this; None is a request that cannot be read."""
        ...
