"""What SQLite's errors mean for those who use the store."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from remora.model.errors import StoreDamaged, StoreError, StoreFull, StoreUnavailable

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_MAYBE_FULL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_ENDS = _DAMAGED | _MAYBE_FULL | _BUSY | {sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY}
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PROBE = bytes(64 << 10)


def primary_code(exc: sqlite3.Error) -> int:
    """SQLite's result code without its details; SQLITE_ERROR where the driver raised the error by itself."""
    return getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def is_busy(exc: sqlite3.Error) -> bool:
    """Whether another connection was in the way, for a moment."""
    return primary_code(exc) in _BUSY


def ends_transaction(exc: sqlite3.Error) -> bool:
    """Whether the transaction cannot go on after this error, whichever statement met it."""
    return primary_code(exc) in _ENDS


def translated(exc: Exception, path: Path) -> StoreError:
    """The store's error for one of SQLite's or of the file system's, with the file in its text."""
    if isinstance(exc, OSError):
        return StoreUnavailable(f"{path}: {exc.strerror or exc}")
    if not isinstance(exc, sqlite3.Error):
        return StoreError(f"{path}: {exc!r}")
    code = primary_code(exc)
    if code in _DAMAGED:
        return StoreDamaged(f"{path} is damaged: {exc}")
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"{path}: the disk is full, save for what removals need")
    # For a limit on a file's size, and for a quota, SQLite has no name of its own.
    if code in _MAYBE_FULL and (reason := _no_room(path)):
        return StoreFull(f"{path}: {reason}")
    if isinstance(exc, sqlite3.OperationalError):
        return StoreUnavailable(f"{path}: {exc}")
    return StoreError(f"{path}: {exc}")


def _no_room(path: Path) -> str:
    """Why a file beside this one cannot get as large as it; empty where it can."""
    try:
        descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        return _reason(exc)
    try:
        if os.pwrite(descriptor, _PROBE, _extent(path)) < len(_PROBE):
            return os.strerror(errno.EFBIG)
    except OSError as exc:
        return _reason(exc)
    finally:
        os.close(descriptor)
    return ""


def _reason(exc: OSError) -> str:
    return os.strerror(exc.errno) if exc.errno in _NO_ROOM else ""


def _extent(path: Path) -> int:
    """Where the next byte of this file or its log would be written."""
    sizes = [0]
    for each in (path, path.with_name(f"{path.name}-wal")):
        with suppress(OSError):
            sizes.append(each.stat().st_size)
    return max(sizes)
