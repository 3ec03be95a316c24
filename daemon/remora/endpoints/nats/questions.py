"""Questions to JetStream's API, and its answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from remora.endpoints.nats.lines import ServerOperation
from remora.model.errors import EndpointUnavailable


def question(subject: bytes, reply: bytes, payload: bytes = b"") -> bytes:
    """The operation that asks it."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def stream_subject(stream: bytes) -> bytes:
    """Where to ask for a stream's description."""
    return b"$JS.API.STREAM.INFO.%b" % stream


def last_subject(stream: bytes) -> bytes:
    """Where to ask for a message of a stream."""
    return b"$JS.API.STREAM.MSG.GET.%b" % stream


def last_payload(subject: bytes) -> bytes:
    """The question for the last message of a subject."""
    return json.dumps({"last_by_subj": subject.decode("ascii")}).encode()


def last_of(stream: bytes, subject: bytes, reply: bytes) -> bytes:
    """The operation that asks for the last message of a subject."""
    return question(last_subject(stream), reply, last_payload(subject))


def is_nobody(operation: ServerOperation) -> bool:
    """Whether the server says that nobody listens to the subject."""
    return operation.headers.startswith(b"NATS/1.0 503")


def read_answer(payload: bytes, what: str) -> Mapping[str, Any]:
    """An answer as a mapping. Raises EndpointUnavailable, which begins with `what`."""
    try:
        found = json.loads(payload)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise EndpointUnavailable(f"{what}: the server's answer cannot be read")
    return found
