"""A request as the API gets it: its head, its body as it arrives, and whose it is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from remora.servers.http.head import Head

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
