"""The open connections: how many there may be, and how long each may be silent or slow.

aiohttp cuts a connection that is idle between two requests, and nothing else. So a protocol of our own stands before
its handler, and notes the few moments that tell a slow client from a busy one. One look a second over all
connections is cheaper than a timer for each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, cast

from remora.metrics import Telemetry
from remora.process.host_load import HostLoad
from remora.servers.ingest.handler import Handler

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

LOOK_S = 1.0
HANDSHAKE_S = 10.0
"""A TLS handshake may take so long; until it is done there is nothing to talk to, and nothing to cut."""


class Phase(Enum):
    """What a connection waits for."""

    IDLE = auto()
    HEADERS = auto()
    BODY = auto()
    ANSWER = auto()


class Wait(Flag):
    """Why a connection is not read; it is again when there is no reason left."""

    ANSWER = auto()
    MEMORY = auto()


class Connections:
    """All of them, and the bounds that they share."""

    def __init__(
        self,
        new_handler: Callable[[], Handler],
        telemetry: Telemetry,
        host: HostLoad,
        *,
        most: int,
        request_timeout_s: float,
        idle_timeout_s: float,
        handshakes: bool,
    ) -> None:
        """`most` is for all workers of the host.

        With `handshakes`, a connection counts from its handshake on, which may fail without a word.
        """
        self._loop = asyncio.get_running_loop()
        self._new_handler = new_handler
        self._telemetry = telemetry
        self._host = host
        self._most = most
        self._request_timeout_s = request_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._handshakes = handshakes
        self._arriving: dict[Connection, float] = {}
        self._open: dict[RequestHandler, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def receiving(self) -> int:
        """Those on which a request has begun whose headers are not complete."""
        return sum(each.phase is Phase.HEADERS for each in self._open.values())

    @property
    def is_paused(self) -> bool:
        """Whether bodies wait for memory."""
        return self._host.is_paused

    def accept(self) -> asyncio.Protocol:
        """The protocol for a connection that was accepted; one too many is closed at once."""
        if self._host.connections >= self._most:
            self._telemetry.ingest_connection_cut("too many")
            return _Refused()
        connection = Connection(self)
        if self._handshakes:
            self._arriving[connection] = self._loop.time()
            self._count()
        return connection

    def of(self, handler: RequestHandler) -> Connection:
        """The connection of a request's handler; a detached one when it is gone meanwhile."""
        return self._open.get(handler) or Connection(self)

    def made(self, connection: Connection) -> Handler:
        """It is open: the handler that is to have it."""
        self._arriving.pop(connection, None)
        handler = self._new_handler()
        self._open[handler] = connection
        self._count()
        return handler

    def lost(self, handler: Handler) -> None:
        """It is gone."""
        self._open.pop(handler, None)
        self._count()

    def look(self) -> None:
        """Cut connections that have been silent or slow for too long."""
        now = self._loop.time()
        for connection in list(self._open.values()):
            if reason := connection.overdue(now, self._request_timeout_s, self._idle_timeout_s):
                self._telemetry.ingest_connection_cut(reason)
                connection.cut()
        for connection, since in list(self._arriving.items()):
            if now - since > HANDSHAKE_S + LOOK_S:
                del self._arriving[connection]
        self._count()

    def _count(self) -> None:
        self._host.hold_connections(len(self._open) + len(self._arriving))

    def end_idle(self) -> None:
        """End those that wait for nothing but another request."""
        for connection in list(self._open.values()):
            if connection.phase is Phase.IDLE:
                connection.end()

    def cut_all(self, *, but_answers: bool = False) -> None:
        """End all of them; with `but_answers` those stay whose request is complete and has no answer yet."""
        for connection in list(self._open.values()):
            if not (but_answers and connection.phase is Phase.ANSWER):
                connection.cut()


