"""The admin server: metrics, health and status over HTTP, on an address of its own; and the control server beside it.

It shows no secret, since everything that it shows was made without any, and takes GET and HEAD from anybody. What
changes something is `servers.control`'s, by POST: over the control socket, which serves nothing else, and here for
holders of a token. `servers.routes` bounds what any client can hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from remora.model.health import Health
from remora.policy.status import readiness
from remora.policy.status.readiness import HostReadiness
from remora.process.sockets import shown_address
from remora.servers import page
from remora.servers.http.response import Response
from remora.servers.routes import Answering, AskedOver, ServedPath, json_answer, served

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


_GZIP = re.compile(r"(?:^|,)\s*gzip\s*(?:,|$|;\s*q=(?!0(?:\.0*)?\s*(?:,|$)))", re.IGNORECASE)
"""gzip among the encodings of a client, unless its weight is 0 (RFC 9110, section 12.4.2)."""


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

    def paths(self) -> Iterator[ServedPath]:
        """Each with its answer."""
        yield ServedPath("/metrics", self._metrics)
        yield ServedPath("/-/live", self._live)
        for path, question in self._sources.questions.items():
            yield ServedPath(path, self._readiness(question))
        yield ServedPath("/-/status", self._status)
        if self._sources.has_page:
            for path in page.FILES:
                yield ServedPath(path, self._page)
        if self._sources.shaping is not None:
            yield ServedPath("/-/shaping", self._shaping)

    async def _metrics(self, asked: AskedOver) -> Response:
        try:
            encode, content_type = choose_encoder(asked.headers.get(b"accept").replace('"', ""))
        except TypeError:  # it compares a version that is none
            encode, content_type = choose_encoder("")
        registry = CollectorRegistry()
        registry.register(_Given(await self._sources.metrics()))
        # Hundreds of topics take tens of milliseconds to write out; the supervisor goes on watching meanwhile.
        body = await asyncio.to_thread(encode, registry)
        return Response(200, body, {"Content-Type": content_type})

    async def _live(self, _: AskedOver) -> Response:
        return _health(self._sources.live())

    def _readiness(self, question: Callable[[HostReadiness], Health]) -> Answering:
        async def answer(_: AskedOver) -> Response:
            return _health(await self._sources.ready(question))

        return answer

    async def _status(self, asked: AskedOver) -> Response:
        body = msgspec.json.encode(await self._sources.status()) + b"\n"
        headers = {"Content-Type": "application/json", "Vary": "Accept-Encoding"}
        if len(body) > PLAIN_BYTES and _GZIP.search(asked.headers.get(b"accept-encoding")):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        return Response(200, body, headers)

    async def _page(self, asked: AskedOver) -> Response:
        return Response(200, page.content(asked.path), page.headers(asked.path))

    async def _shaping(self, _: AskedOver) -> Response:
        assert self._sources.shaping is not None
        return json_answer(200, await self._sources.shaping())


@contextlib.asynccontextmanager
async def serve_admin(
    sockets: Sequence[socket.socket], sources: Sources, changes: Iterable[ServedPath] = ()
) -> AsyncIterator[str]:
    """Serve on sockets that listen while the block runs, these paths beside those that read; gives the address."""
    async with served([*_Pages(sources).paths(), *changes], sockets):
        yield shown_address(sockets)


def _health(health: Health) -> Response:
    return json_answer(200 if health.ok else 503, {"ok": health.ok, "reasons": health.reasons})
