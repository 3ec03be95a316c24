"""An HTTP receiver that answers by plan: it keeps what arrives in order, and can do everything wrong."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from devkit.receivers.streams import serving_streams


@dataclass(frozen=True)
class Arrival:
    """One request, whole. `connection` numbers connections from 0 on, `before` the requests on it before this one."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int
    before: int


@dataclass(frozen=True)
class Reply:
    """What is sent: `raw`, after `until` where that is given; `ends` closes the connection then.

    `counts` says whether the receiver has taken the request: what it refuses or drops it has not.
    """

    raw: bytes = b"HTTP/1.1 204 No Content\r\n\r\n"
    until: asyncio.Event | None = None
    ends: bool = False
    counts: bool = True


OK = Reply()
DROPPED = Reply(b"", ends=True, counts=False)
"""The connection ends without an answer."""


def status(code: int, headers: str = "") -> Reply:
    """A short answer; the receiver has taken the request if the code says so."""
    return Reply(f"HTTP/1.1 {code} x\r\n{headers}Content-Length: 0\r\n\r\n".encode(), counts=200 <= code < 300)


Plan = Callable[[Arrival], Reply]


@dataclass
class Receiver:
    """See the module. `taken` are the requests that it took, in the order in which they arrived."""

    plan: Plan
    port: int = 0
    is_tls: bool = False
    came: list[Arrival] = field(default_factory=list)
    taken: list[Arrival] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    most_open: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[bytes]:
        return [each.body for each in self.taken]

    def hang_up(self) -> None:
        """Close every connection that is open now."""
        for writer in list(self.writers):
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self.writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                before = 0
                while not await self._one(reader, writer, number, before):
                    before += 1
        finally:
            self.open -= 1
            self.writers.discard(writer)
            writer.close()

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int, before: int
    ) -> bool:
        """Take one request; returns whether the connection has ended."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        arrival = Arrival(head[0], headers, body, connection, before)
        self.came.append(arrival)
        reply = self.plan(arrival)
        if reply.counts:
            self.taken.append(arrival)
        if reply.until is not None:
            await reply.until.wait()
        writer.write(reply.raw)
        await writer.drain()
        return reply.ends


@contextlib.asynccontextmanager
async def receiving(plan: Plan = lambda _: OK, context: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver on a port of its own; in the end all its connections are cut."""
    receiver = Receiver(plan, is_tls=context is not None)
    async with serving_streams(receiver.serve, context=context, limit=1 << 26) as receiver.port:
        yield receiver
