"""What the embedded store needs of SQLite and of the file system, and what it says where that is missing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from remora.config import SqliteSettings
from remora.model.errors import StoreMisconfigured, StoreUnavailable
from remora.storage.sqlite.files import directory as module
from remora.storage.sqlite.files.directory import locked, make_directory, prepare


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory that a store can be made in."""
    path = tmp_path / "store"
    make_directory(path)
    return path


def settings(directory: Path) -> SqliteSettings:
    return SqliteSettings(directory=str(directory), files=2)


def test_sqlite_that_is_too_old(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a library that lacks what the store needs nothing is made, and both versions are named."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))

    with pytest.raises(StoreMisconfigured, match=rf"3\.38 or newer .* {sqlite3.sqlite_version}"):
        prepare(directory, settings(directory))

    assert list(directory.iterdir()) == []


def test_file_system_without_a_log(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processes cannot share memory through a file, as on a network file system, the store is not made."""

    def without_shared_memory(path: Path, *, reader: bool, patience_s: float) -> sqlite3.Connection:
        assert not reader
        assert patience_s
        return sqlite3.connect(f"{path.as_uri()}?vfs=unix-none", uri=True, isolation_level=None)

    with monkeypatch.context() as patched:
        patched.setattr(module, "connect", without_shared_memory)
        with pytest.raises(StoreMisconfigured, match="local file system"):
            prepare(directory, settings(directory))

    paths, damaged = prepare(directory, settings(directory))
    assert (len(paths), damaged) == (2, {})


def test_directory_that_stays_locked(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that opens the store waits for another that does, but not for ever."""
    monkeypatch.setattr(module, "_LOCK_WITHIN_S", 0.05)

    with locked(directory), pytest.raises(StoreUnavailable, match="locked"), locked(directory):
        pytest.fail("two had the lock")
    with locked(directory):
        pass
