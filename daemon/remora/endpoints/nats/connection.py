"""A connection to a NATS server: handshake, signs of life, questions, and what is due written at once."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from remora import __version__
from remora.endpoints.dial import tls_name
from remora.endpoints.heartbeat import GOODBYE_S, WRITE_BYTES, HeartbeatConnection
from remora.endpoints.nats.errors import violation, why_ended
from remora.endpoints.nats.lines import (
    MOST_PAYLOAD_BYTES,
    BadLine,
    OperationSplitter,
    ServerOperation,
    is_nobody,
    question,
)
from remora.endpoints.nats.nkeys import UserKey
from remora.endpoints.nats.publisher import PublishRun, StreamPublisher
from remora.endpoints.nats.target import NatsServer
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable

DEFAULT_PAYLOAD_BYTES = 1 << 20


class Expecting(Protocol):
    """Who waits for an answer. `subject` is where the question or message went."""

    @property
    def subject(self) -> bytes: ...

    def answered(self, operation: ServerOperation) -> None:
        """It has come."""
        ...

    def denied(self) -> None:
        """The user may not publish there."""
        ...

    def failed(self, error: EndpointError) -> None:
        """The connection has ended."""
        ...


class Inquiry:
    """A question whose answer a task waits for."""

    def __init__(self, subject: bytes, what: str) -> None:
        self.subject = subject
        self.what = what
        self.answer: asyncio.Future[ServerOperation] = asyncio.get_running_loop().create_future()

    def answered(self, operation: ServerOperation) -> None:
        """It is the future's result."""
        if not self.answer.done():
            self.answer.set_result(operation)

    def denied(self) -> None:
        """The question was not let through."""
        self.failed(EndpointMisconfigured(f"{self.what}: the user may not publish to {self.subject.decode()}"))

    def failed(self, error: EndpointError) -> None:
        """The future gets an error of its own."""
        if not self.answer.done():
            self.answer.set_exception(error.again())


