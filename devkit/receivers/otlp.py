"""A receiver of spans over OTLP/HTTP, and how much of an event's age the stages in its span name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

STAGE = "remora.stage."


class SpanReceiver:
    """With `answer` it refuses what comes, or never answers where that is 0."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.answer = 200
        self._news = asyncio.Condition()

    async def export(self, request: web.Request) -> web.Response:
        """POST /v1/traces."""
        if not self.answer:
            await asyncio.Event().wait()
        sent = ExportTraceServiceRequest.FromString(await request.read())
        async with self._news:
            for of_process in sent.resource_spans:
                about = {each.key: each.value.string_value for each in of_process.resource.attributes}
                self.services.add(about["service.name"])
                self.spans += [span for scope in of_process.scope_spans for span in scope.spans]
            self._news.notify_all()
        return web.Response(status=self.answer, content_type="application/x-protobuf")

    async def of(self, name: str, fits: Callable[[Span], bool] = lambda _: True) -> Span:
        """The first span of this name that fits, once it has come."""
        async with self._news:
            await self._news.wait_for(lambda: any(each.name == name and fits(each) for each in self.spans))
        return next(each for each in self.spans if each.name == name and fits(each))

    async def delivered(self, topic: str, count: int) -> list[Span]:
        """The spans of a topic's events that arrived, once there are so many."""

        def found() -> list[Span]:
            return [each for each in self.spans if each.name == f"deliver {topic}"]

        async with self._news:
            await self._news.wait_for(lambda: len(found()) >= count)
        return found()


@asynccontextmanager
async def collecting() -> AsyncIterator[tuple[SpanReceiver, str]]:
    """A receiver and its URL."""
    receiver, app = SpanReceiver(), web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/traces", receiver.export)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield receiver, f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    finally:
        await runner.cleanup()


def covered(span: Span) -> float:
    """The part of an event's age, from its commit to its acknowledgement, that its stages add up to."""
    named_us = sum(each.value.int_value for each in span.attributes if each.key.startswith(STAGE))
    age_ns = span.end_time_unix_nano - span.start_time_unix_nano
    return 1000 * named_us / age_ns if age_ns else 1.0
