"""The trace context of a request, which goes behind its events, and the request's span."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from remora.codec.trace_context import TRACEPARENT, parse
from remora.ports.tracing import NO_SPAN, Span, Tracer, Work
from remora.servers.ingest.head import Head

_TRACEPARENT = TRACEPARENT.encode()


def begin_trace(tracer: Tracer, head: Head, topic: str) -> tuple[bytes, Span]:
    """The context of the events of a request, empty where there is none, and the span of storing them.

    The context is the one that the client sent, as it is: who reads the events is to see whose they are. Without one it
    is that of the request's span, where that is sampled. Two headers are none, as W3C says.
    """
    given = b""
    if _TRACEPARENT in head.headers:
        values = head.headers.every(_TRACEPARENT)
        given = parse(values[0]) if len(values) == 1 else b""
    if not tracer.is_on:
        return given, NO_SPAN
    about = {"http.request.method": head.method, "url.path": head.path}
    span = tracer.begin(Work.REQUEST, topic, about, parent=given)
    return given or span.context, span


@contextmanager
def traced(tracer: Tracer, head: Head, topic: str) -> Iterator[bytes]:
    """The same while the block stores them, which ends the span."""
    context, span = begin_trace(tracer, head, topic)
    try:
        yield context
    except BaseException as exc:
        span.end(str(exc) or type(exc).__name__)
        raise
    span.end()
