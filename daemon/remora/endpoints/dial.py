"""Opens a connection so that nothing is left of one that is not wanted any more.

A cancelled opening may have a connection already: it is made in the very turn of the event loop in which the
cancellation comes. Over TLS the event loop closes that one politely, and waits up to half a minute for the other side
to say goodbye, too. Nobody owns it then, so nobody else could cut it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

P = TypeVar("P", bound=asyncio.BaseProtocol)


class _Opening(asyncio.Protocol):
    """Remembers the transport of a connection, and leaves it to the protocol that it is for."""

    def __init__(self, meant: asyncio.BaseProtocol) -> None:
        self.meant = meant
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are of no such class
        self.transport.set_protocol(self.meant)
        self.meant.connection_made(transport)


async def dial(
    make: Callable[[], P], *address: Any, loop: asyncio.AbstractEventLoop | None = None, **options: Any
) -> tuple[asyncio.Transport, P]:
    """As `create_connection` of the event loop; where it fails or is cancelled, the connection is cut at once."""
    protocol = make()
    opening = _Opening(protocol)
    try:
        loop = loop or asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: opening, *address, **options)
    except BaseException:
        if opening.transport is not None:
            opening.transport.abort()
        raise
    return transport, protocol


class DiallingLoop:
    """The event loop for a library that opens connections by itself: they are opened as `dial` does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def create_connection(
        self, make: Callable[[], P], *address: Any, **options: Any
    ) -> tuple[asyncio.Transport, P]:
        """As that of the event loop."""
        return await dial(make, *address, loop=self._loop, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)
