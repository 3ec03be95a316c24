"""aiohttp's handler of a connection, with refusals of our own for what is no HTTP at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

LINGER_S = 2.0
"""After a refusal the rest of a body is read and thrown away for so long, so that the client sees the answer."""


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
        super().__init__(answer)
        self._refuse = refuse

    def __call__(self) -> RequestHandler:
        options: dict[str, Any] = {"access_log": None, "auto_decompress": False, "lingering_time": LINGER_S, **_BOUNDS}
        return _Handler(self, self._refuse, loop=self._loop, **options)


class _Handler(RequestHandler):
    """aiohttp answers errors in plain text, and puts a traceback into the log for each that a stranger provokes."""

    __slots__ = ("_refuse",)

    def __init__(
        self, server: Handlers, refuse: Callable[[BaseRequest, BaseException | None], web.Response], **options: Any
    ) -> None:
        super().__init__(server, **options)
        self._refuse = refuse

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is sent already")
        response = self._refuse(request, exc)
        response.force_close()
        return response
