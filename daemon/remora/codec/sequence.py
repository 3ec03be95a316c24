"""An event's number in its topic's order of commits: eight bytes behind the entry, and the header `remora-seq`.

The store appends the number when it commits an entry to a topic that has a sequence. The entry's own struct tells where
it ends, and readers of entries ignore what stands behind it: a trace context where there is one, and the number. Bytes
behind an entry of another topic are no number.
"""

from __future__ import annotations

from struct import Struct

from remora.codec.trace_context import TRACE_BYTES

NUMBER_BYTES = 8

_NUMBER = Struct("<Q")
_SIZE = Struct("<I")
_HEADER_BYTES = 6
"""Version and compat of the entry's struct, and its size."""


def with_number(entry: bytes, number: int) -> bytes:
    """The entry as a topic with a sequence stores it."""
    return entry + number.to_bytes(NUMBER_BYTES, "little")


def number_of(entry: bytes) -> int | None:
    """The number behind an entry of a topic that has a sequence; None where none stands behind the entry's struct.

    Of an entry whose struct makes no sense the last bytes are the number: whatever it is, the store has put them there.
    """
    if len(entry) < NUMBER_BYTES:
        return None
    if len(entry) >= _HEADER_BYTES + NUMBER_BYTES:
        behind = len(entry) - _HEADER_BYTES - int(_SIZE.unpack_from(entry, 2)[0])
        if 0 <= behind < NUMBER_BYTES or behind == TRACE_BYTES:
            return None
    return int(_NUMBER.unpack_from(entry, len(entry) - NUMBER_BYTES)[0])


def without_number(entry: bytes) -> bytes:
    """An entry of a topic that has a sequence, without its number."""
    return entry if number_of(entry) is None else entry[:-NUMBER_BYTES]


def sequence_prefix(topic_id: str) -> bytes:
    """What stands before the number in the header of a topic's records."""
    return topic_id.encode() + b":"
