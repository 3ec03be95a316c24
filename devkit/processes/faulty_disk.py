"""A disk that refuses: what SQLite and Python read and write below a directory fails with an errno of choice.

SQLite's own way of trying that is used: its system calls are exchanged, all else of it is as ever.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs` of sqlite3.h."""


_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Vfs), ctypes.c_char_p, ctypes.c_void_p)
_GET = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Vfs), ctypes.c_char_p)
_CALL = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, use_errno=True
)
_Vfs._fields_ = [
    *[(name, ctypes.c_int) for name in ("version", "file_size", "longest_path")],
    *[(name, ctypes.c_void_p) for name in ("next", "name", "data")],
    *[(f"method_{number}", ctypes.c_void_p) for number in range(13)],
    ("set_system_call", _SET),
    ("get_system_call", _GET),
    ("next_system_call", ctypes.c_void_p),
]

_CALLS = {"reading": ("pread", "pread64"), "writing": ("pwrite", "pwrite64")}


class FaultyDisk:
    """`fails` names what fails (`reading`, `writing`) and with which errno."""

    def __init__(self, directory: Path) -> None:
        self.fails: dict[str, int] = {}
        self._directory = str(directory)

    def error(self, doing: str, descriptor: int) -> int:
        """The errno for a call on this descriptor; 0 where it is carried out."""
        code = self.fails.get(doing, 0)  # read once: another thread may clear it
        if code and os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._directory):
            return code
        return 0


@contextmanager
def faulty_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyDisk]:
    """A disk that works until it is told otherwise."""
    library = ctypes.CDLL(_sqlite3.__file__)  # and what it is linked to
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    vfs = library.sqlite3_vfs_find(None)
    disk = FaultyDisk(directory)
    kept = []
    for doing, names in _CALLS.items():
        for name in names:
            if address := vfs.contents.get_system_call(vfs, name.encode()):
                kept.append(_CALL(_refusing(disk, doing, _CALL(address))))
                assert vfs.contents.set_system_call(vfs, name.encode(), ctypes.cast(kept[-1], ctypes.c_void_p)) == 0
        monkeypatch.setattr(os, names[0], _raising(disk, doing, getattr(os, names[0])))
    assert kept
    try:
        yield disk
    finally:
        vfs.contents.set_system_call(vfs, None, None)  # all as they were


def _refusing(disk: FaultyDisk, doing: str, real: Any) -> Callable[[int, int, int, int], int]:
    def call(descriptor: int, buffer: int, size: int, place: int) -> int:
        if error := disk.error(doing, descriptor):
            ctypes.set_errno(error)
            return -1
        return int(real(descriptor, buffer, size, place))

    return call


def _raising(disk: FaultyDisk, doing: str, real: Any) -> Callable[[int, Any, int], Any]:
    def call(descriptor: int, what: Any, place: int) -> Any:
        if error := disk.error(doing, descriptor):
            raise OSError(error, os.strerror(error))
        return real(descriptor, what, place)

    return call


FAULTS = {errno.EIO: "io_error", errno.EROFS: "read_only"}
"""What the store is to call each of them."""
