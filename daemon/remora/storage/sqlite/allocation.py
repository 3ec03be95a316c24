"""Room on the disk for a file before it is written to, and the descriptors that this takes.

A process that closes any descriptor of a database file loses all locks that SQLite has there for it, and another one
may then take the file for its own: so each file has one descriptor in a process, which is closed when nobody in it uses
the file any more. The log has no such locks.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_lock = threading.Lock()
_users: dict[tuple[int, int], list[int]] = {}
"""By device and number of a file: its descriptor, and how many use it."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""With these the host says that it has no room: on the disk, in a quota, or for so large a file."""

_allocate = ctypes.CDLL(None, use_errno=True).fallocate
_allocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class KeptOpen:
    """A database file, or the index of its log, for as long as this process has connections to it."""

    def __init__(self) -> None:
        self._file: tuple[int, int] | None = None

    def use(self, path: Path) -> None:
        """Keep the file that lies there from now on, and no other."""
        with _lock:
            found = path.stat()
            if self._file == (found.st_dev, found.st_ino):
                return
            self._let_go()
            if (entry := _users.get((found.st_dev, found.st_ino))) is None:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                found = os.fstat(descriptor)  # what was opened, should another file have taken the place
                entry = _users.setdefault((found.st_dev, found.st_ino), [descriptor, 0])
            entry[1] += 1
            self._file = found.st_dev, found.st_ino

    @property
    def descriptor(self) -> int | None:
        """The process's descriptor of the file; None where there is none."""
        return None if self._file is None else _users[self._file][0]

    def allocate(self) -> bool:
        """Have the disk give room for all of the file as it is; False where it has none."""
        descriptor = self.descriptor
        return descriptor is None or allocate(descriptor, 0, os.fstat(descriptor).st_size)

    def let_go(self) -> None:
        """Use it no longer."""
        with _lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            entry = _users[self._file]
            entry[1] -= 1
            if not entry[1]:
                del _users[self._file]
                os.close(entry[0])
        self._file = None


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
