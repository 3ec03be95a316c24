"""How processes of a host tell each other that a file of the store got entries, through the kernel and without waiting.

Beside each file lies an empty one, the doorbell. To ring is to open and close it for writing, which changes nothing on
the disk; inotify(7) notifies every process that watches the directory, once or several times. Nothing depends on it:
a process that cannot watch polls.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_SUFFIX = ".bell"

_CLOSE_WRITE, _OVERFLOW = 0x8, 0x4000  # inotify's IN_CLOSE_WRITE and IN_Q_OVERFLOW
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_READ_BYTES = 1 << 16


def ring(path: Path) -> None:
    """Notify all listeners, this process included, that this file got entries."""
    with suppress(OSError):  # no room or no more descriptors: they will look
        os.close(os.open(path.with_suffix(_SUFFIX), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


class Listener:
    """Hears the doorbells of a directory's files, in the running event loop, until it is closed."""

    def __init__(self, directory: Path, heard: Callable[[str | None], None]) -> None:
        """`heard` gets the stem of the file that was rung for, or None when any may have been.

        Raises OSError where the kernel gives no watch: most often because too many processes have one.
        """
        self._heard = heard
        self._fd = _watch(directory)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Hear nothing more."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for name in sorted(set(_rung(os.read(self._fd, _READ_BYTES)))):
                self._heard(name or None)


def _watch(directory: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if libc.inotify_add_watch(fd, os.fsencode(directory), _CLOSE_WRITE) < 0:
        error = ctypes.get_errno()
        os.close(fd)
        raise OSError(error, os.strerror(error))
    return fd


def _rung(events: bytes) -> Iterator[str]:
    """The stems of the doorbells in what inotify gave; an empty one when it lost some."""
    at = 0
    while at < len(events):
        _, mask, _, length = _EVENT.unpack_from(events, at)
        at += _EVENT.size
        name = os.fsdecode(events[at : at + length].rstrip(b"\0"))
        at += length
        if mask & _OVERFLOW:
            yield ""
        elif name.endswith(_SUFFIX):
            yield name.removesuffix(_SUFFIX)
