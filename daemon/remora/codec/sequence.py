"""An event's number in its topic's order of commits: eight bytes behind the entry, and the header `remora-seq`.

The store appends the number when it commits an entry to a topic that has a sequence. The entry's own struct tells where
it ends, and readers of entries ignore what stands behind it. Bytes behind an entry of another topic are no number.
"""

from __future__ import annotations

from struct import Struct

NUMBER_BYTES = 8

_NUMBER = Struct("<Q")
_SIZE = Struct("<I")
_HEADER_BYTES = 6
"""Version and compat of the entry's struct, and its size."""


def with_number(entry: bytes, number: int) -> bytes:
    """The entry as a topic with a sequence stores it."""
    return entry + number.to_bytes(NUMBER_BYTES, "little")


def number_of(entry: bytes) -> int | None:
    """The number behind an entry; None where exactly eight bytes do not stand there."""
    end = struct_end(entry)
    return _NUMBER.unpack_from(entry, end)[0] if end + NUMBER_BYTES == len(entry) else None


def without_number(entry: bytes) -> bytes:
    """The entry as it was committed, without what stands behind its struct; one that is cut short stays as it is."""
    return entry[: struct_end(entry)]


def struct_end(entry: bytes) -> int:
    """Where the entry's struct ends, in bytes; the entry's length where it is cut short."""
    if len(entry) < _HEADER_BYTES:
        return len(entry)
    return min(len(entry), _HEADER_BYTES + int(_SIZE.unpack_from(entry, 2)[0]))


def sequence_prefix(topic_id: str) -> bytes:
    """What stands before the number in the header of a topic's records."""
    return topic_id.encode() + b":"
