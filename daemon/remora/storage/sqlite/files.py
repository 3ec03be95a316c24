"""The open files: each with its writer's thread, and with a connection to look into it from the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from remora.config import SqliteSettings
from remora.model.errors import StoreDamaged, StoreError, StoreMisconfigured, StoreUnavailable
from remora.model.shard import Shard
from remora.storage.sqlite import doorbell
from remora.storage.sqlite.bell import Bell
from remora.storage.sqlite.connecting import connect, snapshot
from remora.storage.sqlite.directory import locked, make_directory, opening_error, prepare
from remora.storage.sqlite.owners import Owner
from remora.storage.sqlite.refusals import is_busy, translated
from remora.storage.sqlite.writer import Job, Writer, WriterStats

T = TypeVar("T")

Look = Callable[[sqlite3.Connection], T]
"""Reads something; all of it is of one moment. It runs in the event loop, so it is short: some thousand rows."""

_BUSY_FOR_S = 5.0
_BUSY_PAUSE_S = 0.0005
_JOIN_WITHIN_S = 10.0


class File:
    """One file of the store."""

    def __init__(self, path: Path, bell: Bell, damaged: Callable[[File], None]) -> None:
        self.path = path
        self.damage: StoreDamaged | None = None
        self._bell = bell
        self._damaged = damaged
        self._writer = Writer(path, self.mark_damaged)
        self._reader: sqlite3.Connection | None = None
        self._is_closed = False

    @property
    def stats(self) -> WriterStats:
        """What its writer did."""
        return self._writer.stats

    async def write(self, job: Job[T], *, durable: bool = True, arrived: Sequence[Shard] = ()) -> T:
        """What a job returns, once the transaction that it shares with others is committed; see `Job`.

        With `durable` it is synced too, else it may be undone by a power cut. `arrived` are the queues that the
        job appends to: whoever waits for arrivals is told.
        """
        self._check()
        result = await self._writer.write(job, durable=durable)
        if arrived:
            self._bell.ring(arrived)
            doorbell.ring(self.path)
        return result

    def post(self, job: Job[object]) -> None:
        """Have a job run that nobody waits for and that need not be durable."""
        if not self._is_closed and self.damage is None:
            self._writer.post(job)

    async def read(self, look: Look[T]) -> T:
        """What a look shows."""
        until = 0.0
        while True:
            self._check()
            try:
                return self.glance(look)
            except sqlite3.OperationalError as exc:  # somebody opens the file after a crash, or closes it
                now = time.monotonic()
                until = until or now + _BUSY_FOR_S
                if now > until:
                    raise StoreUnavailable(f"{self.path}: others kept it busy for {_BUSY_FOR_S:g} s") from exc
            await asyncio.sleep(_BUSY_PAUSE_S)

    def glance(self, look: Look[T]) -> T:
        """As `read`, but sqlite3.OperationalError when others are in the way."""

        def of_one_moment(connection: sqlite3.Connection) -> T:
            with snapshot(connection):
                return look(connection)

        return self._on_reader(of_one_moment)

    def version(self) -> int:
        """Another number whenever anybody has committed to the file since. Raises as `glance` does."""
        return self._on_reader(_data_version)

    def _on_reader(self, look: Look[T]) -> T:
        try:
            if self._reader is None:
                self._reader = connect(self.path, reader=True)
            return look(self._reader)
        except sqlite3.Error as exc:
            if is_busy(exc):
                raise
            error = translated(exc, self.path)
            if isinstance(error, StoreDamaged):
                self.mark_damaged(error)
            raise error from exc

    def mark_damaged(self, error: StoreDamaged) -> None:
        """Let every call say so from now on: what goes on in a damaged file may damage it more."""
        if self.damage is None:
            self.damage = error
            self._damaged(self)

    def close(self) -> threading.Thread | None:
        """Take no more calls; the thread that has to be waited for, before the last connection can be closed."""
        self._is_closed = True
        return self._writer.end()

    def disconnect(self) -> None:
        """Close the reader: as the last connection, it copies the log into the file."""
        if self._reader is not None:
            with suppress(sqlite3.Error):
                self._reader.close()
            self._reader = None

    def _check(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"{self.path} is closed")
        if self.damage is not None:
            raise StoreDamaged(str(self.damage))


def _data_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return int(version)


class Files:
    """All files of a directory. A topic lies whole in one of them.

    `on_state` is called as the store's; with `make` the files are made where there are none.
    """

    def __init__(self, settings: SqliteSettings, on_state: Callable[[bool, str], None], *, make: bool) -> None:
        self.settings = settings
        self._make = make
        self.bell = Bell()
        self._directory = Path(settings.directory)
        self._on_state = on_state
        self._all: tuple[File, ...] = ()
        self._owner: Owner | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return bool(self._all)

    @property
    def all(self) -> Sequence[File]:
        """Every file, in the order of their numbers. Raises StoreUnavailable when the store is not open."""
        if not self._all:
            raise StoreUnavailable(f"the store in {self._directory} is not open")
        return self._all

    @property
    def sound(self) -> Sequence[File]:
        """The files that are not damaged."""
        return [file for file in self.all if file.damage is None]

    @property
    def directory(self) -> Path:
        """Where they lie."""
        return self._directory

    @property
    def description(self) -> str:
        """One line for log and status."""
        return f"embedded store in {self._directory}"

    @property
    def owner(self) -> Owner:
        """Who this store is among the holders of locks. Raises StoreUnavailable when the store is not open."""
        if self._owner is None:
            raise StoreUnavailable(f"the store in {self._directory} is not open")
        return self._owner

    @property
    def damaged(self) -> dict[str, str]:
        """The files that cannot be used any more, with the reason."""
        return {str(file.path): str(file.damage) for file in self._all if file.damage is not None}

    def file_of(self, topic: str) -> File:
        """The file of the topic of this name, whether there is such a topic or not."""
        files = self.all
        return files[zlib.crc32(topic.encode("utf-8", "surrogateescape")) % len(files)]

    async def open(self) -> None:
        """Make or migrate the files, and become a holder of locks. Raises StoreMisconfigured."""
        paths, damaged = await asyncio.to_thread(self._prepare)
        self._all = tuple(File(path, self.bell, self._tell) for path in paths)
        self._tell_state()
        for file in self._all:
            if error := damaged.get(file.path):
                file.mark_damaged(error)

    async def close(self) -> None:
        """Let what was asked for finish, and close everything."""
        files, owner, self._all, self._owner = self._all, self._owner, (), None
        threads = [thread for file in files if (thread := file.close())]
        await asyncio.to_thread(self._wait_and_leave, files, threads, owner)

    def _prepare(self) -> tuple[list[Path], dict[Path, StoreDamaged]]:
        if self._make or self._directory.is_dir():
            make_directory(self._directory)  # or say why it cannot be used
        if not self._make and not any(self._directory.glob("queues-*.db")):
            raise StoreMisconfigured(
                f"there is no store in {self._directory} yet: the first start of the daemon makes it, as its user"
            )
        try:
            with locked(self._directory):
                found = prepare(self._directory, self.settings)
                self._owner = Owner(self._directory)
                self._owner.sweep()
        except OSError as exc:
            raise opening_error(exc, self._directory) from exc
        return found

    def _wait_and_leave(self, files: Sequence[File], threads: Sequence[threading.Thread], owner: Owner | None) -> None:
        until = time.monotonic() + _JOIN_WITHIN_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        for file in files:
            file.disconnect()
        if owner is not None:
            with suppress(OSError, StoreError), locked(self._directory):
                owner.close()

    def _tell(self, file: File) -> None:
        self._on_state(True, str(file.damage))

    def _tell_state(self) -> None:
        self._on_state(True, f"{len(self._all)} files in {self._directory}")