class NatsConnection(HeartbeatConnection):
    """One connection. It ends by itself when the server falls silent; `error` then says why, and is set first."""

    def __init__(
        self,
        name: str,
        heartbeat_s: float,
        on_end: Callable[[NatsConnection], None],
        *,
        shows_certificate: bool = False,
    ) -> None:
        super().__init__(name, heartbeat_s, on_end, shows_certificate=shows_certificate)
        self.is_leaving = False
        self.most_bytes = DEFAULT_PAYLOAD_BYTES
        self._raw: asyncio.Transport | None = None
        self._splitter = OperationSplitter()
        self._inbox = b"_INBOX." + secrets.token_hex(11).encode()
        self._numbers = itertools.count()
        self._expected: dict[bytes, Expecting] = {}
        self._info: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._pongs: deque[asyncio.Future[None]] = deque()
        self._due: deque[tuple[StreamPublisher, PublishRun]] = deque()
        self._chunks: list[bytes] = []

    @property
    def is_usable(self) -> bool:
        """Whether it takes further topics: neither has it ended nor does its server stop."""
        return self.error is None and not self.is_leaving

    # ----------------------------------------------------------------------------- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._raw = self._transport

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            for each in self._splitter.feed(data):
                self._take(each)
                if self.error is not None:
                    return
        except BadLine as exc:
            self._end(_explain_bytes(exc, data, self))

    # -------------------------------------------------------------------------------------- writing

    def due(self, publisher: StreamPublisher, run: PublishRun) -> None:
        """Have a run's next message written at the end of this turn of the loop, with all others that are due."""
        self._due.append((publisher, run))
        self._flush_soon()

    def write(self, data: bytes) -> None:
        """Write this at the end of this turn of the loop."""
        self._chunks.append(data)
        self._flush_soon()

    def expect(self, who: Expecting) -> bytes:
        """The subject for one answer, which `who` gets."""
        token = b"%d" % next(self._numbers)
        self._expected[token] = who
        return b"%b.%b" % (self._inbox, token)

    def forget(self, reply: bytes) -> None:
        """Nobody expects the answer any more that was to go to this subject."""
        self._expected.pop(self._token(reply), None)

    def _token(self, reply: bytes) -> bytes:
        return reply[len(self._inbox) + 1 :]

    def _flush_soon(self) -> None:
        if not self._flushing and (self._due or self._chunks) and self._writable and self.error is None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while (self._due or self._chunks) and self._writable and self.error is None and self._transport is not None:
            chunks, self._chunks = self._chunks, []
            nbytes = sum(map(len, chunks))
            while self._due and nbytes < WRITE_BYTES:
                publisher, run = self._due.popleft()
                made = publisher.encode(run)
                chunks.append(made)
                nbytes += len(made)
            self._transport.write(b"".join(chunks))

    # ------------------------------------------------------------------------------------- reading

    def _take(self, found: ServerOperation) -> None:
        match found.word:
            case b"MSG" | b"HMSG":
                who = self._expected.pop(self._token(found.subject), None)
                if who is not None:
                    who.answered(found)
            case b"PING":
                self.write(b"PONG\r\n")
            case b"PONG":
                if self._pongs and not (pong := self._pongs.popleft()).done():
                    pong.set_result(None)
            case b"INFO":
                self._inform(found.rest)
            case b"-ERR":
                self._take_error(found.rest.decode(errors="replace").strip("' "))
            case b"+OK":
                pass
            case _:
                raise BadLine("it speaks something else than NATS")

    def _inform(self, raw: bytes) -> None:
        try:
            found = json.loads(raw)
            most = int(found.get("max_payload", DEFAULT_PAYLOAD_BYTES))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            raise BadLine("an INFO that cannot be read") from None
        self.most_bytes = most if most >= 0 else MOST_PAYLOAD_BYTES  # -1 stands for no limit
        self.is_leaving = bool(found.get("ldm"))
        if not self._info.done():
            self._info.set_result(found)

    def _take_error(self, text: str) -> None:
        denied = violation(text)
        if denied is None:
            self._end(why_ended(text, self.name))
            return
        what, subject = denied
        if what == "subscription":
            self._end(EndpointMisconfigured(f"{self}: the user may not subscribe to _INBOX.>, where answers go"))
            return
        for token, who in self._expected.items():
            if who.subject == subject.encode():
                del self._expected[token]
                who.denied()
                return

    # ----------------------------------------------------------------------------------- life and end

    async def shake_hands(self, server: NatsServer, key: UserKey | None, context: ssl.SSLContext | None) -> None:
        """Agree on TLS, log in, and be ready for answers. Raises EndpointError, OSError and ssl.SSLError."""
        info = await self._info
        if not info.get("headers"):
            raise EndpointMisconfigured(f"{self}: its release is too old: it knows no headers")
        if context is None and info.get("tls_required"):
            raise EndpointMisconfigured(f"{self}: the server asks for TLS, but the endpoint is nats and not nats+tls")
        if context is not None:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise EndpointMisconfigured(f"{self}: the endpoint is nats+tls, but this port speaks no TLS")
            assert self._transport is not None
            name = tls_name(server.host)
            self._transport = await self._loop.start_tls(self._transport, self, context, server_hostname=name)
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        about = json.dumps(_about(server, key, str(info.get("nonce", ""))), separators=(",", ":")).encode()
        self.write(b"CONNECT %b\r\nSUB %b.* 1\r\n" % (about, self._inbox))
        await self.ping()
        self.beat_later()

    async def ping(self) -> None:
        """Return when the server has read all that was written. Raises what ended the connection."""
        if self.error is not None:
            raise self.error.again()
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(pong)
        self.write(b"PING\r\n")
        await pong

    async def ask(self, subject: bytes, what: str, payload: bytes = b"") -> bytes:
        """The answer to a question. Raises EndpointError, which begins with `what`."""
        if self.error is not None:
            raise self.error.again()
        asked = Inquiry(subject, what)
        reply = self.expect(asked)
        self.write(question(subject, reply, payload))
        try:
            operation = await asked.answer
        finally:
            self.forget(reply)
        if is_nobody(operation):
            raise EndpointMisconfigured(f"{what}: JetStream is not enabled on this server, or not for this account")
        return operation.payload

    def send_beat(self) -> None:
        """A PING, whose PONG nobody waits for."""
        self._pongs.append(self._loop.create_future())
        self.write(b"PING\r\n")

    async def close(self) -> None:
        """End when what was written has gone, in bounded time: NATS knows no goodbye."""
        if self.error is None:
            with suppress(TimeoutError, EndpointError):
                async with asyncio.timeout(GOODBYE_S):
                    await self.ping()
        self._end(EndpointUnavailable(f"{self}: the connection is closed", "aborted"))
        await self.ended()

    def abort(self, why: EndpointError) -> None:
        """End at once, below TLS, too, where that is still being agreed on."""
        super().abort(why)
        if self._raw is not None:
            self._raw.abort()

    def fail_all(self, error: EndpointError) -> None:
        """All messages, questions and pings."""
        waiting, publishers = list(self._expected.values()), {publisher for publisher, _ in self._due}
        self._expected.clear()
        self._due.clear()
        self._chunks.clear()
        for each in waiting:
            each.failed(error)
        for publisher in publishers:  # nothing of theirs was written yet
            publisher.end(error)
        waited: list[asyncio.Future[Any]] = [self._info, *self._pongs]
        for future in waited:
            if not future.done():
                future.set_exception(error.again())
                future.exception()  # nobody may be waiting
        self._pongs.clear()


def _about(server: NatsServer, key: UserKey | None, nonce: str) -> dict[str, object]:
    """Who we are, as CONNECT says it."""
    about: dict[str, object] = {
        "verbose": False, "pedantic": False, "tls_required": server.tls is not None, "name": "remora", "lang": "python",
        "version": __version__, "protocol": 1, "headers": True, "no_responders": True,
    }  # fmt: skip
    if key is not None:
        about |= {"sig": key.sign(nonce.encode())} | ({"jwt": key.token} if key.token else {"nkey": key.public})
    elif server.token:
        about |= {"auth_token": server.token}
    elif server.user:
        about |= {"user": server.user, "pass": server.password}
    return about


def _explain_bytes(exc: BadLine, data: bytes, connection: NatsConnection) -> EndpointError:
    """What speaks there instead, where its first bytes tell."""
    if data.startswith((b"\x15\x03", b"\x16\x03")):
        return EndpointMisconfigured(f"{connection}: this port speaks TLS from its first byte, and NATS begins without")
    return EndpointUnavailable(f"{connection}: {exc}")
