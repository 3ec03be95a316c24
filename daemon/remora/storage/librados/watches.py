"""Watches: a client that watches an object gets a word from the OSD whenever anybody notifies it.

Librados calls back from a thread of its own, and no Python code may run there (`completions.py` says why). The callback
is libc's own `eventfd_write(int, uint64_t)`. Called as `callback(argument, notify_id, ...)` it writes the number of the
notification into the pipe of the watch, and called as `error_callback(argument, handle, ...)` the handle of the watch.
So the loop learns that the object was notified, and acknowledges it. What a notification carries is lost on the way:
rings carry nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from ctypes import CDLL, byref, c_uint64, c_void_p, cast

from remora.storage.librados.library import load
from remora.storage.librados.operations import ObjectOperation

_WORD = struct.Struct("=Q")


class _WithoutHandle(ObjectOperation):
    """An operation that librados starts by one call: there is no handle to free."""

    def __init__(self) -> None:
        super().__init__(0)

    def _release(self) -> None:
        """Nothing to do; the handle of a watch goes with `UnwatchOp`."""


class NotifyOp(_WithoutHandle):
    """Notify all who watch an object; ends when they have acknowledged it, or after a time."""

    endless = True

    def __init__(self, within_s: int) -> None:
        super().__init__()
        self._within_s = within_s

    def submit(self, ioctx: c_void_p, oid: bytes, completion: c_void_p) -> int:
        within_ms = self._within_s * 1000
        result: int = self._library.rados_aio_notify(ioctx, oid, completion, b"", 0, within_ms, None, None)
        return result


class WatchOp(_WithoutHandle):
    """Begin to watch an object, which must exist."""

    endless = True

    def __init__(self, watch: ObjectWatch) -> None:
        super().__init__()
        self._watch = watch

    def submit(self, ioctx: c_void_p, oid: bytes, completion: c_void_p) -> int:
        callback, pipe = cast(CDLL(None).eventfd_write, c_void_p), c_void_p(self._watch.writer)
        handle = byref(self._watch.begin(ioctx, oid))
        result: int = self._library.rados_aio_watch2(ioctx, oid, completion, handle, callback, callback, 0, pipe)
        return result


class UnwatchOp(_WithoutHandle):
    """End a watch that was made, also one that was lost."""

    def __init__(self, watch: ObjectWatch) -> None:
        super().__init__()
        self._watch = watch

    def submit(self, ioctx: c_void_p, oid: bytes, completion: c_void_p) -> int:
        result: int = self._library.rados_aio_unwatch(ioctx, self._watch.handle, completion)
        return result


class ObjectWatch:
    """One object that this client watches, again and again: its pipe stays until the client is shut down.

    A callback may still come after the end of the watch, and must find no other file under the number of its pipe.
    """

    notified: Callable[[], None]
    lost: Callable[[], None]
    """Called in the loop: somebody has notified the object; the watch has ended by itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_lost = True
        self._loop = loop
        self._handle, self._rest = c_uint64(), b""
        self._ioctx, self._oid = c_void_p(), b""
        self._reader, self.writer = os.pipe()
        for fd in (self._reader, self.writer):
            os.set_blocking(fd, False)  # should the loop hang, notifications are lost; librados' thread never waits
        loop.add_reader(self._reader, self._read)
        _open.add(self)

    @property
    def handle(self) -> int:
        """Librados' own name of the watch."""
        return self._handle.value

    def begin(self, ioctx: c_void_p, oid: bytes) -> c_uint64:
        """It is about to be made; returns where its handle is to be written."""
        self.is_lost = False
        self._ioctx, self._oid, self._handle = ioctx, oid, c_uint64()
        return self._handle

    def _read(self) -> None:
        try:
            content = self._rest + os.read(self._reader, 1 << 16)
        except BlockingIOError:
            return
        whole = len(content) - len(content) % _WORD.size
        self._rest = content[whole:]
        if self.is_lost:  # what a watch before this one has left
            return
        words = [word for (word,) in _WORD.iter_unpack(content[:whole])]
        rung = [word for word in words if word != self.handle]
        for word in rung:
            load().rados_notify_ack(self._ioctx, self._oid, word, self.handle, b"", 0)
        if rung:
            self.notified()
        if len(rung) < len(words):
            self._lose()

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.lost()

    def end(self) -> None:
        """It is not made, or about to be ended."""
        self.is_lost = True

    def stop(self) -> None:
        """The client is about to be shut down: use nothing of it."""
        self._lose()
        self._loop.remove_reader(self._reader)

    def close(self) -> None:
        """Free the pipe; only when the client was shut down."""
        _open.discard(self)
        for fd in (self._reader, self.writer):
            os.close(fd)


# As in completions.py: what librados' threads may still write into stays for as long as the process.
_open: set[ObjectWatch] = set()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_open))
