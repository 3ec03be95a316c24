"""A server that answers each line with the store's description: the least that a third kind of server needs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from remora.config import Settings
from remora.process.sockets import listening_sockets, shown_address
from remora.servers.server import Serving


@contextmanager
def listen(settings: Settings) -> Iterator[Sequence[socket.socket]]:
    """A socket at the address in the environment; what the settings say does not matter to it."""
    with listening_sockets("line.listen", os.environ["LINE_SERVER"], int(settings.ingest.socket_mode, 8)) as found:
        yield found


class LineServer:
    """Serves until it is told to finish."""

    def __init__(self, address: str, servers: Sequence[asyncio.Server]) -> None:
        self.address = address
        self._servers = servers

    def reload(self, settings: Settings) -> None:
        """Nothing: it has no files."""

    def end(self) -> None:
        """Take no more connections."""
        for each in self._servers:
            each.close()


@asynccontextmanager
async def serve(sockets: Sequence[socket.socket], given: Serving) -> AsyncIterator[LineServer]:
    """Answer on these sockets while the block runs."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(given.store.description.encode() + b"\n")
            await writer.drain()
        writer.close()

    address = shown_address(sockets)
    server = LineServer(address, [await asyncio.start_unix_server(answer, sock=each) for each in sockets])
    try:
        yield server
    finally:
        server.end()
