"""An HTTP endpoint that refuses connections until it is opened, and then keeps every body that is posted to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

from aiohttp import web

from devkit.waits import PATIENT_S


class HttpSink:
    """Its port is its own from the beginning: bound, and refusing."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self._runner: web.AppRunner | None = None
        self.bodies: list[bytes] = []
        self.heads: dict[bytes, dict[str, str]] = {}
        """Of each body the last request line and headers, without the host's; names in lower case."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    async def open(self) -> None:
        """Take whatever is posted from now on."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{anything:.*}", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()

    async def _take(self, request: web.Request) -> web.Response:
        self.bodies.append(body := await request.read())
        headers = {name.lower(): value for name, value in request.headers.items() if name.lower() != "host"}
        self.heads[body] = {"line": f"{request.method} {request.raw_path}", **headers}
        return web.Response()

    async def until(self, count: int, timeout_s: float = PATIENT_S) -> list[bytes]:
        """The different bodies, as soon as there are that many."""
        deadline = time.monotonic() + timeout_s
        while len(found := list(dict.fromkeys(self.bodies))) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} bodies after {timeout_s} s"
            await asyncio.sleep(0.05)
        return found

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self._socket.close()


@contextlib.asynccontextmanager
async def http_sink() -> AsyncIterator[HttpSink]:
    """A sink that is not open yet."""
    sink = HttpSink()
    try:
        yield sink
    finally:
        await sink.close()
