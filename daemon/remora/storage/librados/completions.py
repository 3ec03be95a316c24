"""Waits for librados' completions in the event loop, without a thread and without Python code in librados' threads.

Librados calls back from a thread of its own when an operation completes. A Python function there would need the
interpreter's lock, so a busy loop would delay every completion by up to 5 ms, one after the other; and it would crash
the process if it ran while the interpreter shuts down. The callback is therefore libc's own `putw(int, FILE *)`: called
as `callback(completion, argument)` it writes the low half of the completion's address into a pipe, and the loop reads
it there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import functools
import os
import struct
from ctypes import CDLL, byref, c_char_p, c_int, c_size_t, c_void_p, cast
from dataclasses import dataclass

from remora.storage.librados.library import LibradosError, check, load
from remora.storage.librados.operations import ObjectOperation

_WORD = struct.Struct("=I")
_UNBUFFERED = 2  # _IONBF


@dataclass(slots=True, eq=False)
class _Flight:
    """An operation under way, with everything that must stay in memory until it completes."""

    operation: ObjectOperation
    ioctx: c_void_p
    completion: c_void_p
    landed: asyncio.Future[tuple[int, int]]


class Completions:
    """The operations under way of one client in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._library = load()
        self._flights: dict[int, _Flight] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._rest = b""
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._stream = _unbuffered_stream(writer)
        loop.add_reader(self._reader, self._land)
        _open.add(self)

    @property
    def under_way(self) -> int:
        """The number of operations that have not completed yet, including those whose caller was cancelled."""
        return len(self._flights)

    async def run(
        self, operation: ObjectOperation, ioctx: c_void_p, oid: str, timeout_s: float | None
    ) -> tuple[int, int]:
        """Carry the operation out; returns its result and the object's version.

        Raises TimeoutError when there is no answer in time. Then, and when the caller is cancelled, the operation is
        cancelled and its outcome is unknown.
        """
        flight = self._take_off(operation, ioctx, oid)
        try:
            async with asyncio.timeout(timeout_s):
                return await flight.landed
        finally:
            if flight.landed.cancelled():
                self._library.rados_aio_cancel(ioctx, flight.completion)

    def _take_off(self, operation: ObjectOperation, ioctx: c_void_p, oid: str) -> _Flight:
        completion = self._new_completion()
        key = _low_half(completion)
        flight = self._flights[key] = _Flight(operation, ioctx, completion, self._loop.create_future())
        self._idle.clear()
        result = operation.submit(ioctx, oid.encode(errors="surrogateescape"), completion)
        if result < 0:
            self._forget(key, answered=False)
            raise LibradosError(-result, "submitting an operation")
        return flight

    def _new_completion(self) -> c_void_p:
        completion = c_void_p()
        callback = cast(_libc().putw, c_void_p)
        result = self._library.rados_aio_create_completion2(self._stream, callback, byref(completion))
        check(result, "creating a completion")
        if _low_half(completion) not in self._flights:
            return completion
        # Two addresses with equal low halves: keep this one while another is made.
        try:
            return self._new_completion()
        finally:
            self._library.rados_aio_release(completion)

    def _land(self) -> None:
        try:
            words = self._rest + os.read(self._reader, 1 << 16)
        except BlockingIOError:
            return
        whole = len(words) - len(words) % _WORD.size
        self._rest = words[whole:]
        for (key,) in _WORD.iter_unpack(words[:whole]):
            flight = self._flights[key]
            result = self._library.rados_aio_get_return_value(flight.completion)
            version = self._library.rados_aio_get_version(flight.completion)
            self._forget(key, answered=result >= 0)
            if not flight.landed.done():
                flight.landed.set_result((result, version))

    def _forget(self, key: int, answered: bool) -> None:
        flight = self._flights.pop(key)
        self._library.rados_aio_release(flight.completion)
        flight.operation.end(answered)
        if not self._flights:
            self._idle.set()

    async def close(self, timeout_s: float) -> bool:
        """Cancel every operation, as if it had timed out, and free the pipe.

        Returns False when librados did not end some in time: they keep their memory and the pipe, and the client's
        handle must not be shut down.
        """
        for flight in self._flights.values():
            if not flight.landed.done():  # librados will say ECANCELED, which is also a failed comparison's errno
                flight.landed.set_result((-errno.ETIMEDOUT, 0))
            self._library.rados_aio_cancel(flight.ioctx, flight.completion)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        self._loop.remove_reader(self._reader)
        if self._flights:
            return False
        _open.discard(self)
        os.close(self._reader)
        _libc().fclose(self._stream)
        return True


# Should the process end with operations under way, librados' threads go on writing into their cells and into
# the pipe. One reference too many keeps all that in memory until there is no process.
_open: set[Completions] = set()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_open))


def _low_half(completion: c_void_p) -> int:
    return (completion.value or 0) & 0xFFFF_FFFF


@functools.cache
def _libc() -> CDLL:
    library = CDLL(None)
    library.fdopen.restype = c_void_p
    library.fdopen.argtypes = (c_int, c_char_p)
    library.setvbuf.argtypes = (c_void_p, c_void_p, c_int, c_size_t)
    library.fclose.argtypes = (c_void_p,)
    return library


def _unbuffered_stream(fd: int) -> c_void_p:
    """A FILE * without a buffer, which writes each word at once and whole."""
    stream = c_void_p(_libc().fdopen(fd, b"w"))
    if not stream.value:
        os.close(fd)
        raise OSError("fdopen failed on a pipe")
    _libc().setvbuf(stream, None, _UNBUFFERED, 0)
    return stream
