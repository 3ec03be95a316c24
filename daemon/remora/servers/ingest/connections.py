"""The open connections: how many there may be, and how long each may be silent or slow.

One look a second over all connections is cheaper than a timer for each request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from remora.metrics import Telemetry
from remora.process.host_load import HostLoad
from remora.servers.ingest.handler import ConnectionPhase, IngestConnection
from remora.servers.ingest.service import Service

LOOK_S = 1.0
HANDSHAKE_S = 10.0
"""A TLS handshake may take so long; until it is done there is nothing to talk to, and nothing to cut."""


class Connections:
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
        self._loop = asyncio.get_running_loop()
        self._service = service
        self._telemetry = telemetry
        self._host = host
        self._most = most
        self._request_timeout_s = request_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._handshakes = handshakes
        self._arriving: dict[IngestConnection, float] = {}
        self._open: set[IngestConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_gone = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def receiving(self) -> int:
        """Those on which a request has begun whose headers are not complete."""
        return sum(each.phase is ConnectionPhase.HEADERS for each in self._open)

    @property
    def is_paused(self) -> bool:
        """Whether bodies wait for memory."""
        return self._host.is_paused

    def accept(self) -> asyncio.Protocol:
        """The protocol for a connection that was accepted; one too many is closed at once."""
        if self._host.connections >= self._most:
            self._telemetry.ingest_connection_cut("too many")
            return _Refused()
        connection = IngestConnection(self, self._service)
        if self._handshakes:
            self._arriving[connection] = self._loop.time()
            self._count()
        return connection

    def made(self, connection: IngestConnection) -> None:
        """It is open."""
        self._arriving.pop(connection, None)
        self._open.add(connection)
        self._count()

    def lost(self, connection: IngestConnection) -> None:
        """It is gone."""
        self._open.discard(connection)
        self._count()
        if not self._open:
            self._all_gone.set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer a request in a task. It outlives its connection: what is handed to the store is stored."""
        task = self._loop.create_task(work, name="ingest request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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

    def cut_all(self, *, but_answers: bool = False) -> None:
        """End all of them; with `but_answers` those stay whose request is complete and has no answer yet."""
        for connection in list(self._open):
            if not (but_answers and connection.phase is ConnectionPhase.ANSWER):
                connection.cut()

    async def close(self, within_s: float) -> None:
        """End all of them: what was written may still be sent for so long, and requests under way are given up."""
        for connection in list(self._open):
            connection.end()
        if self._open:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._all_gone.wait()
        self.cut_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
