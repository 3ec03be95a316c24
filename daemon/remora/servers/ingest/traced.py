"""The trace context of a request, which goes behind its events, and the request's span."""

from __future__ import annotations

from types import TracebackType

from remora.codec.trace_context import TRACEPARENT, parse
from remora.ports.tracing import NO_SPAN, Span, Tracer, Work
from remora.servers.http.head import Head

_TRACEPARENT = TRACEPARENT.encode()


def _begin(tracer: Tracer, head: Head, topic: str) -> tuple[bytes, Span]:
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


class Traced:
    """The context of a request's events, while the block stores them; its end is that of the request's span."""

    __slots__ = ("_span", "context")

    def __init__(self, tracer: Tracer, head: Head, topic: str) -> None:
        self.context, self._span = _begin(tracer, head, topic)

    def __enter__(self) -> bytes:
        return self.context

    def __exit__(self, _: type[BaseException] | None, exc: BaseException | None, __: TracebackType | None) -> None:
        if exc is None:
            self._span.end()
        else:
            self._span.end(str(exc) or type(exc).__name__)