class Connection(asyncio.Protocol):
    """One connection: passes everything on, and remembers since when it has been in which phase."""

    __slots__ = ("_all", "_handler", "_loop", "_since", "_transport", "_unread_since", "_waits", "phase")

    _handler: Handler
    _transport: asyncio.Transport

    def __init__(self, connections: Connections) -> None:
        self._all = connections
        self._loop = asyncio.get_running_loop()
        self._unread_since: float | None = None
        self._since = 0.0
        self._waits = Wait(0)
        self.phase = Phase.IDLE

    def begin(self) -> None:
        """A request's headers are complete; its body has a time-out of its own."""
        self.phase = Phase.BODY

    def complete(self) -> None:
        """All of the request is there, and the store has its own time-outs."""
        self.phase = Phase.ANSWER

    def answered(self) -> None:
        """The request is answered, and the next one may come."""
        self.phase = Phase.IDLE
        self._since = self._loop.time()
        if self._waits:
            self._go_on(Wait.ANSWER | Wait.MEMORY)

    def hold_for_memory(self) -> None:
        """Leave what follows in the socket, until there is memory for it."""
        self._hold_up(Wait.MEMORY)

    def go_on_for_memory(self) -> None:
        """There is memory for what follows."""
        if self._waits:
            self._go_on(Wait.MEMORY)

    def _hold_up(self, reason: Wait) -> None:
        if not self._is_closing():
            self._waits |= reason
            self._transport.pause_reading()

    def _go_on(self, reason: Wait) -> None:
        self._waits &= ~reason
        if not self._waits and not self._is_closing() and not self._handler.holds_up:
            self._transport.resume_reading()

    def overdue(self, now: float, request_timeout_s: float, idle_timeout_s: float) -> str:
        """Why this connection is to be cut; empty where it is not."""
        if self._unread_since is not None and now - self._unread_since > request_timeout_s:
            return "unread"
        if self.phase is Phase.HEADERS and now - self._since > request_timeout_s:
            return "slow"
        if self.phase is Phase.IDLE and now - self._since > idle_timeout_s:
            return "idle"
        return ""

    def end(self) -> None:
        """Close it when all that was written is sent."""
        self._transport.close()

    def cut(self) -> None:
        """End it now; what a client did not read until now it need not have."""
        with contextlib.suppress(AttributeError):  # of asyncio's TLS transport when it is closed twice
            self._transport.abort()

    def _is_closing(self) -> bool:
        """Whether it ends, or never was: `Connections.of` gives such a one for a handler whose connection is gone."""
        transport = getattr(self, "_transport", None)
        return transport is None or transport.is_closing()

    # ------------------------------------------------------------------------------------ the protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._since = self._loop.time()
        self._handler = self._all.made(self)
        self._handler.connection_made(self._transport)

    def data_received(self, data: bytes) -> None:
        if self.phase is Phase.IDLE:
            self.phase = Phase.HEADERS
            self._since = self._loop.time()
        self._handler.data_received(data)
        if self.phase is Phase.ANSWER:
            # The next requests, whose bytes are not counted until it is their turn. The handler, which would read
            # many of them, lets reading go on whenever the end of one is found, so it comes first.
            self._hold_up(Wait.ANSWER)
        elif self.phase is Phase.HEADERS and self._handler.has_request and self._all.is_paused:
            self._hold_up(Wait.MEMORY)  # until the request has looked for itself, before which its body would come in

    def eof_received(self) -> bool:
        """The client sends nothing more; whether it may still read, and there is something to answer.

        Of a TLS connection no half can be closed.
        """
        self._handler.eof_received()
        transport = self._transport
        is_open = transport.get_extra_info("sslcontext") is None and not _is_gone(transport)
        return is_open and self._handler.half_close()

    def pause_writing(self) -> None:
        self._unread_since = self._loop.time()
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.lost(self._handler)
        self._handler.connection_lost(exc)


def _is_gone(transport: asyncio.Transport) -> bool:
    """Whether the client has closed both halves, as far as can be known: over TCP only a write tells."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), 0)
    return bool(poll.poll(0))


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
