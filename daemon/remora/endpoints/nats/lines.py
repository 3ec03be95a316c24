"""What a NATS server sends, divided into operations, however it is cut; and questions to JetStream's API. Pure.

nats-py was weighed, see docs/decisions/nats.md: what every event takes is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from remora.model.errors import EndpointUnavailable

MOST_LINE_BYTES = 64 << 10
"""INFO names all servers of a cluster."""

MOST_PAYLOAD_BYTES = 80 << 20
"""A server takes 64 MiB of a message at most; the answer to a question for one has it in base64."""


class BadLine(Exception):
    """What came is not NATS."""


class ServerOperation(NamedTuple):
    """An operation by its word in upper case, with the rest of its line; of a message headers and payload."""

    word: bytes
    rest: bytes
    subject: bytes = b""
    headers: bytes = b""
    payload: bytes = b""


class OperationSplitter:
    """Never keeps more than one operation."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[ServerOperation]:
        """The operations that are complete by now. Raises BadLine."""
        self._buffer += data
        buffer, at = self._buffer, 0
        try:
            while True:
                end = buffer.find(b"\r\n", at)
                if end < 0:
                    if len(buffer) - at > MOST_LINE_BYTES:
                        raise BadLine("a line without end")
                    return
                word, _, rest = bytes(buffer[at:end]).partition(b" ")
                word = word.upper()
                if word not in (b"MSG", b"HMSG"):
                    at = end + 2
                    yield ServerOperation(word, rest.strip())
                    continue
                subject, head, total = _sizes(word, rest)
                begin, behind = end + 2, end + 2 + total
                if len(buffer) < behind + 2:
                    return
                found = ServerOperation(
                    word, rest, subject, bytes(buffer[begin : begin + head]), bytes(buffer[begin + head : behind])
                )
                at = behind + 2
                yield found
        finally:
            del buffer[:at]


_SIZE = re.compile(rb"[0-9]{1,18}")


def _sizes(word: bytes, rest: bytes) -> tuple[bytes, int, int]:
    """A message's subject, the bytes of its headers, and all of them."""
    words = rest.split()
    sizes = 2 if word == b"HMSG" else 1
    if len(words) not in (2 + sizes, 3 + sizes) or not all(map(_SIZE.fullmatch, words[-sizes:])):
        raise BadLine("a message without its sizes")
    total = int(words[-1])
    head = int(words[-2]) if sizes == 2 else 0
    if head > total or total > MOST_PAYLOAD_BYTES:
        raise BadLine("a message whose sizes make no sense")
    return words[0], head, total


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


def is_nobody(operation: ServerOperation) -> bool:
    """Whether the server says that nobody listens to the subject."""
    return operation.headers.startswith(b"NATS/1.0 503")


def read_answer(payload: bytes, what: str) -> Mapping[str, Any]:
    """An answer as a mapping. Raises EndpointUnavailable, which begins with `what`."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise EndpointUnavailable(f"{what}: the server's answer cannot be read")
    return found
