"""Servers of scripted endpoints, which hold no connection longer than their test."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable


@contextlib.asynccontextmanager
async def serving_streams(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    port: int = 0,
    context: ssl.SSLContext | None = None,
    limit: int = 1 << 16,
) -> AsyncIterator[int]:
    """Serve each connection of a port, one of its own by default; in the end all its connections are cut.

    `limit` bounds the bytes of a connection that are read ahead.
    """
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        task.add_done_callback(handlers.discard)
        with contextlib.suppress(asyncio.CancelledError):  # asyncio's streams complain of handlers that are cancelled
            await serve(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", port, ssl=context, limit=limit)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(handlers):
            task.cancel()
        if handlers:
            await asyncio.wait(list(handlers))
        await server.wait_closed()
