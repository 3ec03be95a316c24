"""What a connection and the server that it belongs to need of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from remora.servers.ingest.body_budget import BodyReader
from remora.servers.ingest.request import Request
from remora.servers.ingest.response import Response


class Peer(BodyReader, Protocol):
    """A connection, as those see it who answer its requests."""

    @property
    def peer(self) -> str:
        """The client's address; empty on a Unix socket."""
        ...


class Service(Protocol):
    """Who answers the requests of all connections."""

    @property
    def stopping(self) -> bool:
        """Whether a connection ends with its next answer."""
        ...

    async def answer(self, request: Request, connection: Peer, answered: Callable[[Response], None]) -> None:
        """Call `answered` with the answer, whatever happens. It may be begun without a task: see `begun`."""
        ...

    def refuse(self, request: Request | None, exc: Exception, peer: str) -> Response:
        """The answer to what failed with this; None is a request that cannot be read."""
        ...
