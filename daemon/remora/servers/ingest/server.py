"""The ingest server's life: listening, one look a second, and an end that finishes what is under way.

One look over all connections is cheaper than a timer for each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from remora.config.ingest import IngestSettings
from remora.config.settings import Settings
from remora.metrics import Telemetry
from remora.ports.producer import IngestStore
from remora.process.host_load import HostLoad
from remora.process.sockets import BACKLOG, shown_address
from remora.servers.http.connection import ConnectionPhase, ServedConnection
from remora.servers.http.connections import OpenConnections, Refused, listen
from remora.servers.http.request import Service
from remora.servers.ingest.api import Api
from remora.servers.ingest.credentials import Credentials
from remora.servers.ingest.desk import Desk
from remora.servers.ingest.limits import IngestLimits
from remora.servers.server import OfHost

LOOK_S = 1.0
HANDSHAKE_S = 10.0
"""A TLS handshake may take so long; until it is done there is nothing to talk to, and nothing to cut."""

GRACE_S = 3.0
STORE_S = 30.0
GOODBYE_S = 1.0
"""At the end: how long bodies may still arrive, the store may take (it has its own time-outs, below that), and answers
may be on their way to their readers."""


class IngestServer:
    """A server that takes requests, until it is asked to finish."""

    def __init__(
        self,
        address: str,
        listeners: Sequence[asyncio.Server],
        desk: Desk,
        connections: Connections,
        credentials: Credentials,
        telemetry: Telemetry,
    ) -> None:
        self.address = address
        self._listeners = listeners
        self._desk = desk
        self._connections = connections
        self._credentials = credentials
        self._telemetry = telemetry
        self._timer = asyncio.get_running_loop().call_soon(self._look)

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    @property
    def receiving(self) -> int:
        """Connections on which a request has begun whose headers are not complete."""
        return self._connections.receiving

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies of the requests that are under way."""
        return self._desk.body_budget.nbytes

    @property
    def waiting(self) -> int:
        """Requests that wait for memory."""
        return self._desk.body_budget.waiting

    def reload(self, settings: Settings) -> None:
        """Use these limits of tokens and topics from the next request on, and at once that of memory; read tokens and
        certificate again, as happens by itself within a second or two of their change."""
        self._desk.limits.configure(settings.ingest.limit)
        self._desk.body_budget.set_limit(settings.ingest.pause_at_bytes)
        self._credentials.reload()

    def end(self) -> None:
        """Take no more connections and requests; what is under way goes on. May be called again."""
        if self._desk.stopping:
            return
        self._desk.stopping = True
        for each in self._listeners:
            each.close()
        self._desk.body_budget.refuse_waiting()
        self._connections.end_idle()

    async def close(self) -> None:
        """Finish what is under way, and end every connection. Requests that still arrive are given a short time."""
        self.end()
        await self._finished(GRACE_S)
        self._connections.cut_all_but_answers()
        await self._finished(STORE_S)
        self._timer.cancel()

    async def _finished(self, most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._desk.idle.wait()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        self._connections.look()
        self._credentials.refresh()
        self._telemetry.ingest_load(self.connections, self._desk.under_way, self.held_bytes)
        self._telemetry.ingest_memory(is_paused=self._desk.body_budget.look(), waiting=self.waiting)


@asynccontextmanager
async def serve_ingest(
    settings: IngestSettings,
    sockets: Sequence[socket.socket],
    store: IngestStore,
    telemetry: Telemetry,
    *,
    reservation_s: float = 120.0,
    host: OfHost | None = None,
) -> AsyncIterator[IngestServer]:
    """Take events in by sockets that listen, while the block runs; when it ends, requests under way are finished.

    `reservation_s` is how long the store keeps a reservation open. Raises ConfigError for tokens or
    certificates that cannot be used.
    """
    host = host or OfHost(HostLoad.alone())
    credentials = Credentials(settings, telemetry, host.on_tokens)
    limits = IngestLimits(telemetry, host.bank, reservation_s)
    limits.configure(settings.limit)
    desk = Desk(settings, store, telemetry, credentials, host.load, limits)
    desk.tracer = host.tracer
    connections = Connections(
        Api(desk),
        telemetry,
        host.load,
        most=settings.max_connections,
        request_timeout_s=settings.request_timeout_s,
        idle_timeout_s=settings.idle_timeout_s,
        handshakes=credentials.tls is not None,
    )
    async with accepting(sockets, credentials.tls, connections.accept) as (listeners, address):
        server = IngestServer(address, listeners, desk, connections, credentials, telemetry)
        telemetry.ingest_serving(address, None if credentials.tokens is None else len(credentials.tokens))
        try:
            yield server
        finally:
            await server.close()
            await connections.close(GOODBYE_S)


@asynccontextmanager
async def accepting(
    sockets: Sequence[socket.socket], tls: ssl.SSLContext | None, accept: Callable[[], asyncio.Protocol]
) -> AsyncIterator[tuple[list[asyncio.Server], str]]:
    """Accept connections from these sockets while the block runs; gives the listeners, and the address for clients."""
    options = {"ssl": tls, "backlog": BACKLOG, "ssl_handshake_timeout": HANDSHAKE_S if tls else None}
    with contextlib.ExitStack() as stack:
        listeners = [await listen(stack, each, accept, **options) for each in sockets]
        address = shown_address(sockets)
        yield listeners, address if address.startswith("unix:") else f"{'https' if tls else 'http'}://{address}"


class Connections(OpenConnections):
    """All of the ingest server: how many there may be, and how long each may be silent or slow."""

    def __init__(
        self,
        service: Service,
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
        super().__init__()
        self._service = service
        self._telemetry = telemetry
        self._host = host
        self._most = most
        self._request_timeout_s = request_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._handshakes = handshakes
        self._arriving: dict[ServedConnection, float] = {}

    @property
    def receiving(self) -> int:
        """Those on which a request has begun whose headers are not complete."""
        return sum(each.phase is ConnectionPhase.HEADERS for each in self._open)

    @property
    def is_paused(self) -> bool:
        """As `OpenConnections`."""
        return self._host.is_paused

    def accept(self) -> asyncio.Protocol:
        """The protocol for a connection that was accepted; one too many is closed at once."""
        if self._host.connections >= self._most:
            self._telemetry.ingest_connection_cut("too many")
            return Refused()
        connection = ServedConnection(self, self._service)
        if self._handshakes:
            self._arriving[connection] = self._loop.time()
            self._count()
        return connection

    def made(self, connection: ServedConnection) -> None:
        """As `OpenConnections`."""
        self._arriving.pop(connection, None)
        super().made(connection)
        self._count()

    def lost(self, connection: ServedConnection) -> None:
        """As `OpenConnections`."""
        super().lost(connection)
        self._count()

    def look(self) -> None:
        """Cut connections that have been silent or slow for too long."""
        now = self._loop.time()
        for connection in list(self._open):
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
        for connection in list(self._open):
            if connection.phase is ConnectionPhase.IDLE:
                connection.end()

    def cut_all_but_answers(self) -> None:
        """End all but those whose request is complete and has no answer yet."""
        for connection in list(self._open):
            if connection.phase is not ConnectionPhase.ANSWER:
                connection.cut()
