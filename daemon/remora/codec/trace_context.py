"""The trace context of the request that an event came with: 26 bytes behind the entry, and the header `traceparent`.

Ingest appends it to the entries of a request that has one, before a sequence's number: readers of entries ignore what
stands behind an entry's struct. The bytes are those of W3C's Trace Context, level 1 (https://www.w3.org/TR/trace-context):
version, trace id, parent id and flags, as a number each instead of as text.
"""

from __future__ import annotations

import re
from struct import Struct

TRACEPARENT = "traceparent"
"""The header's name, in requests as in Kafka's records."""

TRACE_BYTES = 26
"""What the context takes behind an entry."""

TEXT_BYTES = 55
"""What the header's value takes."""

_TEXT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SIZE = Struct("<I")
_HEADER_BYTES = 6
"""Version and compat of the entry's struct, and its size."""

_NUMBER_BYTES = 8
"""What a number in a sequence takes, which stands last."""


def parse(text: str) -> bytes:
    """A header's value as it stands behind an entry; empty where it is none that W3C allows, which is then ignored.

    One of a later version is read as far as this one goes, and handed on as this one.
    """
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        return b""
    version, trace, parent, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not (int(trace, 16) and int(parent, 16)):
        return b""
    return bytes.fromhex(f"00{trace}{parent}{flags}")


def text(context: bytes) -> bytes:
    """The header's value for what stands behind an entry."""
    shown = context.hex()
    return f"{shown[:2]}-{shown[2:34]}-{shown[34:50]}-{shown[50:]}".encode()


def context_of(entry: bytes) -> bytes:
    """What stands behind an entry; empty where nothing, or something else, stands behind the entry's struct."""
    if len(entry) < _HEADER_BYTES + TRACE_BYTES:
        return b""
    end = _HEADER_BYTES + int(_SIZE.unpack_from(entry, 2)[0])
    if len(entry) - end not in (TRACE_BYTES, TRACE_BYTES + _NUMBER_BYTES) or entry[end]:
        return b""
    return entry[end : end + TRACE_BYTES]


def traceparent_of(entry: bytes) -> bytes:
    """The header's value for an entry; empty where it has no context."""
    return text(context) if (context := context_of(entry)) else b""
