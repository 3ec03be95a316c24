"""Endpoints that let everybody in and help nobody, and what they cost whoever tries them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

PART = 64 << 10


@dataclass
class Hanging:
    """A port that accepts every connection, reads what comes and never says a word; TLS too waits there for ever."""

    address: str = ""
    accepted: int = 0
    open: int = 0
    most: int = 0
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        self.most = max(self.most, self.open)
        self.came.set()
        try:
            with contextlib.suppress(ConnectionError):
                while await reader.read(PART):
                    pass
        finally:
            self.open -= 1
            writer.transport.abort()


@contextlib.asynccontextmanager
async def hanging_endpoint() -> AsyncIterator[Hanging]:
    """A `Hanging` on a port of its own; in the end all its connections are cut."""
    hanging = Hanging()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        task.add_done_callback(serving.discard)
        with contextlib.suppress(asyncio.CancelledError):  # asyncio's streams complain of handlers that are cancelled
            await hanging.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    hanging.address = "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    try:
        yield hanging
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        if serving:
            await asyncio.wait(list(serving))
        await server.wait_closed()
