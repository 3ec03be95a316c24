"""Cells of rows as what they are to be: SQLite keeps a value of any type in each, whatever the schema says."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from remora.model.errors import StoreDamaged

T = TypeVar("T", bound=tuple[Any, ...])
V = TypeVar("V")

_FACT = "SELECT value FROM meta WHERE key = ?"
_PLACE = re.compile(r" - at `\$\[(\d+)\]`$")


def typed(connection: sqlite3.Connection, kind: type[T], cells: object, table: str, row: str) -> T:
    """A row as a named tuple. Raises StoreDamaged, with file, table, row and column, for a cell of another type."""
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
    """What a cell of a row has packed. Raises StoreDamaged, with file, table and row, for anything else."""
    try:
        return decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as exc:
        raise row_damaged(connection, table, row, str(exc)) from exc


def number_fact(connection: sqlite3.Connection, key: str) -> int:
    """A fact of a file about itself that is a number. Raises StoreDamaged."""
    found = connection.execute(_FACT, (key,)).fetchone()
    if found is None or not isinstance(found[0], int):
        text = "it is missing" if found is None else f"expected a number, got {found[0]!r:.40}"
        raise row_damaged(connection, "meta", key, text)
    return found[0]


def row_damaged(connection: sqlite3.Connection, table: str, row: str, why: str) -> StoreDamaged:
    """The error for a row that makes no sense."""
    (_, _, path) = connection.execute("PRAGMA database_list").fetchone()
    return StoreDamaged(f"{path} is damaged: table {table}, row {row}: {why}")
