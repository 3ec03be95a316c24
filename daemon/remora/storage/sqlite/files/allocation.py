"""Room on the disk for a file before it is written to, and the descriptors that this takes; the room of a file's log
while nobody has the file open, and a little room for opening it on a full disk.

A process that closes any descriptor of a database file loses all locks that SQLite has there for it, and another one
may then take the file for its own: so each file has one descriptor in a process, which is closed when nobody in it uses
the file any more. The log has no such locks.

SQLite deletes the log when the last process closes the file, and others could take its room. So the log has a second
name, which keeps the room, and gets its first one back before the file is opened again. What is in it was copied into
the file by then, or the first name would be there: it is made unreadable, so that it is never taken for new.

SQLite also makes an index of the log at each opening, for which a disk that is full has no room. The reserve of the
directory is given up for that, in slices, and made again when there is room.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from remora.model.errors import StoreAway

FileId = tuple[int, int]
"""The device and the number of a file, which it keeps under any name."""

_lock = threading.Lock()
_users: dict[FileId, list[int]] = {}
"""By file: its descriptor, and how many use it."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""With these the host says that it has no room: on the disk, in a quota, or for so large a file."""

_allocate = ctypes.CDLL(None, use_errno=True).fallocate
_allocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class KeptOpen:
    """A database file, or the index of its log, for as long as this process has connections to it."""

    def __init__(self) -> None:
        self.file: FileId | None = None
        """Which it is."""

    def use(self, path: Path) -> None:
        """Keep the file that lies there from now on, and no other."""
        with _lock:
            file = id_of(path)
            if self.file == file:
                return
            self._let_go()
            if (entry := _users.get(file)) is None:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                file = id_of(descriptor)  # of what was opened, should another file have taken the place
                entry = _users.setdefault(file, [descriptor, 0])
            entry[1] += 1
            self.file = file

    def share(self, file: FileId) -> bool:
        """Keep a file that others of this process keep, whatever its name is by now; False where none does."""
        with _lock:
            if (entry := _users.get(file)) is None:
                return False
            self._let_go()
            entry[1] += 1
            self.file = file
            return True

    @property
    def descriptor(self) -> int | None:
        """The process's descriptor of the file; None where there is none."""
        return None if self.file is None else _users[self.file][0]

    def allocate(self) -> bool:
        """Have the disk give room for all of the file as it is; False where it has none."""
        descriptor = self.descriptor
        return descriptor is None or allocate(descriptor, 0, os.fstat(descriptor).st_size)

    def let_go(self) -> bool:
        """Use it no longer; whether nobody in this process does."""
        with _lock:
            return self._let_go()

    def _let_go(self) -> bool:
        file, self.file = self.file, None
        if file is None:
            return False
        entry = _users[file]
        entry[1] -= 1
        if entry[1]:
            return False
        del _users[file]
        os.close(entry[0])
        return True


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The process's descriptor of a database file, for a moment."""
    kept = KeptOpen()
    kept.use(path)
    try:
        assert kept.descriptor is not None
        yield kept.descriptor
    finally:
        kept.let_go()


def allocate(descriptor: int, start: int, end: int) -> bool:
    """Have the disk give room for these bytes of a file, which becomes at least as long; False where it has none.

    What is there already stays. It is the kernel's own call: the C library's would write where a file system has no
    such call, and that could overwrite what another process writes at the same moment. Where the call fails for any
    other reason than room nothing is reserved: if the disk is at fault, the writing itself says so.
    """
    if end <= start:
        return True
    while _allocate(descriptor, 0, start, end - start):
        if (error := ctypes.get_errno()) != errno.EINTR:
            return error not in NO_ROOM
    return True


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


def id_of(file: Path | int) -> FileId:
    """Which file lies there, or has this descriptor."""
    found = os.stat(file)
    return found.st_dev, found.st_ino


def keep_log(path: Path) -> None:
    """Give the log its second name. Where a file system has none, its room is lost when the file is closed."""
    keep_name(log_of(path), _kept(path))


def keep_name(path: Path, second: Path) -> None:
    """Give a file a second name, where its file system can, and only this file."""
    with suppress(OSError):
        if second.exists():
            if second.samefile(path):
                return
            second.unlink()
        os.link(path, second)


def give_name_back(path: Path, inode: int | None = None) -> bool:
    """Give the log its first name back, which somebody has removed while the file is open: else a start after a crash
    would not find what it holds. With a number only if it is the log of this number. False where it has none."""
    with suppress(OSError):
        if inode is None or _kept(path).stat().st_ino == inode:
            os.link(_kept(path), log_of(path))
            return True
    return False


def check_log(path: Path, mine: FileId) -> None:
    """See that the log that is in use has its name, or gets it back; else raise StoreAway."""
    log = log_of(path)
    try:
        found = id_of(log)
    except FileNotFoundError:
        if give_name_back(path, mine[1]):
            return
        raise StoreAway("gone", f"{log} was removed while it is in use, so the file is opened anew") from None
    if found != mine:
        raise StoreAway("gone", f"another file lies in the place of {log}, which is in use")


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
