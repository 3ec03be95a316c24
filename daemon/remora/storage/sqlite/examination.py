"""Whether a file is damaged, asked of the disk anew: an open connection remembers pages that it has read before."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from remora.model.errors import StoreDamaged, StoreError
from remora.storage.sqlite.connections import connect
from remora.storage.sqlite.refusals import translated

_PATIENCE_S = 5.0

_TABLES = ("meta", "topics", "queues", "locks")
"""Without these nothing can be delivered of what a file holds. They are small, whatever waits."""


def is_sound(path: Path) -> bool:
    """Whether SQLite finds nothing wrong in a file that it has met damage in. Takes long for a large one."""
    try:
        with closing(connect(path, reader=True, patience_s=_PATIENCE_S)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            return bool(found == "ok")
    except (sqlite3.Error, StoreError):
        return False


def damage_of(path: Path) -> StoreDamaged | None:
    """What keeps the file's tables from being read, if that is damage."""
    try:
        with closing(connect(path, reader=True, patience_s=_PATIENCE_S)) as connection:
            for table in _TABLES:
                connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608 - a constant
    except (sqlite3.Error, StoreError) as exc:
        error = translated(exc, path)
        return error if isinstance(error, StoreDamaged) else None
    return None


def damages(paths: Iterable[Path]) -> dict[Path, StoreDamaged]:
    """Those of several files that are damaged, and why."""
    found = {path: damage_of(path) for path in paths}
    return {path: damage for path, damage in found.items() if damage is not None}
