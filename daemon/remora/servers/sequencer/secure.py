"""The sequencer's connections over TLS: asyncio protocols on the same thread and the same core as the plain ones.

Clients show a certificate. A connection whose replies are not taken is not read, as in `rounds.py`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import cast

from remora.codec.sequencer import Core, has_more
from remora.config.sequencer import SequencerSettings
from remora.model.errors import ConfigError
from remora.model.log import LogName
from remora.servers.sequencer.connection import LINGER_S, PARTIAL_FRAME_S, Closed

HANDSHAKE_S = 10.0


def tls_context(settings: SequencerSettings) -> ssl.SSLContext | None:
    """What clients are met with; None without a certificate.

    Raises ConfigError for files that cannot be read or do not fit each other.
    """
    if not settings.tls_certificate:
        return None
    key = "sequencer.tls_client_ca"
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=settings.tls_client_ca)
        key = "sequencer.tls_certificate"
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except ssl.SSLError as exc:
        raise ConfigError(key, f"cannot be used: {exc.reason or exc}") from exc
    except OSError as exc:
        raise ConfigError(key, f"cannot be read: {exc.strerror}") from exc
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def may_speak_plainly(settings: SequencerSettings) -> Callable[[socket.socket], bool]:
    """Whether a connection may skip TLS: those over a Unix socket, those from an allowed network, and those over
    loopback unless client certificates are required."""
    networks = [ipaddress.ip_network(each) for each in settings.allow]

    def may_connect(connection: socket.socket) -> bool:
        if connection.family == socket.AF_UNIX:
            return True
        peer = ipaddress.ip_address(connection.getpeername()[0].partition("%")[0])
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return (peer.is_loopback and not settings.tls_certificate) or any(peer in each for each in networks)

    return may_connect


class SecureConnections:
    """All connections over TLS, those whose handshake is under way included."""

    def __init__(
        self,
        core: Core,
        context: ssl.SSLContext,
        *,
        may_be_plain: Callable[[socket.socket], bool] = lambda _: False,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """`may_be_plain` is asked of each accepted socket.

        `before` is called before anything is handed out, and `after` behind it.
        """
        self.core = core
        self.may_be_plain = may_be_plain
        self.before = before
        self.after = after
        self.waiting: dict[LogName, set[_SecureSession]] = {}
        self._context = context
        self._connections: set[_SecureSession] = set()
        self._handshakes: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._connections) + len(self._handshakes)

    @property
    def awaited(self) -> Iterable[LogName]:
        """The logs whose bound is in the way of a connection."""
        return self.waiting.keys()

    def take(self, accepted: socket.socket, count: Callable[[Closed], None]) -> None:
        """Begin the handshake with a client; `count` is called with the reason when the connection closes."""
        task = asyncio.get_running_loop().create_task(self._shake_hands(accepted, count))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, count: Callable[[Closed], None]) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _SecureSession(self, self._connections, count),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=LINGER_S,
            )
        except OSError:  # ssl.SSLError is one
            accepted.close()
            count(Closed.HANDSHAKE)

    def resume(self, log: LogName) -> None:
        """The bound of a log was raised, or it is not served any more: answer those who wait for it."""
        for each in self.waiting.pop(log, set()):
            each.go_on()

    def sweep(self, now: float) -> None:
        """Close connections whose frame does not get whole."""
        for each in list(self._connections):
            if each.is_stuck(now):
                each.end(Closed.PARTIAL)

    async def close(self) -> None:
        """Close all of them, those with replies under way when their clients have taken them, or have had the time."""
        for task in list(self._handshakes):
            task.cancel()
        if self._handshakes:
            await asyncio.wait(self._handshakes)
        leaving = list(self._connections)
        for each in leaving:
            each.close()
        if leaving:
            await asyncio.wait([each.gone for each in leaving], timeout=LINGER_S)
        for each in list(self._connections):
            each.end(Closed.SHUTDOWN)


class _SecureSession(asyncio.Protocol):
    """One client. `rest` are bytes that are not answered yet, `waits` is the log whose bound it waits for."""

    def __init__(self, group: SecureConnections, members: set[_SecureSession], count: Callable[[Closed], None]) -> None:
        self._group = group
        self._members = members
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._since = 0.0
        self._waits: LogName | None = None
        self._is_full = False
        self._why = Closed.BY_CLIENT
        self.gone = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._number: int = transport.get_extra_info("socket").fileno()
        self._members.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by whichever side."""
        self._members.discard(self)
        if self._waits is not None:
            waiting = self._group.waiting.get(self._waits, set())
            waiting.discard(self)
            if not waiting:
                self._group.waiting.pop(self._waits, None)
        self.gone.set_result(None)
        self._count(Closed.ERROR if exc is not None and self._why is Closed.BY_CLIENT else self._why)

    def data_received(self, data: bytes) -> None:
        """Answer what is whole."""
        if self._waits is not None or self._is_full or self._transport.is_closing():
            self._rest += data  # it was under way when reading was paused
            return
        self._group.before()
        self._answer(data)
        self._group.after()

    def _answer(self, data: bytes) -> None:
        """Answer what is whole, as long as the replies are taken."""
        self._answer_once(data)
        while not self._is_full and self._waits is None and has_more(self._rest):
            if self._transport.is_closing():
                return
            self._answer_once(b"")

    def _answer_once(self, data: bytes) -> None:
        data = self._rest + data
        self._group.core.client = self._number
        answer = self._group.core.answer(data)
        if answer.consumed or not self._rest:
            self._since = self._loop.time()
        self._rest = data[answer.consumed :]
        if answer.replies:
            self._transport.write(answer.replies)
        if answer.closes:
            self._why = Closed.MALFORMED
            self._transport.close()
        elif answer.waits is not None:
            self._waits = answer.waits
            self._group.waiting.setdefault(answer.waits, set()).add(self)
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Answer what waited for a bound."""
        self._waits = None
        self._group.before()
        self._answer(b"")
        self._group.after()
        self._read_again()

    def pause_writing(self) -> None:
        """The client does not take its replies: read no more of it."""
        self._is_full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It has taken them."""
        self._is_full = False
        if self._rest and self._waits is None:
            self.go_on()
        else:
            self._read_again()

    def _read_again(self) -> None:
        if self._waits is None and not self._is_full and not self._transport.is_closing():
            with suppress(RuntimeError):  # it is read already
                self._transport.resume_reading()

    def is_stuck(self, now: float) -> bool:
        """Whether a part of a frame has been there for too long."""
        is_partial = bool(self._rest) and self._waits is None and not self._is_full
        return is_partial and now - self._since > PARTIAL_FRAME_S

    def close(self) -> None:
        """Read nothing more, and close it when its replies are sent."""
        self._why = Closed.SHUTDOWN
        self._transport.close()

    def end(self, why: Closed) -> None:
        """Close it at once."""
        self._why = why
        self._transport.abort()
