"""The names of a file's log and of the log's index, by which the processes that have the file open work together.

Each opens both by their names, so while the file is in use it must not lose them. Where somebody removed one, the next
process would make another in its place: neither would see what the other has committed, both would write to the same
places, and what one has answered for would be lost. So both have second names. They get the first ones back before the
file is opened, and before anything is read or written. Where neither name is left, who has the file open lets it go,
and nobody opens it before all have.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from remora.model.errors import StoreAway
from remora.storage.sqlite.files.allocation import (
    FileId,
    KeptOpen,
    give_name_back,
    id_of,
    index_of,
    keep_name,
    log_of,
    opened,
    restore_log,
)
from remora.storage.sqlite.files.refusals import NameLost

_PAUSE_S = 0.001

_LOCK = struct.Struct("hhqqi4x")
"""The kernel's `struct flock`: kind, from where it counts, start, length, and who has it."""

_SHARED_BYTES = 0x40000002, 510
"""Of a database: who has it open holds a lock here."""

_FRAMES_AT = 16
"""Where an index has the number of the log's last frame."""

_guard = threading.Lock()
_indexes: dict[FileId, FileId] = {}
"""By database, the index that this process has for it, whatever its name is by now: SQLite has one for all connections.
"""


class IndexInUse:
    """The index that a connection uses, for as long as it is open."""

    def __init__(self) -> None:
        self._kept = KeptOpen()
        self._database: FileId | None = None
        self.is_replaced = False
        """Whether other processes may have written to the log by another index."""

    def use(self, path: Path, database: FileId | None) -> None:
        """Keep the index of this open database, and give it its second name. OSError where there is none."""
        with _guard:
            found = None if database is None else _indexes.get(database)
            if found is None or not self._kept.share(found):
                self._kept.use(index_of(path))
                if database is not None and self._kept.file is not None:
                    _indexes[database] = self._kept.file
            self._database = database
        if id_of(index_of(path)) == self._kept.file:
            keep_name(index_of(path), _second(path))

    def allocate(self) -> bool:
        """Have the disk give room for all of it; False where it has none."""
        return self._kept.allocate()

    def frames(self) -> int | None:
        """How many pages the log has that are not written over yet, whoever wrote them; None where nobody knows."""
        if (descriptor := self._kept.descriptor) is None:
            return None
        return int.from_bytes(os.pread(descriptor, 4, _FRAMES_AT), sys.byteorder)

    def check(self, path: Path) -> None:
        """See that the index has its name, or gets it back; else raise StoreAway: no other process would find it."""
        index, mine = index_of(path), self._kept.file
        if mine is None:
            return
        with suppress(FileNotFoundError):
            if id_of(index) == mine:
                return
            self.is_replaced = True
            raise StoreAway("gone", f"another file lies in the place of {index}, which is in use: who put it there?")
        with suppress(OSError):
            if id_of(_second(path)) == mine:
                os.link(_second(path), index)
                return
        raise StoreAway("gone", f"{index} was removed while it is in use, so the file is opened anew")

    def let_go(self) -> None:
        """Use it no longer."""
        with _guard:
            if self._kept.let_go() and self._database is not None:
                _indexes.pop(self._database, None)
            self._database = None


def restore_names(path: Path, patience_s: float = 0.0) -> None:
    """Give the log and the index their first names back.

    Raises NameLost where the file is in use anywhere, and no name of one of them is left: so it is also just between
    its opening and their making, so who is not in the event loop tries again for a while.
    """
    until = time.monotonic() + patience_s
    while _lost(path):
        try:
            if not _is_open(path):
                restore_log(path)
                with suppress(OSError):  # left by who had the file open last: room, on a disk that may be full
                    _second(path).unlink()
                return
        except OSError:
            return  # which whoever opens it meets
        give_name_back(path)
        with suppress(OSError):
            os.link(_second(path), index_of(path))
        if not (lost := _lost(path)):
            return
        if time.monotonic() >= until:
            raise NameLost(f"{lost[0]} was removed while others have the file open: it is opened when they let it go")
        time.sleep(_PAUSE_S)


def _lost(path: Path) -> list[Path]:
    return [each for each in (log_of(path), index_of(path)) if not each.exists()]


def _second(path: Path) -> Path:
    return path.with_name(f"{path.name}-index")


def _is_open(path: Path) -> bool:
    """Whether this process has the file open, or another one, which has a lock then."""
    if id_of(path) in _indexes:
        return True
    with opened(path) as descriptor:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, *_SHARED_BYTES, 0)
        kind, *_ = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        return bool(kind != fcntl.F_UNLCK)
