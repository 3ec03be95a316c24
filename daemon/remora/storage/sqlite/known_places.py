"""What the first file of a store knows of its directories, and what every file knows of the last change of them."""

from __future__ import annotations

import sqlite3

import msgspec

from remora.policy.store_directories import StoreDirectories

_KNOWN = "SELECT value FROM meta WHERE key = 'directories'"
_GENERATION = "SELECT value FROM meta WHERE key = 'placement'"
KEEP_FACT = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"
"""Replaces a fact about a file; that of this module are `directories` and `placement`."""

_decode = msgspec.json.Decoder(StoreDirectories).decode


def placement_in(connection: sqlite3.Connection) -> StoreDirectories:
    """The directories of a store, of its first file."""
    row = connection.execute(_KNOWN).fetchone()
    return StoreDirectories() if row is None else _decode(row[0])


def keep_placement(connection: sqlite3.Connection, placement: StoreDirectories) -> None:
    """Within a transaction of the first file, have the store know its directories."""
    connection.execute(KEEP_FACT, ("directories", msgspec.json.encode(placement).decode()))


def generation_in(connection: sqlite3.Connection) -> int:
    """The last change of the directories that a file knows."""
    row = connection.execute(_GENERATION).fetchone()
    return 0 if row is None else int(row[0])
