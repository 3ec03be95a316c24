"""The sockets that events come in by, which the supervisor opens and all workers accept from; with TLS where wanted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from remora.process.sockets import BACKLOG, shown_address
from remora.servers.ingest.connections import HANDSHAKE_S


@asynccontextmanager
async def accepting(
    sockets: Sequence[socket.socket], tls: ssl.SSLContext | None, accept: Callable[[], asyncio.Protocol]
) -> AsyncIterator[tuple[list[asyncio.Server], str]]:
    """Accept connections from these sockets while the block runs; gives the listeners, and the address for clients."""
    loop = asyncio.get_running_loop()
    handshake_s = HANDSHAKE_S if tls else None
    with contextlib.ExitStack() as stack:
        listeners = []
        for each in sockets:
            create = loop.create_unix_server if each.family == socket.AF_UNIX else loop.create_server
            listener = await create(accept, sock=each, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=handshake_s)
            stack.callback(listener.close)
            listeners.append(listener)
        address = shown_address(sockets)
        yield listeners, address if address.startswith("unix:") else f"{'https' if tls else 'http'}://{address}"
