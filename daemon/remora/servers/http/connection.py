"""One connection: from its bytes to requests, and from answers to its bytes.

A protocol of our own over httptools. Weighed against it, with an empty answer to a record of 900 bytes (processor time
of a request): aiohttp's low-level server 30 us, uvicorn's protocol over httptools 31 us, this one's way 11 us. Neither
of the others cuts clients that are slow or silent, and each makes a task for a request that need not wait.

A request is parsed only when it may begin: what a client sends ahead stays bytes until then, and in the socket beyond
64 KiB of it. Each is begun in the call that it came with (`begun`). Those that wait for nothing but the store are begun
one behind the other; behind one that goes on in a task the next one waits until it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Coroutine
from enum import Enum, IntEnum, IntFlag, auto
from typing import Any, Protocol, cast

from remora.servers.http.begun import begin
from remora.servers.http.head import Head, HeadReader, NotARequest
from remora.servers.http.request import ArrivingBody, BodyStream, Request, Service
from remora.servers.http.response import MOST_PIPELINED, PendingRequest, Pipeline

LINGER_S = 2.0
"""After a refusal the rest of a body is read and thrown away for so long, so that the client sees the answer."""

AT_ONCE_S = 0.002
"""After so long the requests of others have their turn, before more of those begin that a client has sent ahead."""

MOST_AHEAD = 64 << 10
"""Bytes behind a request that are read before it is answered, about."""


class ConnectionPhase(Enum):
    """What a connection waits for."""

    IDLE = auto()
    HEADERS = auto()
    BODY = auto()
    ANSWER = auto()
    END = auto()


class Stage(IntEnum):
    """What becomes of what a client sends. A connection only ever goes on to a later one."""

    OPEN = auto()
    """Requests are begun as they come."""

    LAST = auto()
    """None is begun behind the one that came last: its head says so."""

    BROKEN = auto()
    """Nor here, since what came is no request, or no body. The last answer says that the connection ends."""

    ENDING = auto()
    """All that will be answered is. What still comes is thrown away, until all is sent or a time is over."""

    LOST = auto()
    """There is no connection any more."""


class Wait(IntFlag):  # whose truth costs no call
    """Why a connection is not read; it is again when there is no reason left."""

    ANSWER = auto()
    MEMORY = auto()
    READER = auto()
    CLIENT = auto()
    """The client has closed its half, and sends nothing more. It still gets its answers."""


_UNANSWERED = Wait.MEMORY | Wait.READER  # made once: that takes two microseconds


class Host(Protocol):
    """Where all connections are known."""

    @property
    def is_paused(self) -> bool:
        """Whether bodies wait for memory."""
        ...

    def made(self, connection: ServedConnection) -> None:
        """It is open."""
        ...

    def lost(self, connection: ServedConnection) -> None:
        """It is gone."""
        ...

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this in a task."""
        ...


