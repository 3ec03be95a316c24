"""The open files: each with its writer's thread, and with a connection to look into it from the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from remora.config import SqliteSettings
from remora.model.errors import StoreAway, StoreDamaged, StoreError, StoreMissing, StoreUnavailable
from remora.model.shard import Shard
from remora.storage.sqlite import doorbell
from remora.storage.sqlite.bell import Bell
from remora.storage.sqlite.connecting import connect, snapshot
from remora.storage.sqlite.directory import locked, make_directory, opening_error, prepare
from remora.storage.sqlite.owners import Owner
from remora.storage.sqlite.refusals import is_busy, of_the_host, translated, unreadable
from remora.storage.sqlite.writer import Job, Writer, WriterStats

T = TypeVar("T")

Look = Callable[[sqlite3.Connection], T]
"""Reads something; all of it is of one moment. It runs in the event loop, so it is short: some thousand rows."""

_BUSY_FOR_S = 5.0
_BUSY_PAUSE_S = 0.0005
_JOIN_WITHIN_S = 10.0

_FINDING, _WRITING, _READING = "finding", "writing", "reading"
"""What a file was in trouble with, and is in no more when that has worked."""


class File:
    """One file of the store. `is_stale` when the files are to be opened anew: others lie in their place."""

    def __init__(self, path: Path, bell: Bell, changed: Callable[[], None]) -> None:
        """`changed` is called whenever the file can be used no more, or again, or for another reason."""
        self.path = path
        self.damage: StoreDamaged | None = None
        self.is_stale = False
        self._is_examined = False
        self._troubles: dict[str, StoreAway] = {}
        self._place: tuple[int, int] | None = None
        with suppress(OSError):
            self._place = _place(path)
        self._bell = bell
        self._changed = changed
        self._writer = Writer(path, self.mark_damaged, self._check_place)
        self._reader: sqlite3.Connection | None = None
        self._is_closed = False

    @property
    def stats(self) -> WriterStats:
        """What its writer did."""
        return self._writer.stats

    async def write(self, job: Job[T], *, durable: bool = True, arrived: Collection[Shard] = ()) -> T:
        """What a job returns, once the transaction that it shares with others is committed; see `Job`.

        With `durable` it is synced too, else it may be undone by a power cut. `arrived` are the queues that the
        job appends to: those that wait for arrivals are notified.
        """
        self._check()
        try:
            result = await self._writer.write(job, durable=durable)
        except StoreAway as exc:
            self._met(_WRITING, exc)
            raise
        self._well(_WRITING)
        if arrived:
            self._bell.ring(arrived)
            doorbell.ring(self.path)
        return result

    def post(self, job: Job[object]) -> None:
        """Have a job run without waiting for it; it need not be durable."""
        if not self._is_closed and self.damage is None:
            self._writer.post(job)

    async def read(self, look: Look[T]) -> T:
        """What a look shows."""
        until = 0.0
        while True:
            self._check()
            try:
                return self.glance(look)
            except sqlite3.OperationalError as exc:  # another process opens the file after a crash, or closes it
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
            elif isinstance(error, StoreAway):
                self._met(_READING, error)
                self._disconnect_reader()
            raise error from exc

    def mark_damaged(self, error: StoreDamaged) -> None:
        """Let every call say so from now on: what goes on in a damaged file may damage it more."""
        if self.damage is None:
            self.damage = error
            self._changed()

    # ------------------------------------------------------------------------------- what the host does

    @property
    def trouble(self) -> StoreAway | None:
        """Why the file cannot be used now; that it lies there no more before all else."""
        return next((self._troubles[each] for each in (_FINDING, _WRITING, _READING) if each in self._troubles), None)

    def find(self) -> StoreAway | None:
        """Why the file that was opened is not found where it lay, if it is not. Asks the disk, so it may block."""
        try:
            self._check_place()
        except StoreAway as exc:
            return exc
        return None

    def note_found(self, away: StoreAway | None) -> None:
        """Refuse every use from now on, for this reason from `find`, or no more."""
        if away is None:
            self._well(_FINDING)
        else:
            self._met(_FINDING, away)

    async def try_again(self) -> None:
        """Find out whether a file that is found, but could not be written or read, can be again."""
        if _FINDING in self._troubles:
            return
        if _WRITING in self._troubles:
            with suppress(StoreError):
                await self.write(_write_nothing)
        if _READING in self._troubles:
            await self._read_all()
        if self.damage is not None and not self._is_examined:
            await self._examine(self.damage)

    def _check_place(self) -> None:
        """Raise StoreAway unless the file that was opened lies where it did."""
        try:
            found = _place(self.path)
        except OSError as exc:
            raise of_the_host(exc, self.path) from exc
        self._place = self._place or found
        self.is_stale = found != self._place
        if self.is_stale:
            raise StoreAway("gone", f"{self.path} is gone: another file lies in its place")

    async def _read_all(self) -> bool:
        """Whether the host gives all bytes of the file."""
        began = time.monotonic()
        unread = await asyncio.to_thread(unreadable, self.path)
        if unread is None:
            self._well(_READING)
        elif isinstance(error := of_the_host(unread, self.path), StoreAway):
            self._met(_READING, error)
        await asyncio.sleep(time.monotonic() - began)  # a large file is not read all the time
        return unread is None

    async def _examine(self, damage: StoreDamaged) -> None:
        """Tell damage that stays from a disk that could not be read: SQLite has one name for both."""
        if not await self._read_all():
            self.damage = None
        elif await asyncio.to_thread(_is_sound, self.path):
            self.damage = None
            self.is_stale = True  # it may have been left out when the others were brought up to date
        self._is_examined = self.damage is damage
        self._changed()

    def _met(self, doing: str, error: StoreAway) -> None:
        before = self._troubles.get(doing)
        self._troubles[doing] = error
        if str(before) != str(error):
            self._changed()

    def _well(self, doing: str) -> None:
        if doing in self._troubles:
            del self._troubles[doing]
            self._changed()

    def close(self) -> threading.Thread | None:
        """Take no more calls; the thread that has to be waited for, before the last connection can be closed."""
        self._is_closed = True
        return self._writer.end()

    def disconnect(self) -> None:
        """Close the reader: as the last connection, it copies the log into the file."""
        self._disconnect_reader()

    def _disconnect_reader(self) -> None:
        if self._reader is not None:
            with suppress(sqlite3.Error):
                self._reader.close()
            self._reader = None

    def _check(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"{self.path} is closed")
        if self.damage is not None:
            raise StoreDamaged(str(self.damage))
        if (away := self._troubles.get(_FINDING)) is not None:
            raise StoreAway(away.cause, str(away))


def _place(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _find(files: Sequence[File]) -> list[StoreAway | None]:
    """What `File.find` says of each; it may block."""
    found = [file.find() for file in files]
    if any(found):  # a directory that went in between took along those that were found before
        found = [file.find() for file in files]
    return found


def _write_nothing(connection: sqlite3.Connection) -> None:
    """Write what stands there already, to see whether that can be done."""
    connection.execute("UPDATE meta SET value = value WHERE key = 'number'")


def _is_sound(path: Path) -> bool:
    """Whether SQLite finds nothing wrong in a file that it has met damage in. Takes long for a large one."""
    try:
        with closing(connect(path, reader=True, patience_s=_BUSY_FOR_S)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            return bool(found == "ok")
    except sqlite3.Error:
        return False


def _data_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return int(version)


class Files:
    """All files of a directory. A topic lies whole in one of them.

    `on_state` is called as the store's; `make` and `waits` are the store's, too.
    """

    def __init__(
        self, settings: SqliteSettings, on_state: Callable[[bool, str], None], *, make: bool, waits: bool
    ) -> None:
        self.settings = settings
        self._make = make
        self._waits = waits
        self._away: StoreError | None = None
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
            if isinstance(self._away, StoreAway):
                raise StoreAway(self._away.cause, str(self._away))
            raise StoreUnavailable(str(self._away or f"the store in {self._directory} is not open"))
        return self._all

    @property
    def sound(self) -> Sequence[File]:
        """The files that are not damaged; none while the store waits for its files."""
        if self._away is not None:
            return ()
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
        """Make or migrate the files, and become a holder of locks. Raises StoreMisconfigured.

        A store that `waits` is not open after this where it cannot be used for now.
        """
        try:
            is_new, (paths, damaged) = await asyncio.to_thread(self._prepare)
        except StoreUnavailable as exc:
            self._away = exc
            self._tell_state()
            if not self._waits:
                raise
            return
        self._make, self._away = False, None  # what was in use is never begun anew
        self._all = tuple(File(path, self.bell, self._tell_state) for path in paths)
        self._tell_state("new, empty store of " if is_new else "")
        for file in self._all:
            if error := damaged.get(file.path):
                file.mark_damaged(error)

    async def reopen(self) -> None:
        """Open what lies in the directory now. Whatever was held with the files of before is held no more."""
        await self.close()
        self._waits, self._away = True, StoreUnavailable(f"the store in {self._directory} is being opened anew")
        try:
            await self.open()
        except StoreError as exc:
            self._away = exc
            self._tell_state()
            raise

    async def look(self) -> None:
        """Find out which files can be used. Once the state tells that their directory is gone, none of them is used."""
        files = self._all
        for file, away in zip(files, await asyncio.to_thread(_find, files), strict=True):
            file.note_found(away)
        await asyncio.gather(*(file.try_again() for file in files))

    @property
    def is_stale(self) -> bool:
        """Whether other files lie in the place of those that were opened."""
        return any(file.is_stale for file in self._all)

    @property
    def failing(self) -> Mapping[str, str]:
        """Why the store or a part of it cannot be used now, in a sentence by its cause."""
        found: dict[str, str] = {}
        for file in self._all:
            if file.damage is not None:
                found.setdefault("damaged", str(file.damage))
            if file.trouble is not None:
                found.setdefault(file.trouble.cause, str(file.trouble))
        if self._away is not None:
            found[self._away.cause if isinstance(self._away, StoreAway) else "unusable"] = str(self._away)
        return found

    async def close(self) -> None:
        """Let what was asked for finish, and close everything."""
        files, owner, self._all, self._owner, self._away = self._all, self._owner, (), None, None
        threads = [thread for file in files if (thread := file.close())]
        await asyncio.to_thread(self._wait_and_leave, files, threads, owner)

    def _prepare(self) -> tuple[bool, tuple[list[Path], dict[Path, StoreDamaged]]]:
        """Whether the files are new, and all of them with those that are damaged."""
        if self._make or self._directory.is_dir():
            make_directory(self._directory)  # or say why it cannot be used
        is_new = not any(self._directory.glob("queues-*.db"))
        if is_new and not self._make:
            if self._waits:
                raise StoreAway("gone", f"there is no store in {self._directory}: is its disk mounted?")
            raise StoreMissing(
                f"there is no store in {self._directory} yet: the first start of the daemon makes it, as its user"
            )
        try:
            with locked(self._directory):
                found = prepare(self._directory, self.settings)
                self._owner = Owner(self._directory)
                self._owner.sweep()
        except OSError as exc:
            raise opening_error(exc, self._directory) from exc
        return is_new, found

    def _wait_and_leave(self, files: Sequence[File], threads: Sequence[threading.Thread], owner: Owner | None) -> None:
        until = time.monotonic() + _JOIN_WITHIN_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        for file in files:
            file.disconnect()
        if owner is not None:
            with suppress(OSError, StoreError), locked(self._directory):
                owner.close()

    def _tell_state(self, news: str = "") -> None:
        """Say what is in the way: what keeps nothing but a file's own topics from being used is not in the store's."""
        failing = self.failing
        of_all = [text for cause, text in failing.items() if cause != "damaged"]
        text = "; ".join(failing.values()) or f"{news}{len(self._all)} files in {self._directory}"
        self._on_state(not of_all and self.is_open, "; ".join(of_all) or text)
