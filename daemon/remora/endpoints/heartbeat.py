"""A connection to a broker that sends signs of life, and ends by itself when the other side gives none."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

from remora.endpoints.tls import refused_client
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable

WRITE_BYTES = 256 << 10
"""About as much is handed to the transport at once; what is due beyond that waits until it was taken."""

GOODBYE_S = 1.0


class HeartbeatConnection(asyncio.Protocol, ABC):
    """What is alike whatever the protocol. `error` says why it has ended, and is set first.

    A subclass sets `_heard` to the loop's time whenever bytes come.
    """

    def __init__(
        self, name: str, heartbeat_s: float, on_end: Callable[[Any], None], *, shows_certificate: bool
    ) -> None:
        """`on_end` is called with this connection once it has ended."""
        self.name = name
        self.error: EndpointError | None = None
        self._shows_certificate = shows_certificate
        self._heartbeat_s = heartbeat_s
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._writable = True
        self._heard = 0.0
        self._beat: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()

    def __str__(self) -> str:
        return self.name

    # ----------------------------------------------------------------------------- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's over TLS is of no such class
        self._heard = self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        # A client certificate that is refused shows only here with TLS 1.3.
        refused = refused_client(exc, shown=self._shows_certificate) if exc else ""
        self._end(
            EndpointMisconfigured(f"{self}: {refused}")
            if refused
            else EndpointUnavailable(f"{self}: the connection broke")
        )
        self._transport = None  # one of asyncio's over TLS must not be aborted any more
        if not self._ended.done():
            self._ended.set_result(None)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._flush_soon()

    # ----------------------------------------------------------------------------- what protocols do in their way

    @abstractmethod
    def _flush_soon(self) -> None:
        """Have what is due written at the end of this turn of the loop, if it may be."""

    @abstractmethod
    def send_beat(self) -> None:
        """Send a sign of life."""

    @abstractmethod
    def fail_all(self, error: EndpointError) -> None:
        """Have all that waits for an answer fail, and forget what is due."""

    # ----------------------------------------------------------------------------------- life and end

    def beat_later(self) -> None:
        """Send the next sign of life when half of the time between two is over, or end where none has come."""
        self._beat = self._loop.call_later(self._heartbeat_s / 2, self._beat_now)

    def _beat_now(self) -> None:
        if self.error is not None or self._transport is None:
            return
        silent_s = self._loop.time() - self._heard
        if silent_s > 2 * self._heartbeat_s:
            self._end(
                EndpointUnavailable(f"{self}: silent for {silent_s:.0f} s, two heartbeats were missed", "timeout")
            )
            return
        self.send_beat()
        self.beat_later()

    async def ended(self) -> None:
        """Return when nothing is left of it, in bounded time."""
        await asyncio.wait([self._ended], timeout=2 * GOODBYE_S)

    def abort(self, why: EndpointError) -> None:
        """End at once, without goodbye."""
        self._end(why)
        self._cut()

    def _cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: EndpointError) -> None:
        if self.error is not None:
            return
        self.error = error
        if self._beat is not None:
            self._beat.cancel()
        if self._transport is not None:
            self._transport.close()  # which sends what was written, the goodbye above all
            self._loop.call_later(GOODBYE_S, self._cut)
        self.fail_all(error)
        self._on_end(self)
