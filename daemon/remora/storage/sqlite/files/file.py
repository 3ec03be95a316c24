"""One open file: its writer's thread, a connection to look into it from the event loop, and what is in its way."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from remora.model.errors import (
    DirectoryLost,
    RowDamaged,
    StoreAway,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from remora.model.shard import Shard
from remora.policy.ingest import disk_room
from remora.policy.ingest.disk_room import Disk
from remora.ports.stages import NO_METER, StageMeter
from remora.storage.bell import Bell
from remora.storage.sqlite.files import doorbell
from remora.storage.sqlite.files.allocation import KeptOpen
from remora.storage.sqlite.files.connections import FileConnection, connect, is_sound, snapshot
from remora.storage.sqlite.files.refusals import is_busy, kept_busy, of_the_host, translated, unreadable
from remora.storage.sqlite.files.room import Room, looked_into, reserve_on
from remora.storage.sqlite.files.writer import Around, Done, Job, Writer, WriterStats
from remora.storage.sqlite.tables import recent, schema, write_batch

_log = logging.getLogger(__name__)

T = TypeVar("T")

Look = Callable[[sqlite3.Connection], T]
"""Reads something; all of it is of one moment. It runs in the event loop, so it is short: some thousand rows."""

_BUSY_FOR_S = 5.0
_BUSY_PAUSE_S = 0.0005

_REFUSED_FOR_S = 10.0
"""How long a file takes no events after it was refused room while the disk shows some. A quota or a limit on a file's
size does that, and only a refusal shows it. After this time events are tried again, and may be refused again."""

_FINDING, _WRITING, _READING = "finding", "writing", "reading"
"""Operations that can fail; success clears the trouble."""


class FilePlace(NamedTuple):
    """Where a file lies: with so many in its directory, which may take so many bytes together, 0 for no bound; and
    whether that is another directory than the store's first."""

    files: int
    most_together: int = 0
    is_further: bool = False