class ServedConnection(asyncio.Protocol):
    """One connection, and since when it has been in which phase."""

    __slots__ = (
        "_ahead", "_alone", "_at", "_body", "_heads", "_host", "_is_advancing", "_loop", "_pipeline", "_service",
        "_since", "_stage", "_timer", "_transport", "_unread_since", "_waits", "peer",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, host: Host, service: Service) -> None:
        self._host = host
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._heads = HeadReader()
        self._pipeline = Pipeline()
        self._ahead, self._at = b"", 0
        self._alone: PendingRequest | None = None
        self._body: ArrivingBody | None = None
        self._waits = Wait(0)
        self.peer = ""
        """The client's address; empty on a Unix socket."""
        self._since = 0.0
        self._unread_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stage = Stage.OPEN
        self._is_advancing = False  # of one call, and no part of the state: what it calls may call it again

    # ---------------------------------------------------------------------------------------- its state

    @property
    def phase(self) -> ConnectionPhase:
        """What it waits for now."""
        if self._stage >= Stage.ENDING or (self._body and not self._body.stream):
            return ConnectionPhase.END
        if self._pipeline:
            return ConnectionPhase.BODY if self._body else ConnectionPhase.ANSWER
        return ConnectionPhase.HEADERS if self._ahead else ConnectionPhase.IDLE

    def overdue(self, now: float, request_timeout_s: float, idle_timeout_s: float) -> str:
        """Why this connection is to be cut; empty where it is not."""
        if self._unread_since is not None and now - self._unread_since > request_timeout_s:
            return "unread"
        phase = self.phase
        if phase is ConnectionPhase.END and now - self._since > request_timeout_s:
            return "unread"  # the rest is too little for the transport to say that it waits
        if phase is ConnectionPhase.HEADERS and now - self._since > request_timeout_s:
            return "slow"
        if phase is ConnectionPhase.IDLE and now - self._since > idle_timeout_s:
            return "idle"
        return ""

    def told(self, name: str) -> object:
        """What its transport says by this name; None as soon as the connection is gone."""
        return None if self._stage is Stage.LOST else self._transport.get_extra_info(name)

    def end(self) -> None:
        """Close it when all that was written is sent."""
        self._transport.close()

    def cut(self) -> None:
        """End it now; what a client did not read until now it need not have."""
        with contextlib.suppress(AttributeError):  # of asyncio's TLS transport when it is closed twice
            self._transport.abort()

    def hold_for_memory(self) -> None:
        """Leave what follows in the socket, until there is memory for it."""
        self._hold_up(Wait.MEMORY)

    def go_on_for_memory(self) -> None:
        """There is memory for what follows."""
        self._go_on(Wait.MEMORY)

    def _hold_up(self, reason: Wait) -> None:
        if not (self._waits or self._stage is Stage.LOST or self._transport.is_closing()):
            self._transport.pause_reading()
        self._waits |= reason

    def _go_on(self, reason: Wait) -> None:
        if self._waits:
            self._waits &= ~reason
            if not (self._waits or self._stage is Stage.LOST or self._transport.is_closing()):
                self._transport.resume_reading()

    # ------------------------------------------------------------------------------------ the protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        self._since = self._loop.time()
        self._host.made(self)

    def data_received(self, data: bytes) -> None:
        if self._stage >= Stage.ENDING:
            return
        if self.phase is ConnectionPhase.IDLE:
            self._since = self._loop.time()
        self._ahead = self._ahead + data if self._ahead else data
        self._advance()
        if len(self._ahead) > MOST_AHEAD:
            self._hold_up(Wait.ANSWER)

    def eof_received(self) -> bool:
        """The client sends nothing more; whether it may still read, and there is something to answer.

        Half a request is forgotten, since it will never be whole. Of a TLS connection no half can be closed.
        """
        self._waits |= Wait.CLIENT
        self._forget_half()
        transport = self._transport
        is_open = transport.get_extra_info("sslcontext") is None and not _is_gone(transport)
        if not is_open or self._stage >= Stage.ENDING or not (self._pipeline or self._ahead):
            return False
        self._loop.call_soon(self._advance)  # which ends the connection where nothing of it is whole
        return True

    def pause_writing(self) -> None:
        self._unread_since = self._loop.time()

    def resume_writing(self) -> None:
        self._unread_since = None
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stage = Stage.LOST
        self._forget_half()
        self._pipeline.clear()
        self._ahead, self._at = b"", 0
        self._stop_timer()
        self._host.lost(self)

    def _forget_half(self) -> None:
        if self._body is None:
            return
        if self._body.stream:
            self._body.stream.fail("the connection ended")
        if self._alone and self._alone in self._pipeline:
            self._pipeline.remove(self._alone)
        self._alone = self._body = None

    # ----------------------------------------------------------------------------------------- requests

    def _advance(self) -> None:
        """Begin the requests that have come, as far as they may begin; end where nothing more can come."""
        if self._is_advancing:
            return
        if self._ahead and not self._begin_all():
            self._loop.call_soon(self._advance)
            return
        if self._waits and Wait.CLIENT in self._waits:
            self._forget_half()
            if not self._pipeline and self._unread_since is None and self._stage < Stage.ENDING:
                self.end()

    def _begin_all(self) -> bool:
        """Starts ready requests; returns False if it yielded with more pending.

        It always takes what has arrived of a started request's body: were that left, and the client closed meanwhile,
        the body would look cut off.
        """
        self._is_advancing, has_time = True, True
        until = self._loop.time() + AT_ONCE_S
        try:
            while self._take_body() and has_time and self._may_begin() and self._begin_next():
                has_time = self._at == len(self._ahead) or self._loop.time() < until
        except NotARequest as exc:
            self._break(exc)
        finally:
            self._is_advancing = False
        if self._at:
            self._ahead, self._at = self._ahead[self._at :], 0
        if len(self._ahead) <= MOST_AHEAD:
            self._go_on(Wait.ANSWER)
        return has_time

    def _take_body(self) -> bool:
        """Take what there is of the body under way; whether no more of it is to come."""
        body = self._body
        if body is None:
            return True
        self._ahead, has_room = body.take(self._ahead[self._at :] if self._at else self._ahead)
        self._at = 0
        if not has_room:
            self._hold_up(Wait.READER)
        if not body.is_whole:
            return False
        self._body = None
        if not body.stream:
            self._stop_timer()
        return True

    def _may_begin(self) -> bool:
        return self._stage is Stage.OPEN and self._at < len(self._ahead) and not (
            self._alone or self._unread_since is not None
            or len(self._pipeline) >= MOST_PIPELINED
            or (self._service.stopping and self._pipeline)
        )  # fmt: skip

    def _begin_next(self) -> bool:
        """Begin the next request; whether there was a whole head."""
        ahead = self._ahead
        while not self._heads.has_begun and ahead.startswith(b"\r\n", self._at):  # RFC 9112, 2.2
            self._at += 2
        found = self._heads.read(ahead, self._at)
        if found is None:
            return False
        head, end = found
        body = None
        if head.length is not None and len(ahead) - end >= head.length:
            body = ahead[end : end + head.length]
            end += head.length
        self._at = end
        self._begin(head, body)
        return True

    def _begin(self, head: Head, body: bytes | None) -> None:
        if not head.keeps_alive:
            self._stage = Stage.LAST
        pending = PendingRequest(head, self._answered)
        self._pipeline.append(pending)
        stream = None
        if body is None:
            stream = BodyStream(lambda: self._go_on(Wait.READER))
            self._body = ArrivingBody(head.length, stream)
        request = Request(head, body, stream, pending.say)
        if body is None and self._host.is_paused:
            self._hold_up(Wait.MEMORY)  # until the request has looked for itself, before which its body would come
        self._alone = pending
        if not begin(self._service.answer(request, self, pending.end), self._host.start) and self._alone is pending:
            self._alone = None  # it is answered, or waits for the store alone

    def _break(self, exc: NotARequest) -> None:
        """What comes is no request, or no body: the answer says so, and the connection ends with it."""
        self._stage = Stage.BROKEN
        self._ahead, self._at = b"", 0
        if self._body is None:
            pending = PendingRequest(None, self._answered)
            self._pipeline.append(pending)
            pending.end(self._service.refuse(None, exc, self.peer))
        elif self._body.stream:
            self._body.stream.fail(str(exc))
        else:
            self._end_gently()

    # ------------------------------------------------------------------------------------------ answers

    def _answered(self, pending: PendingRequest) -> None:
        """A request has its answer, or something to send before it."""
        if pending not in self._pipeline:  # the client is gone, or has sent half of it
            return
        if (response := pending.response) is not None:
            if not pending.keeps_alive or (
                self._pipeline[-1] is pending and (self._stage is Stage.BROKEN or self._service.stopping)
            ):
                response.close()
            if pending is self._alone:
                self._alone = None
        data, is_last = self._pipeline.take()
        if data:
            self._transport.write(data)  # uvloop sends once what is written in one turn of the loop
        if is_last:
            self._end_gently()
        else:
            self._go_on_behind()

    def _go_on_behind(self) -> None:
        """Something is answered: the next request may come."""
        if self._alone is None:
            if self._body is not None and self._body.stream:  # it was refused before all of it had come
                self._body.stream = None
                self._timer = self._loop.call_later(LINGER_S, self.end)
            self._go_on(_UNANSWERED)
        if not self._pipeline:
            self._since = self._loop.time()
        self._advance()

    def _end_gently(self) -> None:
        """Close when all is sent. A client that may still be sending is read on for a while: else the kernel would
        tell it that the connection is broken, and throw the answer away."""
        is_done = Wait.CLIENT in self._waits
        may_send = bool(self._at < len(self._ahead) or self._body or self._waits) or self._stage is Stage.BROKEN
        self._stage, self._since = Stage.ENDING, self._loop.time()
        self._ahead, self._at = b"", 0
        self._stop_timer()
        self._body = self._alone = None
        if is_done or not may_send:
            self.end()
            return
        self._go_on(Wait.ANSWER | Wait.MEMORY | Wait.READER)
        if self._transport.can_write_eof() and self._transport.get_extra_info("sslcontext") is None:
            self._transport.write_eof()
        self._timer = self._loop.call_later(LINGER_S, self.end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_gone(transport: asyncio.Transport) -> bool:
    """Whether the client has closed both halves, as far as can be known: over TCP only a write tells."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), 0)
    return bool(poll.poll(0))
