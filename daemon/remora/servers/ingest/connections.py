"""The connections of the ingest server: how many there may be, and how long each may be silent or slow.

One look a second over all connections is cheaper than a timer for each request.
"""

from __future__ import annotations

import asyncio

from remora.metrics import Telemetry
from remora.process.host_load import HostLoad
from remora.servers.http.connection import ConnectionPhase, ServedConnection
from remora.servers.http.connections import OpenConnections, Refused
from remora.servers.http.service import Service

LOOK_S = 1.0
HANDSHAKE_S = 10.0
"""A TLS handshake may take so long; until it is done there is nothing to talk to, and nothing to cut."""


class Connections(OpenConnections):
    """All of them, and the bounds that they share."""

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
