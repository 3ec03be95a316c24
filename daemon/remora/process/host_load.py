"""What all workers of a host hold together of connections and bytes: the bounds are the host's.

The workers accept from the same sockets, and the kernel gives one of them more than another: a share for each would
have one refuse while others have room. So each writes what it holds into memory that all of them see. Two that look at
the same moment may go one too far, which a bound of this kind can bear.
"""

from __future__ import annotations

import mmap
import os
import struct

_ENTRY = struct.Struct("=qq")


class HostLoad:
    """Connections and bytes by worker. A worker writes its own place, numbered from 0, and reads all."""

    def __init__(self, descriptor: int, workers: int, place: int) -> None:
        self._memory = mmap.mmap(descriptor, workers * _ENTRY.size)
        self._place = place
        self._own = (0, 0)
        self.hold()

    @classmethod
    def alone(cls) -> HostLoad:
        """The load of a server that shares its bounds with nobody."""
        descriptor = shared_memory(1)
        try:
            return cls(descriptor, 1, 0)
        finally:
            os.close(descriptor)

    def hold(self, *, connections: int | None = None, nbytes: int | None = None) -> None:
        """What this worker holds now; what is left out stays."""
        before = self._own
        self._own = (
            before[0] if connections is None else connections,
            before[1] if nbytes is None else nbytes,
        )
        _ENTRY.pack_into(self._memory, self._place * _ENTRY.size, *self._own)

    @property
    def connections(self) -> int:
        """Connections of all workers."""
        return sum(connections for connections, _ in _ENTRY.iter_unpack(self._memory[:]))

    @property
    def nbytes(self) -> int:
        """Bytes of all workers."""
        return sum(nbytes for _, nbytes in _ENTRY.iter_unpack(self._memory[:]))


def shared_memory(workers: int) -> int:
    """The descriptor of memory for so many workers, which those inherit that are given it."""
    descriptor = os.memfd_create("remora-ingest")
    os.ftruncate(descriptor, workers * _ENTRY.size)
    return descriptor


def clear(descriptor: int, place: int) -> None:
    """Nobody holds anything at a place any more: its worker has ended."""
    os.pwrite(descriptor, _ENTRY.pack(0, 0), place * _ENTRY.size)
