"""Connections to a file, and transactions on them; whether a file is damaged, asked of the disk anew over a connection
of its own, since an open one remembers pages that it has read before."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from remora.model.errors import StoreDamaged, StoreError, StoreFull
from remora.storage.sqlite.files.allocation import (
    FileId,
    KeptOpen,
    check_log,
    give_slice,
    id_of,
    log_of,
    make_room_for_index,
)
from remora.storage.sqlite.files.names import IndexInUse, restore_names
from remora.storage.sqlite.files.refusals import lacks_room, translated
from remora.storage.sqlite.tables.recent import IndexedConnection

PAGE_BYTES = 16384
"""Compared with SQLite's usual 4 KiB: a fifth less for storing events, a third for listing, half for removing. A lone
event has more to sync, but those that wait together share that."""

LOG_BYTES = 8 << 20
"""At this size the write-ahead log is copied into the file, and written from its beginning again. The writer of a file
does that itself, as the disk allows."""

_CHECKPOINT_PATIENCE_MS = 100
_PAGES_LEFT = """
SELECT max_page_count - page_count + freelist_count
FROM pragma_max_page_count, pragma_page_count, pragma_freelist_count
"""

_WRITER_CACHE_KIB, _READER_CACHE_KIB = 2048, 512


def connect(path: Path, *, reader: bool, patience_s: float = 0.0) -> FileConnection:
    """A connection that waits for others so long and not longer, for use by one thread at a time.

    Even the first look can meet other processes: one that opens the file after a crash, or is the last to close it. The
    file must exist: one that SQLite makes would have the permissions that the umask leaves. Where the disk has no room
    for what SQLite makes at an opening, the directory's reserve is given up for it.
    """
    restore_names(path, patience_s)
    make_room_for_index(path)
    while True:
        try:
            return _connected(path, reader, patience_s)
        except (sqlite3.Error, StoreFull) as exc:
            if not (lacks_room(exc) and path.exists() and give_slice(path.parent)):
                raise


_TEXT = partial(str, encoding="utf-8", errors="backslashreplace")

_doubted: set[FileId] = set()
"""Files whose log may lack on the disk what this process, by any connection, has written there."""


class FileConnection(IndexedConnection):
    """A connection whose locks are kept for as long as it is open, whatever else opens and closes its files."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file, self.shared_index = KeptOpen(), IndexInUse()
        self._log: FileId | None = None
        self.forget()

    def keep(self, path: Path) -> None:
        """To be called before anything is read."""
        with suppress(OSError):
            self._file.use(path)

    def keep_beside(self, path: Path) -> None:
        """Raises StoreFull where the disk has no room for the whole index of the log: to write there would end the
        process."""
        with suppress(OSError):
            self.shared_index.use(path, self._file.file)
            self._log = id_of(log_of(path))
        if not self.shared_index.allocate():
            raise StoreFull(f"{path}: the disk is full")

    def check(self, path: Path) -> None:
        """Raise StoreAway unless other processes find the index of the log and the log that this connection has."""
        self.shared_index.check(path)
        if self._log is not None:
            check_log(path, self._log)

    @property
    def is_log_doubted(self) -> bool:
        """Whether the disk failed since the log was begun, by whichever connection of this process: the kernel may have
        given up what it had to write, and later syncs succeed without it, so that a start would read the log no further
        than to there."""
        return self._file.file in _doubted

    @is_log_doubted.setter
    def is_log_doubted(self, is_doubted: bool) -> None:
        if self._file.file is not None:
            (_doubted.add if is_doubted else _doubted.discard)(self._file.file)

    def close(self) -> None:
        super().close()
        self.shared_index.let_go()
        self._file.let_go()


def _connected(path: Path, reader: bool, patience_s: float) -> FileConnection:
    uri = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(
        uri, uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False, factory=FileConnection
    )
    assert isinstance(connection, FileConnection)
    try:
        # A flipped bit makes other text and no error, which would keep all other rows from being read.
        connection.text_factory = _TEXT
        connection.keep(path)
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
        connection.execute("PRAGMA schema_version").fetchone()  # makes what is made at an opening
        connection.keep_beside(path)
    except BaseException:
        connection.close()
        raise
    return connection


def pages_left(connection: sqlite3.Connection) -> int:
    """How many pages a transaction finds: free ones, and those by which `Room.limit_growth` lets the file grow."""
    (pages,) = connection.execute(_PAGES_LEFT).fetchone()
    return int(pages)


def begin_log_anew(connection: sqlite3.Connection) -> bool:
    """Copy the log into the file, and let the next transaction begin it anew; False where readers are in the way.

    The usual checkpoints cannot while some reader always reads what was there before the last commit; this one blocks
    writers until such readers have gone, or for a moment.
    """
    connection.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_PATIENCE_MS}")
    try:
        (is_blocked, _, _) = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
    finally:
        connection.execute("PRAGMA busy_timeout = 0")
    return not is_blocked


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything that is read inside is of one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:  # some errors end it
            connection.execute("ROLLBACK")  # of a damaged file COMMIT fails, though nothing was written


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


_PATIENCE_S = 5.0

_TABLES = ("meta", "topics", "queues", "locks")
"""Without these nothing can be delivered of what a file holds. They are small, whatever waits."""


_STEPS = 100_000
"""So many steps of SQLite's machine between two looks whether its answer is wanted yet."""


def is_sound(path: Path, is_wanted: Callable[[], bool] = lambda: True) -> bool:
    """Whether SQLite finds nothing wrong in a file that it has met damage in, and that `is_wanted` until then. Takes
    long for a large one."""
    try:
        with closing(connect(path, reader=True, patience_s=_PATIENCE_S)) as connection:
            connection.set_progress_handler(lambda: not is_wanted(), _STEPS)
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
