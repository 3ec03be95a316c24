"""The checksum of each entry: made when it is committed, compared whenever it is read.

SQLite finds a page damaged whose structure makes no sense; bytes that changed inside an entry make perfect sense to it.

CRC-32 as zlib has it: the library is there, is compiled, and takes a quarter of a microsecond for an entry of 1,000
bytes. Any burst of up to 32 wrong bits is noticed for certain, anything else but once in four thousand million times.
Weighed against it: CRC-32C, which storage uses because processors can, costs another package, or with the one that
aiokafka brings twice the time; BLAKE2 five times the time, for protection from somebody who means it and who could as
well write a new checksum; SQLite's own checksums of pages are an extension that Python does not load. It begins with
the entry's place, so that an entry that came to another place is noticed, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

_SPREAD = 0x9E3779B1
"""An odd number without a pattern: the same position in two queues begins with different values."""


def checksums(queue: int, first: int, entries: Sequence[bytes]) -> Sequence[int]:
    """The checksum of each of a queue's entries, the first of which has this position."""
    start = queue * _SPREAD + first  # of which CRC-32 takes the low 32 bits
    return list(map(crc32, entries, range(start, start + len(entries))))


def changed(queue: int, first: int, entries: Sequence[bytes], kept: Sequence[int | None]) -> Mapping[int, str]:
    """What is wrong with those entries whose checksum is not the one that was kept, by their place.

    None was kept for entries that a version before the checksums has stored, and they pass: a checksum made later, of
    whatever the bytes had become, would prove nothing, and reading all of them would hold up the start.
    """
    found = checksums(queue, first, entries)
    if found == kept:
        return _NOTHING
    return {
        i: f"its {len(entry)} bytes are not those that were committed: their checksum is {is_:08x}, not {was:08x}"
        for i, (entry, is_, was) in enumerate(zip(entries, found, kept, strict=True))
        if was is not None and is_ != was
    }


_NOTHING: Mapping[int, str] = {}
