"""Answers, the bytes that they are sent as, and their order: that of the requests of their connection."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from types import MappingProxyType
from wsgiref.handlers import format_date_time

from remora.servers.http.head import Head

_FIRST_LINES: Mapping[int, bytes] = MappingProxyType(
    {each.value: b"HTTP/1.1 %d %b\r\n" % (each.value, each.phrase.encode()) for each in HTTPStatus}
)
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Response:
    """An answer: its status, headers without those of the connection, and body."""

    __slots__ = ("body", "closes", "headers", "status")

    def __init__(self, status: int, body: bytes = b"", headers: Mapping[str, str] = _NO_HEADERS) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.closes = False

    def close(self) -> None:
        """End the connection with this answer."""
        self.closes = True

    def encode(self, *, is_head: bool = False, says_alive: bool = False) -> bytes:
        """The answer as it is sent; without its body to HEAD, and `says_alive` to a client of HTTP/1.0 that asked."""
        parts = [_beginning(self.status, tuple(self.headers.items()))]
        if self.status != HTTPStatus.NO_CONTENT:
            parts.append(b"Content-Length: %d\r\n" % len(self.body))
        if self.closes:
            parts.append(b"Connection: close\r\n")
        elif says_alive:
            parts.append(b"Connection: keep-alive\r\n")
        parts.append(_date.line())
        if not is_head:
            parts.append(self.body)
        return b"".join(parts)


@lru_cache(maxsize=64)
def _beginning(status: int, headers: tuple[tuple[str, str], ...]) -> bytes:
    """The first line and the headers that the answer has by itself, which are nearly always the same."""
    lines = [f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in headers]
    return b"".join((_FIRST_LINES[status], *lines))


class _Date:
    """The last header, which is the same for a second."""

    def __init__(self) -> None:
        self._second, self._line = 0, b""

    def line(self) -> bytes:
        """The header, and the end of the headers."""
        second = int(time.time())
        if second != self._second:
            self._second, self._line = second, f"Date: {format_date_time(second)}\r\n\r\n".encode()
        return self._line


_date = _Date()


MOST_PIPELINED = 32
"""Requests that a client may send ahead and that are begun before the first of them is answered."""


class PendingRequest:
    """One request, from its head to its answer. It does not hold the request, whose body ends with its answer."""

    __slots__ = ("_changed", "_head", "early", "response")

    def __init__(self, head: Head | None, changed: Callable[[PendingRequest], None]) -> None:
        """`head` is None where what came cannot be read; `changed` is called when there is something to send."""
        self._head = head
        self._changed = changed
        self.response: Response | None = None
        self.early = b""
        """What is to be sent before the answer, and was not yet."""

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may come behind it."""
        return self._head is not None and self._head.keeps_alive

    def say(self, early: bytes) -> None:
        """Send this, when it is this request's turn."""
        self.early += early
        self._changed(self)

    def end(self, response: Response) -> None:
        """This is the answer."""
        self.response = response
        self._changed(self)

    def encoded(self, response: Response) -> bytes:
        """The answer as it is sent."""
        head = self._head
        return response.encode(
            is_head=head is not None and head.method == "HEAD", says_alive=head is not None and head.version == "1.0"
        )


class Pipeline(deque[PendingRequest]):
    """The requests of a connection that are under way, the oldest first (HTTP pipelining, RFC 9112, 9.3.2)."""

    __slots__ = ()

    def take(self) -> tuple[bytes, bool]:
        """What can be sent now, and whether the connection ends with it."""
        parts: list[bytes] = []
        while self and (response := self[0].response) is not None:
            parts.append(self.popleft().encoded(response))
            if response.closes:
                self.clear()
                return b"".join(parts), True
        if self and self[0].early:
            parts.append(self[0].early)
            self[0].early = b""
        return b"".join(parts), False
