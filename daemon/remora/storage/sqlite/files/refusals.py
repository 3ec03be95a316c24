"""What SQLite's errors mean for those who use the store."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from remora.model.errors import StoreAway, StoreDamaged, StoreError, StoreFull, StoreUnavailable
from remora.storage.sqlite.files.allocation import NO_ROOM, opened

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_OF_THE_HOST = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_ENDS = _DAMAGED | _OF_THE_HOST | _BUSY | {sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM}
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV, errno.ENXIO})
_OF_MEMORY = frozenset({sqlite3.SQLITE_IOERR_NOMEM, sqlite3.SQLITE_IOERR_SHMSIZE})
_ERRNO = {sqlite3.SQLITE_READONLY: errno.EROFS}
_PROBE = bytes(64 << 10)

_PART_BYTES = 1 << 20
_LOOKED_THROUGH_AT_ONCE = 32 << 20
"""This much of a file is read, to distinguish a failing disk from damage, before the error is reported; the rest is
read in a thread."""


class NameLost(sqlite3.OperationalError):
    """A file that is not to be opened yet, as one that is busy: others have it open, and what they use has no name."""

    sqlite_errorcode = sqlite3.SQLITE_BUSY


def primary_code(exc: sqlite3.Error) -> int:
    """SQLite's result code without its details; SQLITE_ERROR where the driver raised the error by itself."""
    return getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def is_busy(exc: sqlite3.Error) -> bool:
    """Whether another connection was in the way, for a moment."""
    return primary_code(exc) in _BUSY


def kept_busy(exc: sqlite3.Error, path: Path, for_s: float = 0.0) -> StoreUnavailable:
    """What those are told whom others were in the way of for too long."""
    if isinstance(exc, NameLost):
        return StoreUnavailable(str(exc))
    return StoreUnavailable(f"{path}: others kept it busy{f' for {for_s:g} s' if for_s else ''}")


def ends_transaction(exc: sqlite3.Error) -> bool:
    """Whether the transaction cannot go on after this error, whichever statement met it."""
    return primary_code(exc) in _ENDS


def is_of_the_disk(exc: Exception) -> bool:
    """Whether the host failed to read, write or sync."""
    if isinstance(exc, sqlite3.Error):
        return primary_code(exc) == sqlite3.SQLITE_IOERR and getattr(exc, "sqlite_errorcode", 0) not in _OF_MEMORY
    return (exc.cause == "io_error") if isinstance(exc, StoreAway) else getattr(exc, "errno", 0) == errno.EIO


def lacks_room(exc: sqlite3.Error | StoreFull) -> bool:
    """Whether it was for room on the disk, or may have been: SQLite does not say why it could not make a file."""
    if isinstance(exc, StoreFull):
        return True
    code = getattr(exc, "sqlite_errorcode", 0)
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE) or primary_code(exc) == sqlite3.SQLITE_CANTOPEN


def translated(exc: Exception, path: Path) -> StoreError:
    """The store's error for one of SQLite's or of the file system's, with the file in its text."""
    if isinstance(exc, StoreError):
        return exc
    if isinstance(exc, OSError):
        return of_the_host(exc, path)
    if not isinstance(exc, sqlite3.Error):
        return StoreError(f"{path}: {exc!r}")
    code = primary_code(exc)
    if code in _DAMAGED:
        unread = unreadable(path, _LOOKED_THROUGH_AT_ONCE)
        return of_the_host(unread, path) if unread else StoreDamaged(f"{path} is damaged: {exc}")
    if code == sqlite3.SQLITE_FULL or getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreFull(f"{path}: the disk is full, save for what delivery needs")
    if code in _OF_THE_HOST and getattr(exc, "sqlite_errorcode", 0) != sqlite3.SQLITE_IOERR_NOMEM:
        # SQLite does not say why the host refused: a try beside the file does, as long as it fails in the same way.
        return of_the_host(_tried(path) or OSError(_ERRNO.get(code, errno.EIO), str(exc)), path)
    if isinstance(exc, sqlite3.OperationalError):
        return StoreUnavailable(f"{path}: {exc}")
    return StoreError(f"{path}: {exc}")


def of_the_host(exc: OSError, path: Path) -> StoreError:
    """What it means that the host refuses to read, write or find this file."""
    why = exc.strerror or str(exc)
    if exc.errno in NO_ROOM:
        return StoreFull(f"{path}: {why}")
    if exc.errno in _GONE:
        return StoreAway("gone", f"{path} is gone: is its disk mounted?")
    if exc.errno == errno.EROFS:
        return StoreAway("read_only", f"{path} can only be read: its file system is mounted read-only")
    return StoreAway("io_error", f"{path} cannot be used: {why}")


def unreadable(path: Path, most: int | None = None, is_wanted: Callable[[], bool] = lambda: True) -> OSError | None:
    """The error with which the host refuses to give the file's bytes, or the first `most` of them, or those that were
    read while that `is_wanted`.

    SQLite calls a page damaged that could not be read.
    """
    try:
        with opened(path) as descriptor:
            place = 0
            while is_wanted() and (most is None or place < most):
                if not (part := len(os.pread(descriptor, _PART_BYTES, place))):
                    break
                place += part
    except OSError as exc:
        return exc
    return None


def _tried(path: Path) -> OSError | None:
    """Why the file cannot be found, or a file beside this one not get as large as it."""
    try:
        path.stat()
        descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        return exc
    try:
        if os.pwrite(descriptor, _PROBE, _extent(path)) < len(_PROBE):
            return OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    except OSError as exc:
        return exc
    finally:
        os.close(descriptor)
    return None


def _extent(path: Path) -> int:
    """Where the next byte of this file or its log would be written."""
    sizes = [0]
    for each in (path, path.with_name(f"{path.name}-wal")):
        with suppress(OSError):
            sizes.append(each.stat().st_size)
    return max(sizes)
