"""Endpoints that let everybody in and help nobody, and what they cost a daemon that tries them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from devkit.receivers.streams import serving_streams

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
    async with serving_streams(hanging.serve) as port:
        hanging.address = f"127.0.0.1:{port}"
        yield hanging


@contextlib.asynccontextmanager
async def door_before(port: int, at: int, delay_s: float) -> AsyncIterator[Door]:
    """A `Door` that is found `at` this port; in the end all its connections are cut."""
    door = Door(port, delay_s)
    async with serving_streams(door.relay, at):
        yield door


class Door:
    """A port before a broker that lets everything through, `delay_s` late in each direction, and nothing while shut."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._port = port
        self._delay_s = delay_s
        self._open = asyncio.Event()
        self._open.set()

    def shut(self) -> None:
        """Hold back all that comes from now on; connections stay, and new ones are accepted."""
        self._open.clear()

    def reopen(self) -> None:
        """Let through what was held back, and all that comes."""
        self._open.set()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        with contextlib.suppress(OSError, ExceptionGroup):
            onward, answer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._copy(reader, answer))
                    tasks.create_task(self._copy(onward, writer))
            finally:
                answer.transport.abort()
        writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(PART):
            await asyncio.sleep(self._delay_s)
            await self._open.wait()
            writer.write(part)
            await writer.drain()
        raise ConnectionResetError  # either side's end ends both
