"""A broker of AMQP that does what a test says, frame by frame, for whatever no real one does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from pamqp import body, commands, frame, header, heartbeat

TUNE = commands.Connection.Tune(10, 131_072, 60)


class Published(NamedTuple):
    """One message, and its number on its channel, which is its delivery tag."""

    tag: int
    message_id: str
    body: bytes


class Peer:
    """One connection of a client's, seen from the broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._tags = 0

    def send(self, method: Any, channel: int = 1) -> None:
        """Send one method."""
        self.raw(frame.marshal(method, channel))

    def raw(self, data: bytes) -> None:
        """Send bytes, whatever they are."""
        self._writer.write(data)

    def hang_up(self) -> None:
        """End the connection without a word."""
        self._writer.transport.abort()

    async def preamble(self) -> bytes:
        """What a client says first."""
        return await self._reader.readexactly(8)

    async def read(self) -> tuple[int, Any]:
        """The next frame of the client's that is no heartbeat, and its channel."""
        while True:
            start = await self._reader.readexactly(7)
            rest = await self._reader.readexactly(int.from_bytes(start[3:], "big") + 1)
            _, channel, found = frame.unmarshal(start + rest)
            if not isinstance(found, heartbeat.Heartbeat):
                return channel, found

    async def expect(self, kind: type[Any]) -> Any:
        """The next frame, which is of this kind."""
        _, found = await self.read()
        assert isinstance(found, kind), found
        return found

    async def shake_hands(self, tune: commands.Connection.Tune = TUNE) -> None:
        """Let the client in."""
        await self.preamble()
        self.send(commands.Connection.Start(0, 9, {}, "AMQPLAIN PLAIN", "en_US"), 0)
        await self.expect(commands.Connection.StartOk)
        self.send(tune, 0)
        await self.expect(commands.Connection.TuneOk)
        await self.expect(commands.Connection.Open)
        self.send(commands.Connection.OpenOk(), 0)

    async def open_channel(self, channel: int = 1) -> None:
        """Give the client its channel in confirm mode."""
        for asked, answer in (
            (commands.Channel.Open, commands.Channel.OpenOk()),
            (commands.Confirm.Select, commands.Confirm.SelectOk()),
            (commands.Exchange.Declare, commands.Exchange.DeclareOk()),
        ):
            await self.expect(asked)
            self.send(answer, channel)

    async def goodbye(self) -> None:
        """Wait until the client goes, and let it."""
        while not isinstance((await self.read())[1], commands.Connection.Close):
            pass
        self.send(commands.Connection.CloseOk(), 0)

    async def published(self) -> Published:
        """The next message."""
        method = await self.expect(commands.Basic.Publish)
        assert method.mandatory
        head = await self.expect(header.ContentHeader)
        payload = b""
        while len(payload) < (head.body_size or 0):
            payload += (await self.expect(body.ContentBody)).value
        self._tags += 1
        return Published(self._tags, head.properties.message_id, payload)


@contextlib.asynccontextmanager
async def scripted(*scripts: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[str]:
    """A broker's address; its first connection does the first script, and so on, the last one also all further ones.

    What a script raises is raised at the end, save for the end of its connection.
    """
    failures: list[BaseException] = []
    running: set[asyncio.Task[None]] = set()
    left = list(scripts)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = left.pop(0) if len(left) > 1 else left[0]
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            peer = Peer(reader, writer)
            await script(peer)
            await peer.goodbye()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as exc:
            failures.append(exc)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    if failures:
        raise failures[0]
