"""Reading a request's body: within its bounds, in time, and without keeping the event loop."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_request import BaseRequest

from remora.servers.ingest.body_budget import Share, no_memory
from remora.servers.ingest.encodings import DECODERS, NotDecodable
from remora.servers.ingest.problems import (
    BAD_REQUEST,
    EXPECTATION,
    TIMEOUT,
    TOO_LARGE,
    WRONG_TYPE,
    Problem,
)

_QUOTED = " or ".join(f'"{each}"' for each in DECODERS)


async def read_body(request: BaseRequest, share: Share, *, most_bytes: int, timeout_s: float) -> bytes:
    """The whole body, decoded where it is compressed.

    Raises Problem when it is larger than `most_bytes`, before it is read if its length is declared; when other requests
    hold all the memory for `timeout_s`; and when it does not arrive within `timeout_s` from then on.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity" and encoding not in DECODERS:
        detail = f"Content-Encoding may be {_QUOTED}, not {encoding!r}"
        raise Problem(WRONG_TYPE, detail, headers={"Accept-Encoding": ", ".join(DECODERS)})
    told = request.content_length
    if told is not None and told > most_bytes:
        raise _too_large(most_bytes)
    if not request.body_exists:
        told = 0
    await share.begin(told if encoding == "identity" or told == 0 else None, timeout_s)
    await _continue(request)
    if request.content.is_eof() and encoding == "identity":  # as nearly always: it came with its headers
        return await _plain(request, share, most_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            if encoding != "identity":
                return await _decoded(request, encoding, share, most_bytes)
            return await _plain(request, share, most_bytes)
    except TimeoutError as exc:
        if share.is_waiting:
            raise no_memory(timeout_s) from exc
        raise Problem(TIMEOUT, f"the body was not complete within {timeout_s:g} s") from exc
    except (web.RequestPayloadError, HttpProcessingError) as exc:
        raise Problem(BAD_REQUEST, "the body ended early or its chunks are malformed") from exc


async def _plain(request: BaseRequest, share: Share, most_bytes: int) -> bytes:
    content = request.content
    first = await content.readany()
    if content.at_eof():
        if len(first) > most_bytes:
            raise _too_large(most_bytes)
        await share.cover(len(first))
        return first
    body = bytearray(first)
    while True:
        if len(body) > most_bytes:
            raise _too_large(most_bytes)
        await share.cover(len(body))
        piece = await content.readany()
        if not piece:
            return bytes(body)
        body += piece


async def _decoded(request: BaseRequest, encoding: str, share: Share, most_bytes: int) -> bytes:
    decoder, body = DECODERS[encoding](), bytearray()
    try:
        while data := await request.content.readany():
            for piece in decoder.decode(data):
                body += piece
                if len(body) > most_bytes:
                    raise _too_large(most_bytes)
                await share.cover(len(body) + min(len(body), decoder.window_bytes))
                await asyncio.sleep(0)
            if decoder.has_more:
                raise Problem(BAD_REQUEST, f"there is more behind the end of the {encoding} stream")
    except NotDecodable as exc:
        raise Problem(BAD_REQUEST, f"the body is not {encoding}, though Content-Encoding says so") from exc
    if not decoder.is_whole:
        raise Problem(BAD_REQUEST, f"the {encoding} stream ends early")
    return bytes(body)


async def _continue(request: BaseRequest) -> None:
    """Tell a client that waits for it to go on: curl does for large bodies, and so does radosgw with it."""
    expected = request.headers.get("Expect")
    if expected is None:
        return
    if expected.lower() != "100-continue":
        raise Problem(EXPECTATION, "only 100-continue can be expected here")
    if request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _too_large(most_bytes: int) -> Problem:
    return Problem(TOO_LARGE, f"the body is larger than {most_bytes} bytes, the most that a request may have")
