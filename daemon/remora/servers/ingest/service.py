"""What a connection and the server that it belongs to need of each other."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from remora.servers.ingest.body_budget import Reader
from remora.servers.ingest.request import Request
from remora.servers.ingest.response import Response


class Peer(Reader, Protocol):
    """A connection, as those see it who answer its requests."""

    @property
    def peer(self) -> str:
        """The client's address; empty on a Unix socket."""
        ...

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this in a task, which outlives the connection."""
        ...


class Service(Protocol):
    """Who answers the requests of all connections."""

    @property
    def stopping(self) -> bool:
        """Whether a connection ends with its next answer."""
        ...

    def at_once(self, request: Request, connection: Peer, answered: Callable[[Response], None]) -> bool:
        """Begin a request that waits for nothing but the store, and call `answered` now or later.

        False for one that has to be answered in a task, and then nothing was done.
        """
        ...

    async def answer(self, request: Request, connection: Peer) -> Response:
        """The answer, whatever happens."""
        ...

    def refuse(self, request: Request | None, exc: Exception, peer: str) -> Response:
        """The answer to what failed with this; None is a request that cannot be read."""
        ...