class File:
    """One file of the store. `outgrown` says why it is of no use where a newer remora has migrated it."""

    def __init__(
        self, path: Path, bell: Bell, changed: Callable[[], None], place: FilePlace, meter: StageMeter = NO_METER
    ) -> None:
        """`changed` is called whenever the file can no longer be used, can be used again, or is short of room.

        What cannot be used in another directory than the store's first one is lost until that is opened anew.
        """
        self.path = path
        self.is_short_of_room = False
        self.lack = ""
        self.has_topics = True
        self.damage: StoreDamaged | None = None
        self.is_further = place.is_further
        self._is_elsewhere = self._is_doubted = False
        self.outgrown = ""
        self._is_examined = False
        self._refused_until = 0.0
        self._troubles: dict[str, StoreAway] = {}
        self._place: tuple[int, int] | None = None
        self._kept = KeptOpen()
        with suppress(OSError):
            self._place = _place(path)
            self._kept.use(path)
        self._files = place.files
        self._bell = bell
        self._changed = changed

        def check(connection: sqlite3.Connection) -> None:
            self._check_names(connection)
            self._check_version(connection)

        around = Around(check, recent.is_due, recent.settle, write_batch.make_room)
        room = Room(path, self._kept, place.files, place.most_together)
        self._writer = Writer(path, self._met_damage, room, self._check_place, around, meter)
        self._reader: sqlite3.Connection | None = None
        self._told: set[str] = set()
        self._reading: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_stale(self) -> bool:
        """Whether the files are to be opened anew: others lie in their place, or this one is not what it was."""
        return self._is_elsewhere or self._is_doubted

    @property
    def waiting(self) -> int:
        """Jobs that wait for its writer, or are being written."""
        return self._writer.waiting

    @property
    def stats(self) -> WriterStats:
        """What its writer did."""
        return self._writer.stats

    async def write(
        self,
        job: Job[T],
        *,
        durable: bool = True,
        upkeep: bool = False,
        may_wait: bool = False,
        arrived: Collection[Shard] = (),
        changes_topics: bool = False,
    ) -> T:
        """What a job returns, once the transaction that it shares with others is committed; see `Job`.

        With `durable` it is synced too, else it may be undone by a power cut. `upkeep` is what delivery needs: it may
        use the room that is kept from all else. A job that `may_wait` is kept for a moment, to share the transaction of
        one that may not. `arrived` are the queues that the job appends to: those that wait for arrivals are notified;
        so they are when it `changes_topics`.
        """
        self._check()
        try:
            result = await self._writer.write(job, durable=durable, upkeep=upkeep, may_wait=may_wait)
        except StoreAway as exc:
            self._met(_WRITING, exc)
            raise
        except StoreFull as exc:
            if upkeep:
                self._met(_WRITING, StoreAway("no_room", f"{exc}: not even what is delivered can be removed"))
            else:
                self.refused()
            raise
        self._well(_WRITING)
        if arrived or changes_topics:
            self.ring(arrived)
        return result

    def ring(self, shards: Collection[Shard]) -> None:
        """Notify those that wait for arrivals that these queues have entries to deliver."""
        self._bell.ring(shards)
        doorbell.ring(self.path)

    def post(self, job: Job[T], done: Done[T] | None = None) -> bool:
        """Have a job run without waiting for it; it need not be durable. To be called in the event loop.

        False where nothing runs any more, and nothing is told.
        """
        if self._is_closed or self.damage is not None:
            return False
        self._writer.post(job, done)
        return True

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
                    raise kept_busy(exc, self.path, _BUSY_FOR_S) from exc
            await asyncio.sleep(_BUSY_PAUSE_S)

    def glance(self, look: Look[T]) -> T:
        """As `read`, but sqlite3.OperationalError when others are in the way."""

        def of_one_moment(connection: sqlite3.Connection) -> T:
            with snapshot(connection):
                try:
                    self._check_version(connection)
                except StoreUnavailable as exc:
                    if not self.outgrown:
                        self.outgrown = str(exc)
                        self._changed()
                    raise
                return look(connection)

        return self._on_reader(of_one_moment)

    def version(self) -> int:
        """Another number whenever anybody has committed to the file since. Raises as `glance` does."""
        return self._on_reader(lambda connection: int(connection.execute("PRAGMA data_version").fetchone()[0]))

    def connect(self) -> None:
        """Have the connection that looks into the file. Whoever looks meets what is in the way; it may block."""
        with suppress(sqlite3.Error, StoreFull):
            self._reader = connect(self.path, reader=True)

    def _on_reader(self, look: Look[T]) -> T:
        try:
            if self._reader is None:
                self._reader = connect(self.path, reader=True)
            return look(self._reader)
        except (sqlite3.Error, StoreFull) as exc:
            if isinstance(exc, sqlite3.Error) and is_busy(exc):
                raise
            error = translated(exc, self.path)
            if isinstance(error, StoreDamaged):
                self.mark_damaged(error)
            elif isinstance(error, StoreAway | StoreFull):
                self._met(_READING, error if isinstance(error, StoreAway) else StoreAway("no_room", str(error)))
                self._disconnect_reader()
            raise error from exc

    def _met_damage(self, error: StoreDamaged) -> None:
        """Stop for damage of the file; a row is named once, and all else goes on."""
        if not isinstance(error, RowDamaged):
            self.mark_damaged(error)
        elif str(error) not in self._told:
            self._told.add(str(error))
            _log.error("%s", error)

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
            if (reader := self._reader) is not None:
                self._check_names(reader)
        except StoreAway as exc:
            return exc
        return None

    def note_found(self, away: StoreAway | None) -> None:
        """Refuse every use from now on, for this reason from `find`, or no more."""
        if away is None:
            self._well(_FINDING)
        else:
            self._met(_FINDING, away)

    def look_at_room(self, disk: Disk | None) -> None:
        """Notice whether there are topics, whose new events find no room on the disk, where that is known."""
        before = self.is_short_of_room, self.has_topics
        with suppress(StoreError, sqlite3.OperationalError):  # a look that is in somebody's way is repeated
            self._check()
            free, has_ballast, self.has_topics = self.glance(looked_into)
            is_full = disk is not None and disk_room.is_full(
                disk, reserve_on(disk, self._files), free, has_ballast=has_ballast
            )
            if disk is not None and not disk.may_be_filled:
                self._refused_until = 0.0  # the disk tells by itself how long
            is_full = is_full or time.monotonic() < self._refused_until
            self.is_short_of_room = is_full and self.has_topics
            self.lack = "" if disk is None else disk.lack
            if self.is_short_of_room:
                self.post(recent.free_pages)
        if before != (self.is_short_of_room, self.has_topics):
            self._changed()

    def refused(self) -> StoreFull:
        """Events found no room, whatever the disk shows; what those are told."""
        self._refused_until = time.monotonic() + _REFUSED_FOR_S
        if not self.is_short_of_room:
            self.is_short_of_room = True
            self._changed()
        return StoreFull(f"{self.path}: {self.lack or 'the disk is full'}, save for what delivery needs")

    async def try_again(self) -> None:
        """Find out whether a file that is found, but could not be written or read, can be again."""
        if _FINDING in self._troubles or isinstance(self.damage, DirectoryLost):
            return
        if _WRITING in self._troubles:
            with suppress(StoreError):
                await self.write(write_nothing, upkeep=True)
        if self._reading is not None and self._reading.done():
            done, self._reading = self._reading, None
            done.result()
        is_doubtful = self.damage is not None and not self._is_examined
        if self._reading is None and (is_doubtful or _READING in self._troubles):
            # Beside the looks at all files, which a large file must not hold up.
            self._reading = asyncio.create_task(self._read_through(), name=f"read {self.path.name}")

    async def _read_through(self) -> None:
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
        self._is_elsewhere = found != self._place
        if self._is_elsewhere:
            raise StoreAway("gone", f"{self.path} is gone: another file lies in its place")

    def _check_names(self, connection: sqlite3.Connection) -> None:
        """Raise StoreAway where others would not find what the connection has open beside the file."""
        try:
            if isinstance(connection, FileConnection):
                connection.check(self.path)
        except StoreAway:
            self._check_place()  # rather the whole directory is away, and comes back as it was
            self._is_doubted = True
            raise

    def _check_version(self, connection: sqlite3.Connection) -> None:
        """Raise StoreUnavailable where a newer remora has migrated the file since it was opened here."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(schema.MIGRATIONS):
            raise StoreUnavailable(
                f"{self.path} was brought to version {version} by a newer remora, and this one, which was started"
                f" before, knows up to {len(schema.MIGRATIONS)}: end it, and start the newer one"
            )

    async def _read_all(self) -> bool:
        """Whether the host gives all bytes of the file."""
        began = time.monotonic()
        unread = await asyncio.to_thread(unreadable, self.path, is_wanted=self._is_wanted)
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
        elif await asyncio.to_thread(is_sound, self.path, self._is_wanted):
            self.damage = None
            self._is_doubted = True  # it may have been left out when the others were brought up to date
        self._is_examined = self.damage is damage
        self._changed()

    def _is_wanted(self) -> bool:
        """Whether anybody waits for what is read of the file."""
        return not self._is_closed

    def _met(self, doing: str, error: StoreAway) -> None:
        if self.is_further and error.cause != "no_room":
            why = f"directory {self.path.parent} is lost until it can be used again: {error}"
            self.mark_damaged(DirectoryLost(why))
            return
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
        if self._reading is not None:
            self._reading.cancel()
        return self._writer.end()

    def disconnect(self) -> None:
        """Close the reader: as the last connection, it copies the log into the file."""
        self._disconnect_reader()
        if not self._writer.is_at_work:
            self._kept.let_go()

    def _disconnect_reader(self) -> None:
        if self._reader is not None:
            with suppress(sqlite3.Error):
                self._reader.close()
            self._reader = None

    def _check(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"{self.path} is closed")
        if self.damage is not None:
            raise type(self.damage)(str(self.damage))
        if (away := self._troubles.get(_FINDING)) is not None:
            raise StoreAway(away.cause, str(away))


def _place(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def write_nothing(connection: sqlite3.Connection) -> None:
    """Write what stands there already, to see whether that can be done."""
    connection.execute("UPDATE meta SET value = value WHERE key = 'number'")
