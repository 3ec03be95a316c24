"""The admin server: metrics, health and status over HTTP, on an address of its own, and what changes a host.

It shows no secret, since everything that it shows was made without any. All but the drain only reads, and takes GET
and HEAD; the drain is for those on this host alone. A connection carries one request and ends after `CONNECTION_S` at
the latest, and there are at most `MOST_CONNECTIONS`, so that no client can hold the daemon's descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from remora.codec.host_header import host_fault
from remora.model.errors import ConfigError
from remora.model.health import Health
from remora.policy import readiness
from remora.policy.readiness import Host
from remora.process.sockets import shown_address
from remora.servers import page

T = TypeVar("T")

CONNECTION_S = 30.0
MOST_CONNECTIONS = 64

PLAIN_BYTES = 64 << 10
"""A longer status is compressed for those who take it so: that of a thousand topics with eleven queues has 4 MB."""

READINESS: Mapping[str, Callable[[Host], Health]] = MappingProxyType(
    {
        "/-/ready": readiness.ready,
        "/-/ready/ingest": readiness.ready_to_ingest,
        "/-/ready/delivery": readiness.ready_to_deliver,
    }
)
"""Each path with the question that it answers."""


class Shaping(Protocol):
    """How traffic is shaped, and changes of that."""

    async def show(self) -> Mapping[str, object]:
        """Scopes, meters, credit and who waits."""

    def change(self, body: bytes) -> Sequence[str]:
        """Shape otherwise from the next tick on; a line for each value. Raises ConfigError where nothing changes."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from. `live` is whether the process works at all (if not: restart it), `ready` answers a
    question of `policy.readiness`: of what use it is now; `drain` has this host give its queues away, or take part
    again. A process without queues has none, and answers the `questions` that it has. `release` ends the quarantine of
    a destination, or of all. `has_page` says that the status is one that the page for a browser shows.
    """

    live: Callable[[], Health]
    ready: Callable[[Callable[[Host], Health]], Awaitable[Health]]
    status: Callable[[], Awaitable[Mapping[str, object]]]
    metrics: Callable[[], Awaitable[Iterable[Metric]]]
    drain: Callable[[bool], None] | None = None
    shaping: Shaping | None = None
    questions: Mapping[str, Callable[[Host], Health]] = field(default_factory=lambda: READINESS)
    release: Callable[[str | None], None] | None = None
    has_page: bool = False


class _Refused(asyncio.Protocol):
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
        app = web.Application(middlewares=[_check_host])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/-/live", self._live)
        for path, question in self._sources.questions.items():
            app.router.add_get(path, self._readiness(question))
        app.router.add_get("/-/status", self._status)
        if self._sources.has_page:
            for path in page.FILES:
                app.router.add_get(path, self._page)
        if self._sources.drain is not None:
            app.router.add_post("/-/drain", self._drain)
            app.router.add_post("/-/undrain", self._undrain)
        if self._sources.release is not None:
            app.router.add_post("/-/release", self._release)
        if self._sources.shaping is not None:
            app.router.add_get("/-/shaping", self._shaping)
            app.router.add_post("/-/shaping", self._reshape)
        app.on_response_prepare.append(self._close_after)
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

    def _readiness(self, question: Callable[[Host], Health]) -> Callable[[web.Request], Awaitable[web.Response]]:
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

    async def _drain(self, request: web.Request) -> web.Response:
        return self._changed(request, self._sources.drain, True)

    async def _undrain(self, request: web.Request) -> web.Response:
        return self._changed(request, self._sources.drain, False)

    async def _release(self, request: web.Request) -> web.Response:
        return self._changed(request, self._sources.release, request.query.get("destination"))

    async def _shaping(self, _: web.Request) -> web.Response:
        assert self._sources.shaping is not None
        return _json(200, await self._sources.shaping.show())

    async def _reshape(self, request: web.Request) -> web.Response:
        if not _is_of_this_host(request):
            return _foreign()
        assert self._sources.shaping is not None
        try:
            lines = self._sources.shaping.change(await request.read())
        except ConfigError as exc:
            return _json(422, {"ok": False, "problems": [(each.key, each.reason) for each in exc.problems]})
        return _json(200, {"ok": True, "lines": list(lines)})

    def _changed(self, request: web.Request, change: Callable[[T], None] | None, to: T) -> web.Response:
        if not _is_of_this_host(request):
            return _foreign()
        assert change is not None
        change(to)
        return _json(200, {"ok": True, "reasons": []})

    async def _close_after(self, _: web.Request, response: web.StreamResponse) -> None:
        response.force_close()
        response.headers["Cache-Control"] = "no-store"


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
async def serve_admin(sockets: Sequence[socket.socket], sources: Sources) -> AsyncIterator[str]:
    """Serve on sockets that listen while the block runs; gives the address."""
    runner = web.AppRunner(_Pages(sources).application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        async with _accepting(runner, sockets):
            yield shown_address(sockets)
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _accepting(runner: web.AppRunner, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()

    def accept() -> asyncio.Protocol:
        server = runner.server
        if server is None or len(server.connections) >= MOST_CONNECTIONS:
            return _Refused()
        handler = server()
        loop.call_later(CONNECTION_S, _cut, handler)
        return handler

    with contextlib.ExitStack() as stack:
        for each in sockets:
            create = loop.create_unix_server if each.family == socket.AF_UNIX else loop.create_server
            listener = await create(accept, sock=each)
            stack.callback(listener.close)
        yield


def _foreign() -> web.Response:
    reason = "only from this host, as localhost or by its loopback address, and by no web page"
    return _json(403, {"ok": False, "reasons": [reason]})


def _is_of_this_host(request: web.Request) -> bool:
    """Whether a request comes over the loopback or a Unix socket, and not from a page in a user's browser.

    A page whose name was made to mean 127.0.0.1 comes over the loopback, too, and need not say that it is a page; but
    it asks for the host that it was loaded from.
    """
    if any(each in request.headers for each in _OF_BROWSERS):
        return False
    peer = _peer(request)
    if isinstance(peer, str):
        return True
    return (
        isinstance(peer, tuple)
        and ipaddress.ip_address(peer[0]).is_loopback
        and all(_is_loopback(each) for each in request.headers.getall("Host", ()))
    )


_OF_BROWSERS = ("Origin", "Sec-Fetch-Site")


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this host's loopback, with any port or none."""
    name = re.sub(r":[0-9]*$", "", host).lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name).is_loopback
    except ValueError:
        return False


def _peer(request: web.Request) -> object:
    """Who asks: a tuple of address and port, or text over a Unix socket; None when the connection is gone."""
    return None if request.transport is None else request.transport.get_extra_info("peername")


def _cut(handler: web.RequestHandler) -> None:
    if handler.transport is not None:
        handler.transport.abort()


def _health(health: Health) -> web.Response:
    return _json(200 if health.ok else 503, {"ok": health.ok, "reasons": health.reasons})


def _json(status: int, value: Mapping[str, object]) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value) + b"\n", content_type="application/json")
