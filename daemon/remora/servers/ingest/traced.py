"""The trace context of a request, which goes behind its events, and the request's span."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp.web_request import BaseRequest

from remora.codec.trace_context import TRACEPARENT, parse
from remora.ports.tracing import Tracer, Work


@contextmanager
def traced(tracer: Tracer, request: BaseRequest, topic: str) -> Iterator[bytes]:
    """The context of the events of a request, while the block stores them; empty where there is none.

    It is the one that the client sent, as it is: who reads the events is to see whose they are. Without one it is that
    of the request's span, where that is sampled. Two headers are none, as W3C says.
    """
    headers = request.headers.getall(TRACEPARENT, [])
    given = parse(headers[0]) if len(headers) == 1 else b""
    about = {"http.request.method": request.method, "url.path": request.path}
    span = tracer.begin(Work.REQUEST, topic, about, parent=given)
    try:
        yield given or span.context
    except BaseException as exc:
        span.end(str(exc) or type(exc).__name__)
        raise
    span.end()
