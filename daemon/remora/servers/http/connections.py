"""Where a server's connections come from, which are open, and the tasks that answer their requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from remora.servers.http.connection import ServedConnection


async def listen(
    stack: contextlib.ExitStack, bound: socket.socket, accept: Callable[[], asyncio.Protocol], **options: Any
) -> asyncio.Server:
    """Accept connections from a socket until the stack is left, also by a cancellation in here; that closes it."""
    loop = asyncio.get_running_loop()
    create = loop.create_unix_server if bound.family == socket.AF_UNIX else loop.create_server
    stack.enter_context(bound)
    # Not serving yet: a listener that serves first waits for a turn, in which nobody has it who could close it.
    listener = await create(accept, sock=bound, start_serving=False, **options)
    stack.callback(listener.close)
    await listener.start_serving()
    return listener


class OpenConnections:
    """All of them, the oldest first, from the first byte that may come to the last that was sent. As `Host` in
    `connection`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: dict[ServedConnection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_gone = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_paused(self) -> bool:
        """Whether bodies wait for memory."""
        return False

    def made(self, connection: ServedConnection) -> None:
        """It is open."""
        self._open[connection] = None

    def lost(self, connection: ServedConnection) -> None:
        """It is gone."""
        self._open.pop(connection, None)
        if not self._open:
            self._all_gone.set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer a request in a task. It outlives its connection: what is handed to the store is stored."""
        task = self._loop.create_task(work, name="request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finished(self, within_s: float) -> None:
        """Wait for the requests under way, until this time has passed at the latest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)

    async def close(self, within_s: float) -> None:
        """End all of them: what was written has this time to be sent, and requests under way are given up."""
        for connection in list(self._open):
            connection.end()
        if self._open:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._all_gone.wait()
        for connection in list(self._open):
            connection.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Refused(asyncio.Protocol):
    """A connection too many: closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
