"""The admin server: metrics, health and status over HTTP, on an address of its own.

It only reads, takes GET and HEAD, and shows no secret, since everything that it shows was made without any.
A connection carries one request and ends after `CONNECTION_S` at the latest, and there are at most
`MOST_CONNECTIONS`, so that no client can hold the daemon's descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from remora.config import AdminSettings, TcpAddress, UnixAddress
from remora.metrics import Telemetry
from remora.model.errors import ConfigError
from remora.servers.ingest.listening import unix_socket

CONNECTION_S = 30.0
MOST_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Health:
    """A yes or no, with the reasons in plain words; a yes may have reasons too, as remarks."""

    ok: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from. All are called in the event loop and answer at once.

    `live` is whether the process works at all (if not: restart it), `ready` whether it is of use now.
    """

    live: Callable[[], Health]
    ready: Callable[[], Health]
    status: Callable[[], Mapping[str, object]]


class _Refused(asyncio.Protocol):
    """A connection too many: closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Pages:
    """The four resources."""

    def __init__(self, telemetry: Telemetry, sources: Sources) -> None:
        self._telemetry = telemetry
        self._sources = sources

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/-/live", self._live)
        app.router.add_get("/-/ready", self._ready)
        app.router.add_get("/-/status", self._status)
        app.on_response_prepare.append(self._close_after)
        return app

    async def _metrics(self, request: web.Request) -> web.Response:
        self._telemetry.ready(self._sources.ready().ok)
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # Hundreds of topics take tens of milliseconds to write out; deliveries go on meanwhile.
        body = await asyncio.to_thread(encode, self._telemetry.registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _live(self, _: web.Request) -> web.Response:
        return _health(self._sources.live())

    async def _ready(self, _: web.Request) -> web.Response:
        return _health(self._sources.ready())

    async def _status(self, _: web.Request) -> web.Response:
        return _json(200, self._sources.status())

    async def _close_after(self, _: web.Request, response: web.StreamResponse) -> None:
        response.force_close()
        response.headers["Cache-Control"] = "no-store"


@contextlib.asynccontextmanager
async def serve_admin(settings: AdminSettings, telemetry: Telemetry, sources: Sources) -> AsyncIterator[str]:
    """Serve while the block runs; gives the address that is listened on. Raises ConfigError when it cannot be."""
    runner = web.AppRunner(
        _Pages(telemetry, sources).application(), access_log=None, handle_signals=False, shutdown_timeout=1.0
    )
    await runner.setup()
    try:
        async with _listening(runner, settings.address) as shown:
            telemetry.serving(shown)
            yield shown
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _listening(runner: web.AppRunner, address: TcpAddress | UnixAddress) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()

    def accept() -> asyncio.Protocol:
        server = runner.server
        if server is None or len(server.connections) >= MOST_CONNECTIONS:
            return _Refused()
        handler = server()
        loop.call_later(CONNECTION_S, _cut, handler)
        return handler

    with contextlib.ExitStack() as stack:
        try:
            if isinstance(address, UnixAddress):
                shown = f"unix:{address.path}"
                sock = stack.enter_context(unix_socket(Path(address.path), 0o600))
                listener = await loop.create_unix_server(accept, sock=sock)
            else:
                shown = f"{address.host}:{address.port}"
                listener = await loop.create_server(accept, address.host, address.port)
                host, port = listener.sockets[0].getsockname()[:2]
                shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        except OSError as exc:
            raise ConfigError("admin.listen", f"cannot listen on {shown}: {exc.strerror or exc}") from exc
        try:
            yield shown
        finally:
            listener.close()


def _cut(handler: web.RequestHandler) -> None:
    if handler.transport is not None:
        handler.transport.abort()


def _health(health: Health) -> web.Response:
    return _json(200 if health.ok else 503, {"ok": health.ok, "reasons": health.reasons})


def _json(status: int, value: Mapping[str, object]) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value) + b"\n", content_type="application/json")
