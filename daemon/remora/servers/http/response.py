"""Answers, and the bytes that they are sent as."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from wsgiref.handlers import format_date_time

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
        parts = [_FIRST_LINES[self.status]]
        parts += [f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in self.headers.items()]
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
