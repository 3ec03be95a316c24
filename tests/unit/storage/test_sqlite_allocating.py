"""Descriptors of database files, and room that is allocated before it is written to."""

from __future__ import annotations

import ctypes
import errno
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from remora.policy.ingest.disk_room import Disk
from remora.storage.sqlite.files import allocation, room
from remora.storage.sqlite.files.allocation import KeptOpen, allocate, keep_log, log_of, opened, restore_log
from remora.storage.sqlite.files.connections import connect
from remora.storage.sqlite.files.refusals import unreadable

_TAKES = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
"""
"""Takes the lock that the last process has when it closes a database: SQLite's bytes for that."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a table."""
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (x)")
    return path


def read_all(path: Path) -> None:
    assert unreadable(path) is None


def open_and_close(path: Path) -> None:
    with opened(path) as descriptor:
        allocate(descriptor, 0, 1 << 16)


@pytest.mark.parametrize("use", [read_all, open_and_close], ids=lambda each: each.__name__)
def test_locks_outlive_other_uses_of_the_file(path: Path, use: Callable[[Path], None]) -> None:
    """A connection keeps its locks while its process opens, reads, allocates and closes the file beside it, so that no
    other process takes itself for the only one; and gives them back at its end."""
    with closing(connect(path, reader=False)) as connection:
        connection.execute("SELECT * FROM t").fetchall()
        use(path)
        assert subprocess.run([sys.executable, "-c", _TAKES, path], capture_output=True, check=False).returncode

    assert not subprocess.run([sys.executable, "-c", _TAKES, path], capture_output=True, check=False).returncode


def test_one_descriptor_for_all_users(path: Path) -> None:
    """Who uses a file at the same time has the same descriptor, and the last one closes it."""
    one, other = KeptOpen(), KeptOpen()
    one.use(path)
    other.use(path)
    descriptor = one.descriptor
    assert descriptor is not None
    assert other.descriptor == descriptor

    one.let_go()
    allocate(descriptor, 0, 1 << 20)
    assert path.stat().st_size == 1 << 20
    other.let_go()

    assert one.descriptor is other.descriptor is None


def test_a_log_that_is_kept_is_never_read_again(path: Path) -> None:
    """The log's second name keeps its bytes when the file is closed; they are room for the next log, and no entries."""
    with closing(connect(path, reader=False)) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        keep_log(path)
        inode = log_of(path).stat().st_ino
    assert not log_of(path).exists()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:  # that knows nothing of it
        other.execute("DELETE FROM t")

    restore_log(path)
    restore_log(path)

    assert log_of(path).stat().st_ino == inode
    with closing(connect(path, reader=False)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


@pytest.mark.parametrize(
    ("errors", "has_room"),
    [
        ([], True),
        ([errno.EINTR, errno.EINTR], True),  # a signal came
        ([errno.EINTR, errno.ENOSPC], False),
        ([errno.EDQUOT], False),
        ([errno.EFBIG], False),
        ([errno.EOPNOTSUPP], True),
        ([errno.EINVAL], True),
        ([errno.EPERM], True),
    ],
)
def test_only_missing_room_is_taken_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, errors: list[int], has_room: bool
) -> None:
    """An interrupted call is repeated; with any error but those for room, writing goes on without a reserve."""
    left = list(errors)

    def fallocate(*_: int) -> int:
        ctypes.set_errno(left.pop(0) if left else 0)
        return -1 if ctypes.get_errno() else 0

    monkeypatch.setattr(allocation, "_allocate", fallocate)
    with opened(path) as descriptor:
        assert allocate(descriptor, 0, 1 << 16) is has_room

    assert not left


def test_room_that_an_old_log_leaves_is_the_new_ones(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the second name keeps another log than the one in use, that is given up, and the one in use gets its length
    in the same transaction."""
    log, kept = log_of(path), path.with_name("x.db-room")
    log.touch()
    kept.write_bytes(bytes(1 << 20))
    old = kept.stat().st_ino
    monkeypatch.setattr(room, "disk_of", lambda _: Disk(100 << 30, 0 if kept.stat().st_ino == old else 1 << 30))
    with closing(connect(path, reader=False)) as connection:
        of_file = room.Room(path, KeptOpen(), 1)
        of_file.adapt(connection)
        of_file.limit_growth(connection)
        connection.execute("BEGIN IMMEDIATE")
        of_file.keep_log()

        assert log.stat().st_size == 12 << 20
        assert kept.samefile(log)
