"""Reads a request's body within its bounds and in time, and takes its events part by part; the event loop goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from remora.model.entry import Time
from remora.servers.http.begun import in_task
from remora.servers.http.request import BodyBroken, BodyStream, Request
from remora.servers.http.response import CONTINUE
from remora.servers.ingest.body_budget import Share, no_memory
from remora.servers.ingest.encodings import DECODERS, NotDecodable
from remora.servers.ingest.problems import (
    BAD_REQUEST,
    EXPECTATION,
    TIMEOUT,
    TOO_LARGE,
    WRONG_TYPE,
    RefusedRequest,
)

T = TypeVar("T")

_OTHER_NAMES = MappingProxyType({"": "identity", "x-gzip": "gzip"})  # RFC 9110, 5.6.1 and 8.4.1
_QUOTED = " or ".join(f'"{each}"' for each in DECODERS)


async def read_body(request: Request, share: Share, *, most_bytes: int, timeout_s: float) -> bytes:
    """The whole body, decoded where it is compressed.

    Raises Problem when it is larger than `most_bytes`, before it is read if its length is declared; when other requests
    hold all the memory for `timeout_s`; and when it does not arrive within `timeout_s` from then on.
    """
    encoding, headers = "identity", request.head.headers
    if b"content-encoding" in headers:
        given = headers.get(b"content-encoding").lower()
        encoding = _OTHER_NAMES.get(given, given)
    if encoding != "identity" and encoding not in DECODERS:
        detail = f"Content-Encoding may be {_QUOTED}, not {encoding!r}"
        raise RefusedRequest(WRONG_TYPE, detail, headers={"Accept-Encoding": ", ".join(DECODERS)})
    told = request.head.length
    if told is not None and told > most_bytes:
        raise _too_large(most_bytes)
    if not share.begin(told if encoding == "identity" or told == 0 else None):
        await share.wait(timeout_s)
    _continue(request)
    if request.body is not None and encoding == "identity":  # as nearly always: it came with its headers
        return request.body
    await in_task()
    content = request.content
    try:
        async with asyncio.timeout(timeout_s):
            if encoding != "identity":
                return await _decoded(content, encoding, share, most_bytes)
            return await _plain(content, share, most_bytes)
    except TimeoutError as exc:
        if share.is_waiting:
            raise no_memory(timeout_s) from exc
        raise RefusedRequest(TIMEOUT, f"the body was not complete within {timeout_s:g} s") from exc
    except BodyBroken as exc:
        raise RefusedRequest(BAD_REQUEST, "the body ended early or its chunks are malformed") from exc


async def _plain(content: BodyStream, share: Share, most_bytes: int) -> bytes:
    first = await content.read()
    if content.is_read:
        if len(first) > most_bytes:
            raise _too_large(most_bytes)
        await share.cover(len(first))
        return first
    body = bytearray(first)
    while True:
        if len(body) > most_bytes:
            raise _too_large(most_bytes)
        await share.cover(len(body))
        piece = await content.read()
        if not piece:
            return bytes(body)
        body += piece


async def _decoded(content: BodyStream, encoding: str, share: Share, most_bytes: int) -> bytes:
    decoder, body = DECODERS[encoding](), bytearray()
    try:
        while data := await content.read():
            for piece in decoder.decode(data):
                body += piece
                if len(body) > most_bytes:
                    raise _too_large(most_bytes)
                await share.cover(len(body) + min(len(body), decoder.window_bytes))
                await asyncio.sleep(0)
            if decoder.has_more:
                raise RefusedRequest(BAD_REQUEST, f"there is more behind the end of the {encoding} stream")
    except NotDecodable as exc:
        raise RefusedRequest(BAD_REQUEST, f"the body is not {encoding}, though Content-Encoding says so") from exc
    if not decoder.is_whole:
        raise RefusedRequest(BAD_REQUEST, f"the {encoding} stream ends early")
    return bytes(body)


def _continue(request: Request) -> None:
    """Tell a client that waits for it to go on: curl does for large bodies, and so does radosgw with it."""
    if b"expect" not in request.head.headers:
        return
    if request.head.waits_to_go_on:
        request.tell(CONTINUE)
    elif request.head.headers.get(b"expect").lower() != "100-continue":
        raise RefusedRequest(EXPECTATION, "only 100-continue can be expected here")


def _too_large(most_bytes: int) -> RefusedRequest:
    return RefusedRequest(TOO_LARGE, f"the body is larger than {most_bytes} bytes, the most that a request may have")


class Body(NamedTuple):
    """What a request with events carries: its bytes, their form, and the trace context that goes behind each event."""

    raw: bytes
    is_ndjson: bool
    context: bytes


async def taken(parts: Iterable[T], take: Callable[[T], None]) -> None:
    """Have each part of a body taken, with a turn for others in between. Raises what parts and `take` raise."""
    begun = False
    for part in parts:
        if begun:
            await in_task()
            await asyncio.sleep(0)
        begun = True
        take(part)


def now() -> Time:
    """The time at which entries are created."""
    return Time(*divmod(time.time_ns(), 10**9))
