"""The room of a file's log while nobody has the file open, and a little room for opening it on a full disk.

SQLite deletes the log when the last process closes the file, and others could take its room. So the log has a second
name, which keeps the room, and gets its first one back before the file is opened again. What is in it was copied into
the file by then, or the first name would be there: it is made unreadable, so that it is never taken for new.

SQLite also makes an index of the log at each opening, for which a disk that is full has no room. The reserve of the
directory is given up for that, in slices, and made again when there is room.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from remora.storage.sqlite.allocation import allocate

_RESERVE = "reserve"
_SLICE_BYTES = 64 << 10
"""More than the index of a log takes, and less than all that a reserve has for one file."""

_SLICES = 4

_NO_HEADER = bytes(32)


def log_of(path: Path) -> Path:
    """The file's log."""
    return path.with_name(f"{path.name}-wal")


def index_of(path: Path) -> Path:
    """The index of the file's log, which lies in memory that processes share."""
    return path.with_name(f"{path.name}-shm")


def keep_log(path: Path) -> None:
    """Give the log its second name. Where a file system has none, its room is lost when the file is closed."""
    log, kept = log_of(path), _kept(path)
    with suppress(OSError):
        if kept.exists():
            if kept.samefile(log):
                return
            kept.unlink()
        os.link(log, kept)


def restore_log(path: Path) -> None:
    """Give the log its first name back, if the file is not open anywhere."""
    log, kept = log_of(path), _kept(path)
    if log.exists():
        return
    with suppress(OSError):
        descriptor = os.open(kept, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # whoever comes second finds the log there, and in use
            if not log.exists():
                os.pwrite(descriptor, _NO_HEADER, 0)
                os.link(kept, log)
        finally:
            os.close(descriptor)


def fill_reserve(directory: Path, files: int) -> None:
    """Let the directory have its reserve, as far as the disk has room."""
    with suppress(OSError):
        descriptor = os.open(directory / _RESERVE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            size, wanted = os.fstat(descriptor).st_size, files * _SLICES * _SLICE_BYTES
            if size < wanted:
                allocate(descriptor, size, wanted)
        finally:
            os.close(descriptor)


def give_slice(directory: Path) -> bool:
    """Give a part of the reserve up; False when nothing is left of it."""
    with suppress(OSError):
        path = directory / _RESERVE
        if size := path.stat().st_size:
            os.truncate(path, max(0, size - _SLICE_BYTES))
            return True
    return False


def make_room_for_index(path: Path) -> None:
    """Give a slice up where the file is not open anywhere and the disk has no room for the index of its log.

    SQLite notices that itself where blocks are as large as memory's pages. Where they are smaller it has room for a
    part of each page only, and the process is killed when it writes to the rest.
    """
    with suppress(OSError):
        disk = os.statvfs(path)
        if disk.f_bavail * disk.f_frsize < _SLICE_BYTES and not index_of(path).exists():
            give_slice(path.parent)


def _kept(path: Path) -> Path:
    return path.with_name(f"{path.name}-room")
