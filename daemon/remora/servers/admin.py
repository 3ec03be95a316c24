"""The admin server: metrics, health and status over HTTP, on an address of its own; and the control server beside it.

It shows no secret, since everything that it shows was made without any, and takes GET and HEAD from anybody. What
changes something is `servers.control`'s, by POST: over the control socket, which serves nothing else, and here for
holders of a token. A connection carries one request and ends after `CONNECTION_S` at the latest, and there are at most
`MOST_CONNECTIONS` of each server, so that no client can hold the daemon's descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from remora.codec.host_header import host_fault
from remora.model.health import Health
from remora.policy import readiness
from remora.policy.readiness import HostReadiness
from remora.process.sockets import shown_address
from remora.servers import page
from remora.servers.control import json_answer

CONNECTION_S = 30.0
MOST_CONNECTIONS = 64

PLAIN_BYTES = 64 << 10
"""A longer status is compressed for those who take it so: that of a thousand topics with eleven queues has 4 MB."""

READINESS: Mapping[str, Callable[[HostReadiness], Health]] = MappingProxyType(
    {
        "/-/ready": readiness.ready,
        "/-/ready/ingest": readiness.ready_to_ingest,
        "/-/ready/delivery": readiness.ready_to_deliver,
    }
)
"""Each path with the question that it answers."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from. `live` is whether the process works at all (if not: restart it), `ready` answers a
    question of `policy.readiness`: of what use it is now; `shaping` shows how traffic is shaped. A process without
    queues shapes nothing, and answers the `questions` that it has. `has_page` says that the status is one that the page
    for a browser shows.
    """

    live: Callable[[], Health]
    ready: Callable[[Callable[[HostReadiness], Health]], Awaitable[Health]]
    status: Callable[[], Awaitable[Mapping[str, object]]]
    metrics: Callable[[], Awaitable[Iterable[Metric]]]
    shaping: Callable[[], Awaitable[Mapping[str, object]]] | None = None
    questions: Mapping[str, Callable[[HostReadiness], Health]] = field(default_factory=lambda: READINESS)
    has_page: bool = False


class _AskRefused(asyncio.Protocol):
    """A connection too many: closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Given(Collector):
    """Metrics that are there already, in the form that the encoders take."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        yield from self._metrics


class _Pages:
    """The resources."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/-/live", self._live)
        for path, question in self._sources.questions.items():
            app.router.add_get(path, self._readiness(question))
        app.router.add_get("/-/status", self._status)
        if self._sources.has_page:
            for path in page.FILES:
                app.router.add_get(path, self._page)
        if self._sources.shaping is not None:
            app.router.add_get("/-/shaping", self._shaping)
        return app

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        registry = CollectorRegistry()
        registry.register(_Given(await self._sources.metrics()))
        # Hundreds of topics take tens of milliseconds to write out; the supervisor goes on watching meanwhile.
        body = await asyncio.to_thread(encode, registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _live(self, _: web.Request) -> web.Response:
        return _health(self._sources.live())

    def _readiness(
        self, question: Callable[[HostReadiness], Health]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            return _health(await self._sources.ready(question))

        return answer

    async def _status(self, request: web.Request) -> web.Response:
        body = msgspec.json.encode(await self._sources.status()) + b"\n"
        headers = {"Content-Type": "application/json", "Vary": "Accept-Encoding"}
        if len(body) > PLAIN_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(body=page.content(request.path), headers=page.headers(request.path))

    async def _shaping(self, _: web.Request) -> web.Response:
        assert self._sources.shaping is not None
        return json_answer(200, await self._sources.shaping())


@web.middleware
async def _check_host(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse what names no host, or none that can be meant; aiohttp takes it."""
    hosts = [each.encode(errors="surrogateescape") for each in request.headers.getall("Host", ())]
    if fault := host_fault(hosts, request.version):
        raise web.HTTPBadRequest(text=f"400: {fault}\n")
    return await handler(request)


@contextlib.asynccontextmanager
async def serve_admin(
    sockets: Sequence[socket.socket], sources: Sources, changes: Iterable[web.RouteDef] = ()
) -> AsyncIterator[str]:
    """Serve on sockets that listen while the block runs, these routes beside those that read; gives the address."""
    app = _Pages(sources).application()
    app.router.add_routes(changes)
    async with _served(app, sockets):
        yield shown_address(sockets)


@contextlib.asynccontextmanager
async def serve_control(sockets: Sequence[socket.socket], changes: Iterable[web.RouteDef]) -> AsyncIterator[None]:
    """Serve these routes on sockets that listen while the block runs."""
    app = web.Application()
    app.router.add_routes(changes)
    async with _served(app, sockets):
        yield


@contextlib.asynccontextmanager
async def _served(app: web.Application, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    app.middlewares.append(_check_host)
    app.on_response_prepare.append(_close_after)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        async with _accepting(runner, sockets):
            yield
    finally:
        await runner.cleanup()


async def _close_after(_: web.Request, response: web.StreamResponse) -> None:
    response.force_close()
    response.headers["Cache-Control"] = "no-store"


@contextlib.asynccontextmanager
async def _accepting(runner: web.AppRunner, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()

    def accept() -> asyncio.Protocol:
        server = runner.server
        if server is None or len(server.connections) >= MOST_CONNECTIONS:
            return _AskRefused()
        handler = server()
        loop.call_later(CONNECTION_S, _cut, handler)
        return handler

    with contextlib.ExitStack() as stack:
        for each in sockets:
            create = loop.create_unix_server if each.family == socket.AF_UNIX else loop.create_server
            # Of a copy, since a listener closes its socket: a server that failed is begun again on the same one.
            listener = await create(accept, sock=each.dup())
            stack.callback(listener.close)
        yield


def _cut(handler: web.RequestHandler) -> None:
    if handler.transport is not None:
        handler.transport.abort()


def _health(health: Health) -> web.Response:
    return json_answer(200 if health.ok else 503, {"ok": health.ok, "reasons": health.reasons})
