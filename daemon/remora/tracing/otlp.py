"""Spans by OpenTelemetry's SDK, exported over OTLP/HTTP by a thread of its own.

What waits for the thread is bounded, and what does not fit is dropped: a receiver that is slow or away costs delivery
nothing. The names of attributes are those of OpenTelemetry's conventions for messaging
(https://opentelemetry.io/docs/specs/semconv/messaging/), those that begin with `remora.` have no counterpart there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from types import MappingProxyType

import requests
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from remora import __version__
from remora.config.workers import TracesSettings
from remora.metrics import Telemetry
from remora.model.record import Record
from remora.ports.tracing import NO_SPAN, Attributes, Span, StagesOf, Work

SAMPLED = 1
"""The flag of W3C's trace context that asks for a span of everybody."""

MOST_EVENTS = 100
"""Events of a batch that get a span: a request may have ten thousand, and each costs some 20 us of the event loop."""

CLOSE_S = 2.0
"""How long the end of the process waits for what was not exported yet."""

_KINDS = MappingProxyType({
    Work.REQUEST: (SpanKind.SERVER, "create"),
    Work.COMMIT: (SpanKind.INTERNAL, ""),
    Work.LISTING: (SpanKind.CONSUMER, "receive"),
    Work.BATCH: (SpanKind.PRODUCER, "send"),
    Work.REMOVAL: (SpanKind.CONSUMER, "settle"),
})  # fmt: skip
"""What the conventions call each kind of work."""


class OtlpTracer:
    """See the module. `rng` chooses which work without a parent or a link is sampled."""

    is_on = True

    def __init__(self, settings: TracesSettings, telemetry: Telemetry, worker: str, rng: Random) -> None:
        self._telemetry, self._rng = telemetry, rng
        self._part = settings.sample / 100
        # Its own messages come from its threads, one for each attempt; `traces_failing` says it once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        about = {"service.name": "remora", "service.version": __version__, "service.instance.id": worker}
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create(about), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=settings.timeout_s, session=_session())
        self._provider.add_span_processor(BatchSpanProcessor(_Counted(exporter, telemetry)))
        self._tracer = self._provider.get_tracer("remora", __version__)

    def begin(
        self, work: Work, name: str, attributes: Attributes, *, parent: bytes = b"", links: Sequence[bytes] = ()
    ) -> Span:
        """As the port says."""
        if not (_is_sampled(parent) if parent else (any(map(_is_sampled, links)) or self._rng.random() < self._part)):
            return NO_SPAN
        kind, operation = _KINDS[work]
        about = dict(attributes)
        if operation:
            about |= {
                "messaging.system": "remora",
                "messaging.destination.name": name,
                "messaging.operation.type": operation,
                "messaging.operation.name": str(work),
            }
        self._telemetry.span_sampled()
        span = self._tracer.start_span(
            f"{work} {name}",
            _within(parent) if parent else Context(),
            kind,
            about,
            [Link(_context(each)) for each in links],
        )
        return _Sampled(span)

    def arrived(self, name: str, records: Sequence[Record], now_ns: int, batch: bytes, stages_of: StagesOf) -> None:
        """As the port says: a span from the commit to the arrival for each event that its client has sampled."""
        links = [Link(_context(batch))] if batch else []
        contexts = [(each, bytes.fromhex(each.traceparent.decode().replace("-", ""))) for each in records]
        for each, context in [(each, context) for each, context in contexts if _is_sampled(context)][:MOST_EVENTS]:
            self._telemetry.span_sampled()
            about: dict[str, str | int] = {
                "messaging.system": "remora",
                "messaging.destination.name": name,
                "messaging.operation.type": "send",
                "messaging.operation.name": "deliver",
                "messaging.message.id": each.event_id.decode(errors="replace"),
                "remora.key": each.key.decode(errors="replace"),
                "remora.position": each.position.decode(),
                **{f"remora.stage.{stage}_us": round(seconds * 1e6) for stage, seconds in stages_of(each).items()},
            }
            begun = min(each.created_ns, now_ns)
            span = self._tracer.start_span(
                f"deliver {name}", _within(context), SpanKind.PRODUCER, about, links, start_time=begun
            )
            span.end(now_ns)
            self._telemetry.age_exemplar(name, context[1:17].hex(), (now_ns - begun) / 1e9, now_ns / 1e9)

    async def close(self) -> None:
        """Export what there is, for a moment at most; whatever is left then is lost."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def shut() -> None:
            self._provider.shutdown()
            try:
                loop.call_soon_threadsafe(closed.set)
            except RuntimeError:
                return  # the loop has ended meanwhile

        # No thread of the loop's own: that one the process would wait for.
        threading.Thread(target=shut, daemon=True, name="close traces").start()
        try:
            async with asyncio.timeout(CLOSE_S):
                await closed.wait()
        except TimeoutError:
            return


@asynccontextmanager
async def open_otlp(settings: TracesSettings, telemetry: Telemetry, worker: str) -> AsyncIterator[OtlpTracer]:
    """A tracer that exports while the block runs; `worker` names this process."""
    tracer = OtlpTracer(settings, telemetry, worker, Random())  # noqa: S311  # chooses samples, guards nothing
    try:
        yield tracer
    finally:
        await tracer.close()


def _session() -> requests.Session:
    """What the exporter sends with: a status decides, and no answer's body is read.

    A receiver that sends one slowly, or without an end, would hold the exporter's thread for as long.
    """
    session = requests.Session()
    session.stream = True
    session.hooks["response"].append(_judge)
    return session


def _judge(response: requests.Response, *_: object, **__: object) -> None:
    """Let go of an answer's body; a redirect, which the exporter would count as a success, is an error."""
    response.close()
    if 300 <= response.status_code < 400:
        raise requests.HTTPError(f"{response.status_code}: it sends elsewhere", response=response)


class _Sampled:
    """A span of the SDK's, as the port has it."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        made = span.get_span_context()
        self.context = b"\0%b%b\1" % (made.trace_id.to_bytes(16, "big"), made.span_id.to_bytes(8, "big"))

    def end(self, failure: str = "", attributes: Attributes | None = None) -> None:
        """As the port says."""
        if attributes:
            self._span.set_attributes(dict(attributes))
        if failure:
            self._span.set_status(Status(StatusCode.ERROR, failure))
        self._span.end()


class _Counted(SpanExporter):
    """Counts what the exporter does, in the exporter's thread, and says once that it fails."""

    def __init__(self, exporter: SpanExporter, telemetry: Telemetry) -> None:
        self._exporter, self._telemetry = exporter, telemetry

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """As the exporter."""
        began = time.monotonic()
        try:
            result = self._exporter.export(spans)
        except Exception as exc:  # whatever a library finds wrong must not end the thread
            self._telemetry.spans_exported(len(spans), f"{type(exc).__name__}: {exc}")
            return SpanExportResult.FAILURE
        failed = result is not SpanExportResult.SUCCESS
        why = f"the receiver did not take them within {time.monotonic() - began:.1f} s" if failed else ""
        self._telemetry.spans_exported(len(spans), why)
        return result

    def shutdown(self) -> None:
        """As the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """As the exporter."""
        return bool(self._exporter.force_flush(timeout_millis))


def _is_sampled(context: bytes) -> bool:
    return bool(context and context[-1] & SAMPLED)


def _context(raw: bytes) -> SpanContext:
    numbers = int.from_bytes(raw[1:17], "big"), int.from_bytes(raw[17:25], "big")
    return SpanContext(*numbers, is_remote=True, trace_flags=TraceFlags(raw[25]))


def _within(raw: bytes) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(_context(raw)), Context())
