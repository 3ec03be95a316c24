"""Inserts many rows by few statements: the driver lets go of the interpreter at each one."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import repeat
from typing import Any

_CHUNKS = tuple(1 << n for n in range(9, -1, -1))
_CHUNK_BYTES = 256 << 10
"""How much goes into one statement at most, about: the driver keeps it in memory until the statement's next use."""


def insert(connection: sqlite3.Connection, into: str, columns: int, values: Sequence[Any], nbytes: int = 0) -> None:
    """Insert rows, given one behind the other, many by one statement; `nbytes` is about their size.

    A row that is there already undoes the whole job, so that the statement need not undo itself: with OR FAIL, SQLite
    keeps no copy of each page that it changes for that.
    """
    row = f"({','.join(repeat('?', columns))})"
    most = _CHUNK_BYTES * (len(values) // columns) // nbytes if nbytes else _CHUNKS[0]
    start = 0
    for rows in _CHUNKS:
        size = rows * columns
        while len(values) - start >= size and (rows <= most or rows == 1):
            statement = f"INSERT OR FAIL INTO {into} VALUES {','.join(repeat(row, rows))}"  # noqa: S608 - constants
            connection.execute(statement, values[start : start + size])
            start += size
