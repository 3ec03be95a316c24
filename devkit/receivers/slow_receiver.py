"""An HTTP receiver that takes a while for each request: `slow_receiver.py PORT SECONDS`, as a program of its own.

Requests are of HTTP/1.1 with Content-Length, one after the other on a connection, as radosgw and remora post them. GET
is answered at once, with the number of requests that were answered before.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import cast

LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
BACKLOG = 4096


class Receiver(asyncio.Protocol):
    """One connection."""

    answered = 0

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._data = b""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """A part of a request, or the rest of it."""
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        length = LENGTH.search(head)
        if length is not None and len(body) < int(length[1]):
            return
        self._data = b""
        if head.startswith(b"GET"):
            text = b"%d" % Receiver.answered
            self._send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
        else:
            self._loop.call_later(self._seconds, self._answer)

    def _answer(self) -> None:
        Receiver.answered += 1
        self._send(OK)

    def _send(self, answer: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)


async def _serve(port: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Receiver(seconds), "127.0.0.1", port, backlog=BACKLOG)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
