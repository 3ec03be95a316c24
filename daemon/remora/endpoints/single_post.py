"""One POST over a connection of its own, and the whole of its answer: for a question now and then, not for events.

What an answer may cost is bounded: bytes, time and one connection. No redirect is followed, no proxy of the environment
is asked, and nothing is kept, neither connection nor cookie.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import NamedTuple, cast

import httptools

from remora.endpoints.dial import dial, explain_refusal, open_first
from remora.endpoints.tls import Trust
from remora.model.errors import EndpointUnavailable
from remora.policy.delivery.destinations import DestinationRules
from remora.policy.delivery.tokens import TokenPlace
from remora.policy.ownership.quarantine import ANSWERED

MOST_ANSWER_BYTES = 64 << 10
"""Of head and body together."""


class PostAnswer(NamedTuple):
    """A complete answer."""

    status: int
    body: bytes


async def post_once(
    place: TokenPlace,
    headers: Mapping[str, str],
    body: bytes,
    trust: Trust,
    rules: DestinationRules,
    timeout_s: float,
) -> PostAnswer:
    """Post to a place that the operator named. Raises EndpointError; nothing is left of the connection."""
    try:
        async with asyncio.timeout(timeout_s):
            transport, answer = await open_first(
                place,
                trust,
                rules,
                timeout_s,
                lambda address, context: _open(place, address, context),
                by_operator=True,
            )
            try:
                lines = {"Host": place.authority, "Connection": "close", "Content-Length": str(len(body)), **headers}
                head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
                transport.write(f"POST {place.path} HTTP/1.1\r\n{head}\r\n".encode() + body)
                return await answer.whole
            finally:
                transport.abort()
    except TimeoutError as exc:
        raise EndpointUnavailable(f"{place}: no answer within {timeout_s:g} s", "timeout") from exc
    except _Unreadable as exc:
        raise EndpointUnavailable(f"{place}: {exc}", ANSWERED) from None


async def _open(
    place: TokenPlace, address: str, context: ssl.SSLContext | None
) -> tuple[asyncio.Transport, _PostReader]:
    try:
        return await dial(_PostReader, address, place.port, ssl=context, server_hostname=place.host)
    except OSError as exc:
        raise explain_refusal(exc, str(place), None, "https") from exc


class _Unreadable(Exception):
    """What came is no answer that can be read to its end."""


class _PostReader(asyncio.Protocol):
    """Reads one answer. `whole` is done when it is complete, or cannot become so any more."""

    def __init__(self) -> None:
        self.whole: asyncio.Future[PostAnswer] = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self._taken = 0
        self._has_length = self._has_head = False

    # ------------------------------------------------------------------- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """A part of the answer."""
        self._taken += len(data)
        if self._taken > MOST_ANSWER_BYTES:
            self._fail(f"its answer is larger than {MOST_ANSWER_BYTES >> 10} KiB")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # the latter is no parser's error
            self._fail("it answers something else than HTTP")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, which ends an answer that has no other end."""
        if exc is None and self._has_head and not self._has_length:
            self._complete()
        self._fail("the connection was closed before the end of its answer")

    # ---------------------------------------------------------------------- called by the parser

    def on_message_begin(self) -> None:
        """The answer, or another one behind an interim one."""
        self._has_length, self._has_head, self._body = False, False, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        """The end of its head."""
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Its end, as it says itself."""
        if self._parser.get_status_code() >= 200:
            self._complete()

    # -------------------------------------------------------------------------------- the outcome

    def _complete(self) -> None:
        if not self.whole.done():
            self.whole.set_result(PostAnswer(self._parser.get_status_code(), self._body))

    def _fail(self, why: str) -> None:
        if not self.whole.done():
            self.whole.set_exception(_Unreadable(why))
            self.whole.exception()  # who asked may have gone
        self._transport.abort()
