"""The answers to requests that succeed: what was stored, other values as JSON, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec

from remora.model.fan_out import FannedOut
from remora.model.ingest import PublishResult
from remora.servers.http.response import Response
from remora.servers.ingest.request_reader import JSON

JSON_HEADERS: Mapping[str, str] = MappingProxyType({"Content-Type": JSON, "Server": "remora"})


def json_response(status: int, value: object, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return Response(status, msgspec.json.encode(value), {**JSON_HEADERS, **headers} if headers else JSON_HEADERS)


def distributed_response(stored: FannedOut) -> Response:
    """How many events matched a notification and how many none, and the copies of each topic."""
    return json_response(200, {"accepted": stored.accepted, "unmatched": stored.unmatched, "topics": stored.topics})


def stored_response(stored: PublishResult, dropped: int) -> Response:
    """How many events were stored, and of how many members there is nothing left."""
    repeated = b"true" if stored.repeated else b"false"
    body = b'{"stored":%d,"repeated":%b,"dropped_fields":%d}' % (stored.events, repeated, dropped)
    return Response(200, body, JSON_HEADERS)


@cache
def openapi_document() -> bytes:
    """The OpenAPI document, which is read when it is first asked for."""
    return Path(__file__).with_name("openapi.json").read_bytes()
