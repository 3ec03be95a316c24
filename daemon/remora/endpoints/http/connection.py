"""One connection to a receiver: posts the requests of one exchange after the other, and reads their answers.

No request is sent before the one ahead of it was answered: a request behind an unanswered one would overtake it after
a failure. The next request leaves in the very call that reads the answer, which costs no task and no future.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from enum import Enum
from typing import Protocol, cast

from remora.endpoints.http.answers import Answer, AnswerReader, NotHttp

TLS_ALERT = b"\x15\x03"
"""How the answer of a server begins that only speaks TLS."""


class Exchange(Protocol):
    """The requests that a connection posts one after the other."""

    def next_request(self) -> bytes | None:
        """The request to post now; None when there is none, or none is wanted any more."""
        ...

    def acked(self, seconds: float) -> None:
        """The request was acknowledged after so long."""
        ...

    def given_up(self) -> Callable[[bool], None]:
        """The request under way was not answered in time. What this returns is called once, when its answer comes or
        none can come any more: with whether it was acknowledged."""
        ...


class Lost(Enum):
    """How an exchange ended without an answer."""

    UNTOUCHED = "the connection was closed while it was not in use"
    UNREAD = "the connection, used before, was closed behind the request"
    RESET = "the connection was closed before an answer"
    CUT = "the answer was cut short"
    SILENT = "no answer in time"
    NOT_HTTP = "the answer is no HTTP"
    TLS_ONLY = "the port only speaks TLS"
    REFUSED_TLS = "the receiver ended TLS"


class ExchangeFailed(Exception):
    """An exchange ended without an answer; `text` says more where there is more to say."""

    def __init__(self, how: Lost, text: str = "", cause: BaseException | None = None) -> None:
        super().__init__(text or how.value)
        self.how = how
        self.cause = cause


class HttpConnection(asyncio.Protocol):
    """Open from `connection_made` until `is_open` is false; it serves one exchange at a time.

    One whose request was not answered in time stays open for as long again, for the late answer only.
    """

    def __init__(self, timeout_s: float, on_closed: Callable[[HttpConnection], None]) -> None:
        """`on_closed` is called once, when the connection becomes unusable for any reason."""
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._timeout_s = timeout_s
        self._on_closed = on_closed
        self._reader = AnswerReader()
        self._exchange: Exchange | None = None
        self._late: Callable[[bool], None] | None = None
        self._outcome: asyncio.Future[Answer | None] | None = None
        self._sent_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._loop = loop
        self._served = 0
        self.opened_at = self.used_at = loop.time()
        self.is_open = False

    @property
    def is_busy(self) -> bool:
        """Whether an exchange is under way, or its answer is late."""
        return self._exchange is not None or self.is_late

    @property
    def is_late(self) -> bool:
        """Whether it only waits for an answer that nobody waits for any more."""
        return self._late is not None

    async def run(self, exchange: Exchange) -> Answer | None:
        """Post the exchange's requests; answers None when it has no more, or the first answer that is no ack.

        Where the receiver ends the connection behind an ack, the rest is left to another one, and it answers None, too.
        Raises ExchangeFailed. A cancelled one closes the connection: the answer would go to another exchange.
        """
        assert self._exchange is None
        assert self._transport is not None
        request = exchange.next_request()
        if request is None:
            return None
        if self._transport.is_closing():
            self._gone()
        if not self.is_open:
            raise ExchangeFailed(Lost.UNTOUCHED)
        self._exchange = exchange
        self._outcome = self._loop.create_future()
        self._post(request)
        try:
            return await self._outcome
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._exchange = self._outcome = None

    def sweep(self, now: float) -> None:
        """Give up the request that is under way if its time is over, and its late answer after as long again."""
        if self._exchange is not None and now - self._sent_at > self._timeout_s:
            self._late = self._exchange.given_up()  # its answer may come yet, so the connection stays
            self._exchange, self.used_at = None, self._now()
            if self._outcome is not None and not self._outcome.done():
                self._outcome.set_exception(ExchangeFailed(Lost.SILENT, f"no answer within {self._timeout_s:g} s"))
        elif self.is_late and now - self._sent_at > 2 * self._timeout_s:
            self.close()

    def close(self) -> None:
        """Close at once; what is under way fails."""
        if self._transport is not None:
            self._transport.abort()
        self._gone()

    # ------------------------------------------------------------------- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast(asyncio.Transport, transport)  # which uvloop's do not inherit
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """A part of an answer, or bytes that no request asked for."""
        exchange = self._exchange
        if exchange is None and not self.is_late:
            self.close()
            return
        is_tls = not self._reader.has_begun and data.startswith(TLS_ALERT)
        try:
            answer = self._reader.feed(data)
        except NotHttp as exc:
            if self._outcome is not None and not self._outcome.done():
                self._outcome.set_exception(
                    ExchangeFailed(Lost.TLS_ONLY) if is_tls else ExchangeFailed(Lost.NOT_HTTP, f"the answer {exc}")
                )
            self._exchange = None
            self.close()
            return
        if answer is not None:
            self._answered(exchange, answer)

    def eof_received(self) -> bool:
        """The receiver sends nothing more: that may complete an answer."""
        if self.is_busy and (answer := self._reader.end()) is not None:
            self._answered(self._exchange, answer)
        return False  # the transport closes

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by either side."""
        if self._exchange is not None and self._outcome is not None and not self._outcome.done():
            answer = self._reader.end() if exc is None else None
            if answer is not None:
                self._answered(self._exchange, answer)
            else:
                self._outcome.set_exception(self._how(exc))
        elif self.is_late and exc is None and (answer := self._reader.end()) is not None:
            self._answered(None, answer)
        self._exchange = None
        self._gone()

    def _how(self, exc: Exception | None) -> ExchangeFailed:
        if isinstance(exc, ssl.SSLError):
            return ExchangeFailed(Lost.REFUSED_TLS, f"the receiver ended TLS: {(exc.reason or 'error').lower()}", exc)
        if self._reader.has_begun:
            return ExchangeFailed(Lost.CUT)
        # Of a used one it is usual to be closed just then: https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2
        return ExchangeFailed(Lost.UNREAD if self._served else Lost.RESET)

    # -------------------------------------------------------------------------------- the steps

    def _post(self, request: bytes) -> None:
        assert self._transport is not None
        self._sent_at = self._now()
        self._transport.write(request)

    def _answered(self, exchange: Exchange | None, answer: Answer) -> None:
        if exchange is None:
            self._tell_late(200 <= answer.status < 300)
            self.close()
            return
        assert self._transport is not None
        assert self._outcome is not None
        self._served += 1
        # A receiver that answers before it has read all of a request may take the rest for the next one.
        stays = answer.stays and not self._transport.get_write_buffer_size()
        if 200 <= answer.status < 300:
            exchange.acked(self._now() - self._sent_at)
            if stays and (request := exchange.next_request()) is not None:
                self._post(request)
                return
            self._outcome.set_result(None)
        else:
            self._outcome.set_result(answer)
        self._exchange = None  # no request asks for what comes from now on
        self.used_at = self._now()
        if not stays:
            self.close()

    def _tell_late(self, acknowledged: bool) -> None:
        late, self._late = self._late, None
        if late is not None:
            late(acknowledged)

    def _gone(self) -> None:
        self._tell_late(False)
        if self.is_open:
            self.is_open = False
            self._on_closed(self)
