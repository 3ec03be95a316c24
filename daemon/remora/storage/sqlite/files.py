"""The open files of a directory, and what they are like together."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from remora.config import SqliteSettings
from remora.model.errors import StoreAway, StoreDamaged, StoreError, StoreFull, StoreMissing, StoreUnavailable
from remora.policy.disk_room import Disk
from remora.ports.stages import NO_METER, StageMeter
from remora.storage.sqlite.bell import Bell
from remora.storage.sqlite.connecting import connect
from remora.storage.sqlite.directory import locked, make_directory, opening_error, prepare
from remora.storage.sqlite.examining import damages
from remora.storage.sqlite.file import File
from remora.storage.sqlite.kept_log import fill_reserve
from remora.storage.sqlite.owners import Owner
from remora.storage.sqlite.room import DirectoryBound, disk_of

_JOIN_WITHIN_S = 10.0


class Files:
    """All files of a directory. A topic lies whole in one of them.

    `on_state` is called as the store's; `make` and `waits` are the store's, too.
    """

    def __init__(
        self,
        settings: SqliteSettings,
        on_state: Callable[[bool, str], None],
        *,
        make: bool,
        waits: bool,
        meter: StageMeter = NO_METER,
    ) -> None:
        self.settings, self._meter = settings, meter
        self._make = make
        self._waits = waits
        self._away: StoreError | None = None
        self.bell = Bell()
        self._directory = Path(settings.directory)
        self._on_state = on_state
        self._all: tuple[File, ...] = ()
        self._believed_sound = 0
        self._owner: Owner | None = None
        self._bound = DirectoryBound(self._directory, 0)

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
            is_new, (paths, damaged), anchors = await asyncio.to_thread(self._prepare)
        except (StoreUnavailable, StoreFull) as exc:
            self._away = StoreAway("no_room", str(exc)) if isinstance(exc, StoreFull) else exc
            self._tell_state()
            if not self._waits:
                raise
            return
        self._make, self._away = False, None  # what was in use is never begun anew
        with anchors:
            most = self.settings.directory_bytes
            self._bound = DirectoryBound(self._directory, most)
            self._all = tuple(
                File(path, self.bell, self._tell_state, len(paths), self._meter, most_together=most) for path in paths
            )
            await asyncio.to_thread(_connect, self._all)
        self._tell_state("new, empty store of " if is_new else "")
        self._believed_sound = len(self._all)
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
        found, disk = await asyncio.to_thread(_find, self._directory, files, self._bound)
        for file, away in zip(files, found, strict=True):
            file.note_found(away)
            if self.damaged or (disk is not None and not disk.may_be_filled) or file.is_short_of_room:
                file.look_at_room(disk)
        await asyncio.gather(*(file.try_again() for file in files))
        await self._look_for_damage()

    async def _look_for_damage(self) -> None:
        """When a file turns out to be damaged, what has happened to it may have happened to the others."""
        files = [file for file in self._all if file.damage is None]
        if len(files) == self._believed_sound:
            return
        found = await asyncio.to_thread(damages, [file.path for file in files])
        for file in files:
            if (damage := found.get(file.path)) is not None:
                file.mark_damaged(damage)
        self._believed_sound = len(files) - len(found)

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
            elif file.is_short_of_room:
                found.setdefault("full", f"{file.path}: {file.lack or 'the disk is full'}, so new events are refused")
        if self._away is not None:
            found[self._away.cause if isinstance(self._away, StoreAway) else "unusable"] = str(self._away)
        return found

    async def close(self) -> None:
        """Let what was asked for finish, and close everything."""
        files, owner, self._all, self._owner, self._away = self._all, self._owner, (), None, None
        threads = [thread for file in files if (thread := file.close())]
        await asyncio.to_thread(self._wait_and_leave, files, threads, owner)

    def _prepare(self) -> tuple[bool, tuple[list[Path], dict[Path, StoreDamaged]], ExitStack]:
        """Whether the files are new, and all of them with those that are damaged.

        Until the stack is closed what SQLite made at an opening stays: on a full disk others may take the room of what
        is deleted.
        """
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
            with locked(self._directory), ExitStack() as anchors:
                for path in self._directory.glob("queues-*.db"):
                    with suppress(sqlite3.Error, StoreFull):  # which is met again
                        anchors.enter_context(closing(connect(path, reader=True)))
                found = prepare(self._directory, self.settings)
                fill_reserve(self._directory, len(found[0]))
                self._owner = Owner(self._directory)
                self._owner.sweep()
                return is_new, found, anchors.pop_all()
        except OSError as exc:
            raise opening_error(exc, self._directory) from exc

    def _wait_and_leave(self, files: Sequence[File], threads: Sequence[threading.Thread], owner: Owner | None) -> None:
        until = time.monotonic() + _JOIN_WITHIN_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        for file in files:
            file.disconnect()
        if owner is not None:
            with suppress(OSError, StoreError), locked(self._directory):
                owner.close()

    @property
    def is_usable(self) -> bool:
        """Whether anything can be delivered: a damaged file says nothing of the topics in others, and a full disk takes
        no events while delivery goes on."""
        return self.is_open and not self._in_the_way()

    def _in_the_way(self) -> list[str]:
        is_of_use = any(file.damage is None and file.has_topics for file in self._all)
        of_a_part = {"full", "damaged"} if is_of_use else {"full"}
        return [text for cause, text in self.failing.items() if cause not in of_a_part]

    def _tell_state(self, news: str = "") -> None:
        """Say what is in the way: what keeps nothing but a file's own topics from being used is not in the store's."""
        text = "; ".join(self.failing.values()) or f"{news}{len(self._all)} files in {self._directory}"
        self._on_state(self.is_usable, "; ".join(self._in_the_way()) or text)


def _connect(files: Sequence[File]) -> None:
    for file in files:
        file.connect()


def _find(directory: Path, files: Sequence[File], bound: DirectoryBound) -> tuple[list[StoreAway | None], Disk | None]:
    """What `File.find` says of each, and the disk that they lie on; it may block."""
    disk = None
    with suppress(OSError):
        fill_reserve(directory, len(files))
        disk = bound.within(disk_of(directory))
    found = [file.find() for file in files]
    if any(found):  # a directory that went in between took along those that were found before
        found = [file.find() for file in files]
    return found, disk
