"""Whether what is read is what was stored: the checksum of each entry and of each dead letter, made when it is stored
and compared whenever it is read; and cells of rows, since SQLite keeps a value of any type in each, whatever the schema
says.

SQLite finds a page damaged whose structure makes no sense; bytes that changed inside an entry make perfect sense to it.

CRC-32 as zlib has it: the library is there, and takes a quarter of a microsecond for an entry of 1,000 bytes; what is
compiled a quarter of that. A burst of up to 32 wrong bits is noticed for certain, anything else but once in four
thousand million times.

Weighed against it: CRC-32C, which storage uses because processors can, costs another package, or with the one that
aiokafka brings twice the time; BLAKE2 five times the time, for protection from an attacker, who could as
well write a new checksum; SQLite's own checksums of pages are an extension that Python does not load. It begins with
the entry's place, so that an entry that came to another place is noticed, too.
"""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from remora.codec import speedups
from remora.model.errors import RowDamaged

NO_CHECKSUM = "it has no checksum, though one before it has"

_SPREAD = 0x9E3779B1
"""An odd number without a pattern: the same position in two queues begins with different values."""


def checksums(queue: int, first: int, entries: Sequence[bytes]) -> Sequence[int]:
    """The checksum of each of a queue's entries, the first of which has this position."""
    return speedups.checksums(entries, _begun(queue, first))


def changed(queue: int, first: int, rows: Sequence[tuple[bytes, int | None]]) -> Mapping[int, str]:
    """What is wrong with those entries whose checksum is not the one that was kept, by their place among these.

    None was kept for entries that a version before the checksums has stored, and they pass: a checksum made later, of
    whatever the bytes had become, would prove nothing, and reading all of them would hold up the start.
    """
    places = speedups.mismatches(rows, _begun(queue, first))
    return {place: _reason(queue, first + place, *rows[place]) for place in places} if places else _NOTHING


def _reason(queue: int, position: int, entry: bytes, kept: int | None) -> str:
    (found,) = checksums(queue, position, [entry])
    return (
        f"its {len(entry)} bytes are not those that were committed: their checksum is {found:08x}, not {kept or 0:08x}"
    )


def letter_checksum(place: tuple[str, str, int, int], letter: bytes) -> int:
    """The checksum of a dead letter as it is stored at a place: queue, incarnation, generation and position."""
    return zlib.crc32(letter, zlib.crc32("\0".join(map(str, place)).encode("utf-8", "surrogatepass")))


def changed_letter(place: tuple[str, str, int, int], letter: bytes, kept: int | None) -> str:
    """What is wrong with a letter whose checksum is not the one that was kept; empty where it is, or none was kept."""
    if kept is None or (found := letter_checksum(place, letter)) == kept:
        return ""
    return f"its letter has changed in the store: the {len(letter)} bytes have checksum {found:08x}, not {kept:08x}"


def _begun(queue: int, first: int) -> int:
    return queue * _SPREAD + first  # of which CRC-32 takes the low 32 bits


_NOTHING: Mapping[int, str] = {}


T = TypeVar("T", bound=tuple[Any, ...])
V = TypeVar("V")

_FACT = "SELECT value FROM meta WHERE key = ?"
_PLACE = re.compile(r" - at `\$\[(\d+)\]`$")


def typed(connection: sqlite3.Connection, kind: type[T], cells: object, table: str, row: str) -> T:
    """A row as a named tuple. Raises RowDamaged, with file, table, row and column, for a cell of another type."""
    try:
        found: T = msgspec.convert(cells, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as exc:
        text = str(exc)
        if place := _PLACE.search(text):
            column = getattr(kind, "_fields", ())[int(place[1])]
            text = f"{column}: {text[: place.start()]}"
        raise row_damaged(connection, table, row, text) from exc
    return found


def unpacked(connection: sqlite3.Connection, decode: Callable[[bytes], V], packed: Any, table: str, row: str) -> V:
    """What a cell of a row has packed. Raises RowDamaged, with file, table and row, for anything else."""
    try:
        return decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as exc:
        raise row_damaged(connection, table, row, str(exc)) from exc


def number_fact(connection: sqlite3.Connection, key: str, default: int | None = None) -> int:
    """A fact of a file about itself that is a number; where it is missing the default. Raises RowDamaged."""
    found = connection.execute(_FACT, (key,)).fetchone()
    if found is None and default is not None:
        return default
    if found is None or not isinstance(found[0], int):
        text = "it is missing" if found is None else f"expected a number, got {found[0]!r:.40}"
        raise row_damaged(connection, "meta", key, text)
    return found[0]


def row_damaged(connection: sqlite3.Connection, table: str, row: str, why: str) -> RowDamaged:
    """The error for a row that makes no sense."""
    (_, _, path) = connection.execute("PRAGMA database_list").fetchone()
    return RowDamaged(f"{path} is damaged: table {table}, row {row}: {why}")
