"""aiohttp's handler of a connection, with refusals of our own for what is no HTTP at all, and answers after its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.web_protocol import ERROR, RequestHandler
from aiohttp.web_request import BaseRequest

if TYPE_CHECKING:
    import asyncio

    from aiohttp import StreamReader
    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.http_parser import RawRequestMessage

LINGER_S = 2.0
"""After a refusal the rest of a body is read and thrown away for so long, so that the client sees the answer."""

VERSION = web.RequestKey("version", str)
"""Of a request: which other HTTP than 1.1 and 1.0 it wants to be."""

_BOUNDS = {"read_bufsize": 64 << 10, "max_line_size": 4096, "max_field_size": 4096, "max_headers": 64}
"""What one connection may hold beside the bodies that are counted: aiohttp's own are meant for browsers."""


class Handlers(web.Server):
    """Makes the handler of each connection."""

    def __init__(
        self,
        answer: Callable[[BaseRequest], Awaitable[web.StreamResponse]],
        refuse: Callable[[BaseRequest, BaseException | None], web.Response],
    ) -> None:
        """`refuse` answers what cannot be read as a request."""
        super().__init__(answer, request_factory=self._request)
        self._refuse = refuse

    def __call__(self) -> Handler:
        options: dict[str, Any] = {"access_log": None, "auto_decompress": False, "lingering_time": LINGER_S, **_BOUNDS}
        return Handler(self, self._refuse, loop=self._loop, **options)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> BaseRequest:
        """The request of a message. aiohttp answers in the request's version, which may be none that there is."""
        version = message.version
        if version in (HttpVersion11, HttpVersion10) and message is not ERROR:
            request = BaseRequest(message, payload, protocol, writer, task, self._loop)
        else:
            message = message._replace(version=HttpVersion11, should_close=True)
            request = BaseRequest(message, payload, protocol, writer, task, self._loop)
            request[VERSION] = f"HTTP/{version.major}.{version.minor}"
        if isinstance(protocol, Handler):
            protocol.under_way = request
        return request


class Handler(RequestHandler):
    """aiohttp's own answers errors in plain text, puts a traceback into the log for each that a stranger provokes, and
    knows no client that ends its half of a connection and waits for the answer.
    """

    __slots__ = ("_is_half_closed", "_refuse", "under_way")

    def __init__(
        self, server: Handlers, refuse: Callable[[BaseRequest, BaseException | None], web.Response], **options: Any
    ) -> None:
        super().__init__(server, **options)
        self._refuse = refuse
        self._is_half_closed = False
        self.under_way: BaseRequest | None = None
        """The request that was begun and is not answered yet."""

    @property
    def has_request(self) -> bool:
        """Whether a request has come whose answer is not begun."""
        return bool(self._messages)

    @property
    def holds_up(self) -> bool:
        """Whether aiohttp itself does not want to read now, since a buffer of its own is full."""
        return self._reading_paused or self._buffer_paused

    def half_close(self) -> bool:
        """The client sends nothing more: whether there is a whole request to answer, after which the connection ends.

        Half a request behind it is forgotten, since it will never be whole.
        """
        if self._messages and not self._messages[-1][1].is_eof():
            self._messages.pop()
        first = self.under_way.content if self.under_way else self._messages[0][1] if self._messages else None
        self._is_half_closed = first is not None and first.is_eof()
        return self._is_half_closed

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if self._is_half_closed and not self._messages:
            resp.force_close()
        outcome = await super().finish_response(request, resp, start_time)
        self.under_way = None
        if self._is_half_closed and not self._messages:
            self.close()
        return outcome

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is sent already")
        response = self._refuse(request, exc)
        response.force_close()
        return response
