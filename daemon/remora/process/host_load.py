"""What all workers of a host hold together of connections and bytes: the bounds are the host's.

The workers accept from the same sockets, and the kernel gives one of them more than another: a share for each would
have one refuse while others have room. So each writes what it holds into memory that all of them see. Workers that look
at the same moment may each fill the room that all of them see, within microseconds: a bound of this kind can bear it.

A cell is an aligned number of 8 bytes in a `memoryview`, which is read and written in one piece, and has one writer.
"""

from __future__ import annotations

import mmap
import os
import time

CONNECTIONS, NBYTES, TURNED, GROWING = range(4)
"""The cells of a worker. TURNED is when it last saw ingest pause (positive) or go on (negative), GROWING since when its
oldest body without a length is under way; both in nanoseconds of the monotonic clock, and 0 for never or none."""

CELLS = 4


class HostLoad:
    """Connections and bytes by worker. A worker writes its own place, numbered from 0, and reads all."""

    def __init__(self, descriptor: int, workers: int, place: int) -> None:
        self._cells = memoryview(mmap.mmap(descriptor, workers * CELLS * 8)).cast("q")
        self._begin = place * CELLS
        for cell in range(CELLS):
            self._cells[self._begin + cell] = 0

    @classmethod
    def alone(cls) -> HostLoad:
        """The load of a server that shares its bounds with no other worker."""
        descriptor = shared_memory(1)
        try:
            return cls(descriptor, 1, 0)
        finally:
            os.close(descriptor)

    def hold_connections(self, count: int) -> None:
        """Sets the number of this worker's open connections."""
        self._cells[self._begin + CONNECTIONS] = count

    def hold_bodies(self, nbytes: int, growing_since: int = 0) -> None:
        """What bodies hold in this worker now, and since when the oldest of them grows whose length is not known."""
        cells, begin = self._cells, self._begin
        cells[begin + NBYTES], cells[begin + GROWING] = nbytes, growing_since

    def turn(self, *, is_paused: bool) -> None:
        """This worker saw that the host's bodies paused ingest, or let it go on."""
        now = time.monotonic_ns()
        self._cells[self._begin + TURNED] = now if is_paused else -now

    @property
    def connections(self) -> int:
        """Connections of all workers."""
        return sum(self._cells[CONNECTIONS::CELLS])

    @property
    def nbytes(self) -> int:
        """Bytes of all workers."""
        return sum(self._cells[NBYTES::CELLS])

    @property
    def nbytes_of_others(self) -> int:
        """Bytes of all workers but this one."""
        return self.nbytes - self._cells[self._begin + NBYTES]

    @property
    def is_paused(self) -> bool:
        """Whether ingest is paused: what the worker says that saw it change last."""
        turned = self._cells[TURNED::CELLS]
        return max(turned) > -min(turned)

    def has_older(self, growing_since: int) -> bool:
        """Whether any worker has a body without a length that began before this."""
        return any(0 < since < growing_since for since in self._cells[GROWING::CELLS])


def shared_memory(workers: int) -> int:
    """The descriptor of memory for `workers` workers, which inherit it."""
    descriptor = os.memfd_create("remora-ingest")
    os.ftruncate(descriptor, workers * CELLS * 8)
    return descriptor


def clear(descriptor: int, place: int) -> None:
    """Clears a place: its worker has ended, and holds nothing."""
    os.pwrite(descriptor, bytes(CELLS * 8), place * CELLS * 8)
