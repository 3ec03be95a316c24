"""CRC-32 of many texts, as zlib has it; `_compiled.pyx` is the same, quicker where the processor helps."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32


def checksums(texts: Sequence[bytes], start: int) -> list[int]:
    """The checksum of each text; each begins with a value of its own, from the low 32 bits of `start` upwards."""
    return list(map(crc32, texts, range(start, start + len(texts))))


def mismatches(rows: Sequence[tuple[bytes, int | None]], start: int) -> list[int]:
    """The places of those rows, of a text and its checksum of before, whose text has another one by now.

    Where there is none of before, any will do.
    """
    found = checksums([text for text, _ in rows], start)
    return [i for i, (_, before) in enumerate(rows) if before is not None and before != found[i]]
