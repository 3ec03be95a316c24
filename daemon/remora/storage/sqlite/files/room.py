"""The room that a file has ahead of need, so that delivery goes on when others have taken all of the disk.

* Each page that a transaction adds has its place in the file before it is committed: so the log can always be copied
  into the file, and begun anew.
* The log keeps its length, which is more than it is copied at.
* The ballast is a row that means nothing. Where delivery needs a page and no other is free, it is deleted; until it is
  there again, no events are taken.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from remora.model.errors import StoreError, StoreFull
from remora.policy.ingest import disk_room
from remora.policy.ingest.disk_room import Disk, Reserve
from remora.storage.sqlite.files.allocation import KeptOpen, allocate, keep_log, log_of
from remora.storage.sqlite.files.connections import PAGE_BYTES, pages_left

_MOST_PAGES = 1 << 30
_STEP_BYTES = 1 << 20
"""So much a file gets at once, where there is room: in small steps its pages would be scattered over the disk."""

_MEASURED_FOR_S = 0.05

# An entry of a log that is not there, before those of all others: earlier versions pass over it. To look for it by its
# key, SQLite would read all of it, a megabyte; the least key is found without.
_BALLAST = "log = -1 AND position = -1"
_HAS_BALLAST = "SELECT ifnull(min(log) = -1, 0) FROM log_entries"
_TAKE_BALLAST = "INSERT OR IGNORE INTO log_entries (log, position, filled, data) VALUES (-1, -1, 1, zeroblob(?))"
_DROP_BALLAST = f"DELETE FROM log_entries WHERE {_BALLAST}"  # noqa: S608 - constants
_FREE = f"SELECT freelist_count, ({_HAS_BALLAST}), EXISTS (SELECT 1 FROM topics) FROM pragma_freelist_count"  # noqa: S608 - constants


def disk_of(path: Path) -> Disk:
    """The file system of a file."""
    found = os.statvfs(path)
    return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


class DirectoryBound:
    """What the files of a directory may take together; 0 for as much as the disk has.

    They are measured now and then: a transaction must not look at each of them. Only the `own` ones of who asks are
    looked at each time, since they grow by what it has written since.
    """

    def __init__(self, directory: Path, most: int, own: Sequence[Path] = ()) -> None:
        self._directory, self._most, self._own = directory, most, own
        self._sizes: dict[str, int] = {}
        self._used, self._until = 0, 0.0

    def within(self, disk: Disk) -> Disk:
        """What the directory has of its disk."""
        if not self._most:
            return disk
        if time.monotonic() >= self._until:
            self._measure()
            self._until = time.monotonic() + _MEASURED_FOR_S
        else:
            for path in self._own:
                with suppress(FileNotFoundError):
                    now = path.stat().st_size
                    self._used += now - self._sizes.get(path.name, 0)
                    self._sizes[path.name] = now
        return disk.within(self._most, self._used)

    def most_of(self, path: Path) -> int | None:
        """How large a file of the directory may get, as it was when they were measured last; None without a bound."""
        if not self._most:
            return None
        return disk_room.most_of_file(self._most, self._used, self._sizes.get(path.name, 0))

    def _measure(self) -> None:
        """Find the sizes of all files; one with two names takes room once."""
        inodes: dict[int, int] = {}
        for entry in os.scandir(self._directory):
            with suppress(FileNotFoundError):
                self._sizes[entry.name] = inodes[entry.inode()] = entry.stat().st_size
        self._used = sum(inodes.values())


def reserve_on(disk: Disk, files: int) -> Reserve:
    """What each of so many files keeps for itself on a disk."""
    return disk_room.reserve(disk.nbytes, files, _largest_file(), PAGE_BYTES)


def looked_into(connection: sqlite3.Connection) -> tuple[int, bool, bool]:
    """How many pages of a file are free, whether it has its ballast, and whether it has topics."""
    free, has_ballast, has_topics = connection.execute(_FREE).fetchone()
    return free, bool(has_ballast), bool(has_topics)


class Room:
    """Used by a file's writer, in its thread; the file is one of so many, and `kept` open."""

    def __init__(self, path: Path, kept: KeptOpen, files: int, most_together: int = 0) -> None:
        self._path = path
        self._log = log_of(path)
        self._open = kept
        self._files = files
        self._bound = DirectoryBound(path.parent, most_together, (path, self._log))
        self._largest: int | None
        self._disk = Disk(0, 0)
        self._kept: Reserve
        self._most_pages = 0
        self._has_ballast: bool | None = None
        self._log_inode = 0
        self._has_no_holes = False

    def adapt(self, connection: sqlite3.Connection) -> None:
        """Have a new connection keep the log as this file does."""
        self._most_pages = 0
        self._disk, self._largest = self._looked_at(), _largest_file()
        self._kept = reserve_on(self._disk, self._files)
        connection.execute(f"PRAGMA journal_size_limit = {self._kept.log_bytes}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # SQLite would not tell that it failed

    @property
    def checkpoint_frames(self) -> int:
        """From how many pages on the log is copied into the file."""
        return self._kept.checkpoint_frames

    def limit_growth(self, connection: sqlite3.Connection) -> None:
        """To be called before each transaction: let it not grow the file into the last room of the disk, nor beyond
        what a file may have. Entries are then only taken into the room of those that were removed."""
        self._disk, self._largest = self._looked_at(), _largest_file()
        self._has_ballast = None  # another process may have needed it since
        most = _MOST_PAGES if self._largest is None else max(1, self._largest // PAGE_BYTES)
        if (bound := self._bound.most_of(self._path)) is not None:
            most = min(most, max(1, bound // PAGE_BYTES))
        if not self._disk.may_be_filled:
            most = 1  # SQLite makes it what the file has
        if most != self._most_pages:
            connection.execute(f"PRAGMA max_page_count = {most}")
            self._most_pages = most

    def keep_log(self) -> None:
        """To be called within each transaction: see that the log has all of its length, and that length its room."""
        try:
            found = self._log.stat()
        except FileNotFoundError:  # nothing was ever written
            return
        if found.st_ino != self._log_inode:
            keep_log(self._path)
            self._log_inode = found.st_ino
            self._disk = self._looked_at()  # an old log that was kept until now leaves its room to this one
        wanted = min(self._kept.log_bytes, found.st_size + self._disk.free_bytes)
        if found.st_size >= wanted:
            return
        descriptor = os.open(self._log, os.O_RDWR | os.O_CLOEXEC)
        try:
            allocate(descriptor, found.st_size, wanted)
        finally:
            os.close(descriptor)

    def takes_events(self, connection: sqlite3.Connection) -> bool:
        """Whether the transaction may store events: the ballast is there, or is taken now."""
        if self._has_ballast:
            return True
        (self._has_ballast,) = connection.execute(_HAS_BALLAST).fetchone()
        if self._has_ballast:
            return True
        if not disk_room.has_room_for_ballast(self._kept, pages_left(connection)):
            return False
        connection.execute(_TAKE_BALLAST, (self._kept.ballast_pages * (PAGE_BYTES - 4),))
        self._has_ballast = True
        return True

    def refusal(self) -> StoreFull:
        """What those are told whose events find no room."""
        return StoreFull(f"{self._path}: {self._disk.lack}, save for what delivery needs")

    def explained(self, error: StoreError) -> StoreError:
        """An error of this file, which names the option that keeps it from growing, where one does."""
        return self.refusal() if isinstance(error, StoreFull) and self._disk.is_bounded else error

    def _looked_at(self) -> Disk:
        return self._bound.within(disk_of(self._path))

    def undone(self) -> None:
        """The transaction was rolled back."""
        self._has_ballast = None

    def cover(self, connection: sqlite3.Connection) -> None:
        """To be called before a commit: have each page of the file its place there. Raises StoreFull."""
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        if not self._has_no_holes:
            self._open.allocate()
            self._has_no_holes = True
        if not self._reaches(pages * PAGE_BYTES) and self._disk.may_be_filled:
            raise self.refusal()

    def give_ballast_up(self, connection: sqlite3.Connection) -> None:
        """Free the pages of the ballast, in a transaction of its own."""
        self._has_ballast = False
        connection.execute(_DROP_BALLAST)

    def _reaches(self, nbytes: int) -> bool:
        """Whether the file has room for its first bytes. Its length says so: a checkpoint may shorten the file, and
        never to less than what is committed."""
        if (descriptor := self._open.descriptor) is None:
            return True
        size = os.fstat(descriptor).st_size
        if size >= nbytes:
            return True
        step = -(-nbytes // _STEP_BYTES) * _STEP_BYTES
        most = step if self._largest is None else min(step, self._largest)
        return allocate(descriptor, size, most) or allocate(descriptor, size, nbytes)


def _largest_file() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit
