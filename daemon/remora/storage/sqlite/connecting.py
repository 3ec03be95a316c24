"""Connections to a file, and transactions on them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE_BYTES = 16384
"""Compared with SQLite's usual 4 KiB: a fifth less for storing events, a third for listing, half for removing. A lone
event has more to sync, but those that wait together share that."""

LOG_BYTES = 8 << 20
"""At this size the write-ahead log is copied into the file, and written from its beginning again. It keeps its size:
on a full disk it is the room that removals are written to."""

_WRITER_CACHE_KIB, _READER_CACHE_KIB = 2048, 512


def connect(path: Path, *, reader: bool, patience_s: float = 0.0) -> sqlite3.Connection:
    """A connection that waits for others so long and not longer, for use by one thread at a time.

    Even the first look can meet other processes: one that opens the file after a crash, or is the last to close it. The
    file must exist: one that SQLite makes would have the permissions that the umask leaves.
    """
    uri = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB if reader else _WRITER_CACHE_KIB}")
        # Debian's SQLite overwrites what is deleted, which makes removals slower by a quarter. Mapped pages would
        # count as the process's memory.
        connection.execute("PRAGMA secure_delete = 0")
        connection.execute("PRAGMA mmap_size = 0")
        # What a statement or a savepoint would have to undo stands in memory: beyond 64 KiB SQLite would write it to a
        # file in the folder for temporary files, made and removed in each transaction, which may be full or missing.
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // PAGE_BYTES}")
        if reader:
            connection.execute("PRAGMA query_only = 1")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything that is read inside is of one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:  # some errors end it
            connection.execute("COMMIT")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything that is written inside is kept, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
