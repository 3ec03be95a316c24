"""What a connection and the server that it belongs to need of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from remora.servers.http.request import Request
from remora.servers.http.response import Response


class BodyReader(Protocol):
    """A connection, as far as it is read or not."""

    def hold_for_memory(self) -> None:
        """Read nothing more of it for now."""

    def go_on_for_memory(self) -> None:
        """Read it again."""


class Peer(BodyReader, Protocol):
    """A connection, as those see it who answer its requests."""

    @property
    def peer(self) -> str:
        """The client's address; empty on a Unix socket."""
        ...

    def told(self, name: str) -> object:
        """What its transport says by this name (`get_extra_info`); None as soon as the connection is gone."""
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
