"""The network between the daemons and the brokers: a small proxy before each broker, which can cut, delay and hold.

It looks at the heads of requests only: who sends, and whether records or the end of a transaction are in it. So what
a daemon tried to send is known without asking the daemon.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

CHUNK_BYTES = 1 << 16
_HEAD_BYTES = 64
_CLIENT = struct.Struct(">hhih")  # api key, version, correlation id, length of the client's name
PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 24, 25, 26, 28
SENDS = frozenset({PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT})
"""Requests that bring records, or a transaction nearer to its end."""


class Frames:
    """Finds the requests in a stream of bytes."""

    def __init__(self) -> None:
        self._begun = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, str]]:
        """Kind and client of each request whose head is complete by now."""
        jump = min(self._skip, len(data))
        self._skip -= jump
        self._begun += data[jump:]
        while len(self._begun) >= 4:
            size = int.from_bytes(self._begun[:4], "big")
            if len(self._begun) < 4 + min(size, _HEAD_BYTES):
                return
            yield _head(bytes(self._begun[4 : 4 + min(size, _HEAD_BYTES)]))
            self._skip = max(0, 4 + size - len(self._begun))
            del self._begun[: 4 + size]


def _head(head: bytes) -> tuple[int, str]:
    kind, _, _, length = _CLIENT.unpack_from(head)
    return kind, head[_CLIENT.size : _CLIENT.size + max(0, length)].decode(errors="replace")


@dataclass(eq=False)
class Connection:
    """One connection of a client through a proxy."""

    writers: tuple[asyncio.StreamWriter, ...]
    opened_at: float = field(default_factory=time.monotonic)
    client: str = ""
    sends: int = 0

    def close(self) -> None:
        for each in self.writers:
            each.transport.abort()


class Network:
    """The proxies of all brokers; `doors` are the ports that they listen on, each with its broker's."""

    def __init__(self, doors: Mapping[int, int]) -> None:
        self._doors = doors
        self._connections: set[Connection] = set()
        self._delay_s = 0.0
        self._is_cut = False
        self._held = ""
        self._flows = asyncio.Event()
        self._flows.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Network]:
        """Proxies that listen."""
        servers = [
            await asyncio.start_server(partial(self._serve, port), "127.0.0.1", door)
            for door, port in self._doors.items()
        ]
        try:
            yield self
        finally:
            for server in servers:
                server.close()
            self._close_all()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """All connections are cut, and new ones at once too."""
        self._is_cut = True
        self._close_all()
        try:
            yield
        finally:
            self._is_cut = False

    @contextmanager
    def delayed(self, seconds: float) -> Iterator[None]:
        """Whatever is sent, in either direction, arrives so much later."""
        self._delay_s = seconds
        try:
            yield
        finally:
            self._delay_s = 0.0

    @contextmanager
    def held(self, client: str) -> Iterator[None]:
        """Requests of a client arrive; their answers wait for the end of this."""
        self._held = client
        self._flows.clear()
        try:
            yield
        finally:
            self._held = ""
            self._flows.set()

    def sends(self, client: str, opened_before: float) -> int:
        """How often a client has tried to send over connections that are as old as that and still open."""
        return sum(each.sends for each in self._connections if each.client == client and each.opened_at < opened_before)

    # ---------------------------------------------------------------------------------- one connection

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        connection = Connection((writer, to_broker))
        self._connections.add(connection)
        try:
            with suppress(OSError):
                requests = asyncio.create_task(self._requests(connection, reader, to_broker))
                answers = asyncio.create_task(self._answers(connection, from_broker, writer))
                done, left = await asyncio.wait([requests, answers], return_when=asyncio.FIRST_COMPLETED)
                for each in left:
                    each.cancel()
                await asyncio.gather(*done, *left, return_exceptions=True)
        finally:
            self._connections.discard(connection)
            connection.close()

    async def _requests(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        frames = Frames()
        while data := await reader.read(CHUNK_BYTES):
            for kind, client in frames.feed(data):
                connection.client = client
                connection.sends += kind in SENDS
            await asyncio.sleep(self._delay_s)
            writer.write(data)
            await writer.drain()

    async def _answers(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await asyncio.sleep(self._delay_s)
            if self._held and connection.client.startswith(self._held):
                await self._flows.wait()
            writer.write(data)
            await writer.drain()

    def _close_all(self) -> None:
        for each in list(self._connections):
            each.close()
