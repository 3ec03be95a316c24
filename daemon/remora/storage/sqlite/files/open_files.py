"""The open files of a store, and what they are like together."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from remora.config.stores import SqliteSettings
from remora.model.errors import DirectoryLost, StoreAway, StoreError, StoreFull, StoreMissing, StoreUnavailable
from remora.policy.ingest.disk_room import Disk
from remora.policy.queues.store_directories import StoreDirectories, StoreDirectory
from remora.ports.stages import NO_METER, StageMeter
from remora.storage.bell import Bell, CatalogueNews
from remora.storage.sqlite.files.allocation import fill_reserve
from remora.storage.sqlite.files.connections import damages
from remora.storage.sqlite.files.directories import (
    PreparedFiles,
    anchored,
    first_placement,
    generation_in,
    place_of,
    prepare_further,
    unplaced,
)
from remora.storage.sqlite.files.directory import locked, make_directory, number_of_file, opening_error, prepare
from remora.storage.sqlite.files.file import File, FilePlace
from remora.storage.sqlite.files.owners import Owner
from remora.storage.sqlite.files.room import DirectoryBound, disk_of
from remora.storage.sqlite.files.writer import WriterStats

_JOIN_WITHIN_S = 10.0


class Files:
    """All files of a store, of its first directory and of further ones. A topic lies whole in one of them.

    Without the first directory there is no store: it has members, notifications, shared logs, and the placement of
    topics. A further one that cannot be used is lost until it can: its files count as damaged, and the others go on.

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
        self.bell, self.catalogue_news = Bell(), CatalogueNews()
        self._directory = Path(settings.first)
        self.placement = StoreDirectories()
        self._unplaced: DirectoryLost | None = None
        self._by_number: dict[int, File] = {}
        self._count = 1
        self._is_outdated = False
        self.has_found_again = False
        self._bounds: dict[Path, DirectoryBound] = {}
        self._on_state = on_state
        self._all: tuple[File, ...] = ()
        self._written: list[WriterStats] = []
        self._believed_sound = 0
        self._owner: Owner | None = None

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return bool(self._all)

    @property
    def all(self) -> Sequence[File]:
        """Every file, those of the first directory first. Raises StoreUnavailable when the store is not open."""
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
    def synced(self) -> int:
        """How many transactions were synced, also to files that were let go and opened anew: it never falls."""
        return sum(each.durable for each in self._written)

    @property
    def directories(self) -> Sequence[Path]:
        """Where they lie; the first one first."""
        return list(dict.fromkeys(file.path.parent for file in self._all)) or [self._directory]

    @property
    def first(self) -> File:
        """The file with what concerns the whole store."""
        return self.all[0]

    @property
    def of_first(self) -> Sequence[File]:
        """The files of the first directory."""
        return self.all[: self._count]

    @property
    def by_number(self) -> Sequence[tuple[int, File]]:
        """Every file with its number, which it keeps whatever becomes of directories."""
        return tuple(self._by_number.items())

    def has(self, number: int) -> bool:
        """Whether there is a file of this number. Raises DirectoryLost where nobody knows that, and StoreUnavailable
        when the store is not open."""
        if self.all and number not in self._by_number:
            self.check_placed()
        return number in self._by_number

    def check_placed(self) -> None:
        """Raise DirectoryLost where what is not in the first directory may lie in others, whose list is damaged."""
        if self._unplaced is not None:
            raise DirectoryLost(str(self._unplaced))

    def numbered(self, number: int) -> File:
        """The file of this number, which is there. Raises StoreUnavailable when the store is not open."""
        return self._by_number[number] if self.all else self.all[0]

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
        """The files and further directories that cannot be used any more, with the reason."""
        return {
            str(file.path.parent if isinstance(file.damage, DirectoryLost) else file.path): str(file.damage)
            for file in self._all
            if file.damage is not None
        }

    def file_of(self, topic: str) -> File:
        """The file of the topic of this name, whether there is such a topic or not."""
        return self.numbered(self.number_of(topic)) if self.placement.directories else self.in_first(topic)

    def number_of(self, topic: str) -> int:
        """The number of that file."""
        number, place = place_of(topic, self._count)
        return self.placement.directory_of(topic, place) * self._count + number

    def in_first(self, name: str) -> File:
        """The file that anything else of a name falls into, always in the first directory."""
        return self.of_first[self.number_in_first(name)]

    def number_in_first(self, name: str) -> int:
        """The number of that file."""
        return place_of(name, self._count)[0]

    async def open(self) -> None:
        """Make or migrate the files, and become a holder of locks. Raises StoreMisconfigured.

        A store that `waits` is not open after this where it cannot be used for now.
        """
        try:
            is_new, groups, anchors = await asyncio.to_thread(self._prepare)
        except (StoreUnavailable, StoreFull) as exc:
            self._away = StoreAway("no_room", str(exc)) if isinstance(exc, StoreFull) else exc
            self._tell_state()
            if not self._waits:
                raise
            return
        self._make, self._away = False, None  # what was in use is never begun anew
        with anchors:
            self._count = len(groups[0].paths)
            self._all = tuple(file for group in groups for file in self._opened(group))
            self._by_number = _numbered(self._all)
            await asyncio.to_thread(_connect, self._all)
        self._tell_state("new, empty store of " if is_new else "")
        self._believed_sound = len(self._all)
        for group in groups:
            self._mark_damaged(group)

    def _opened(self, group: PreparedFiles) -> list[File]:
        """The files of a directory, as they were prepared."""
        folder, most = group.paths[0].parent, self.settings.directory_bytes
        self._bounds[folder] = DirectoryBound(folder, most)
        place = FilePlace(len(group.paths), most, is_further=group.number > 0)
        files = [File(path, self.bell, self._tell_state, place, self._meter) for path in group.paths]
        self._written += [file.stats for file in files]
        return files

    def _mark_damaged(self, group: PreparedFiles) -> None:
        for file in self._all:
            if error := group.damaged.get(file.path):
                file.mark_damaged(error)

    async def reopen(self) -> None:
        """Open what lies in the directory now. Locks that were held in other files than these are lost.

        Where the files are the same, and only other directories have come or gone, the locks are those of this store
        as before: its workers go on.
        """
        is_same = self._is_outdated and not any(file.is_stale for file in self._all)
        owner, self._owner = (self._owner, None) if is_same else (None, self._owner)
        await self.close()
        self._owner = owner
        self._waits, self._away = True, StoreUnavailable(f"the store in {self._directory} is being opened anew")
        try:
            await self.open()
        except StoreError as exc:
            await self.close()
            self._away = exc
            self._tell_state()
            raise

    async def look(self) -> None:
        """Find out which files can be used. Once the state tells that their directory is gone, none of them is used."""
        files = self._all
        found, disks = await asyncio.to_thread(_find, files, self._bounds)
        for file, away in zip(files, found, strict=True):
            if isinstance(file.damage, DirectoryLost):
                continue
            file.note_found(away)
            disk = disks.get(file.path.parent)
            if self.damaged or (disk is not None and not disk.may_be_filled) or file.is_short_of_room:
                file.look_at_room(disk)
        await asyncio.gather(*(file.try_again() for file in files))
        await self._look_for_damage()
        await self._look_for_directories()

    async def _look_for_directories(self) -> None:
        """Open further directories that were lost and can be used again, and notice that there are others."""
        for each in self.placement.directories:
            if any(isinstance(file.damage, DirectoryLost) for file in self._of(each)):
                group = await asyncio.to_thread(self._prepare_again, each)
                if not group.is_lost:
                    await self._replace(each, group)
        if self.first.damage is not None:
            return
        with suppress(StoreError, sqlite3.OperationalError):
            self._is_outdated = self.first.glance(generation_in) != self.placement.generation

    def _of(self, directory: StoreDirectory) -> list[File]:
        return [file for number, file in self._by_number.items() if number // self._count == directory.number]

    async def _replace(self, directory: StoreDirectory, group: PreparedFiles) -> None:
        """Use a directory again, with files that are opened anew."""
        old = self._of(directory)
        new = dict(zip(old, self._opened(group), strict=True))
        self._all = tuple(new.get(file, file) for file in self._all)
        self._by_number = _numbered(self._all)
        threads = [thread for file in old if (thread := file.close())]
        await asyncio.to_thread(_wait_and_disconnect, old, threads)
        await asyncio.to_thread(_connect, list(new.values()))
        self._mark_damaged(group)
        self.has_found_again = True
        self._tell_state()

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
        """Whether other files lie in the place of those that were opened, or there are other directories."""
        return self._is_outdated or any(file.is_stale for file in self._all)

    @property
    def failing(self) -> Mapping[str, str]:
        """Why the store or a part of it cannot be used now, in a sentence by its cause."""
        found: dict[str, str] = {}
        for file in self._all:
            if file.damage is not None and not isinstance(file.damage, DirectoryLost):
                found.setdefault("damaged", str(file.damage))
            if file.outgrown:
                found.setdefault("unusable", file.outgrown)
            if file.trouble is not None:
                found.setdefault(file.trouble.cause, str(file.trouble))
            elif file.is_short_of_room:
                found.setdefault("full", f"{file.path}: {file.lack or 'the disk is full'}, so new events are refused")
        if lost := {str(file.damage): None for file in self._all if isinstance(file.damage, DirectoryLost)}:
            found["directory"] = "; ".join(lost)
        if self._away is not None:
            found[self._away.cause if isinstance(self._away, StoreAway) else "unusable"] = str(self._away)
        return found

    async def close(self) -> None:
        """Let what was asked for finish, and close everything."""
        files, owner, self._all, self._owner, self._away = self._all, self._owner, (), None, None
        self._is_outdated, self._by_number = False, {}
        threads = [thread for file in files if (thread := file.close())]
        await asyncio.to_thread(self._wait_and_leave, files, threads, owner)

    def _prepare(self) -> tuple[bool, list[PreparedFiles], ExitStack]:
        """Whether the files are new, and all of them by directory, with those that are damaged.

        Until the stack is closed what SQLite made at an opening stays: on a full disk others may take the room of what
        is deleted.
        """
        if self._make or self._directory.exists():
            make_directory(self._directory)  # or say why it cannot be used
        is_new = not any(self._directory.glob("queues-*.db"))
        if is_new and not self._make:
            if self._waits:
                raise StoreAway("gone", f"there is no store in {self._directory}: is its disk mounted?")
            raise StoreMissing(
                f"there is no store in {self._directory}: queues-000.db is missing; where none was in use, the first"
                " start of the daemon makes it, as its user"
            )
        try:
            with locked(self._directory), ExitStack() as anchors:
                anchored(self._directory, anchors)
                groups = [PreparedFiles(0, *prepare(self._directory, self.settings))]
                fill_reserve(self._directory, len(groups[0].paths))
                self.placement = first_placement(self._directory, groups[0], self.settings)
                self._unplaced = unplaced(groups[0])
                for each in self.placement.directories:
                    if each.number:
                        anchored(Path(each.path), anchors)
                        groups.append(prepare_further(self._directory, each, self.settings))
                self._owner = self._owner or Owner(self._directory)
                self._owner.sweep()
                return is_new, groups, anchors.pop_all()
        except OSError as exc:
            raise opening_error(exc, self._directory) from exc

    def _prepare_again(self, directory: StoreDirectory) -> PreparedFiles:
        try:
            with locked(self._directory):
                return prepare_further(self._directory, directory, self.settings)
        except OSError as exc:
            raise opening_error(exc, self._directory) from exc

    def _wait_and_leave(self, files: Sequence[File], threads: Sequence[threading.Thread], owner: Owner | None) -> None:
        _wait_and_disconnect(files, threads)
        if owner is not None:
            with ExitStack() as held:
                with suppress(OSError, StoreError):  # of a directory that is gone, or that others keep locked
                    held.enter_context(locked(self._directory))
                owner.close()

    @property
    def is_usable(self) -> bool:
        """Whether anything can be delivered: a damaged file says nothing of the topics in others, and a full disk takes
        no events while delivery goes on."""
        return self.is_open and not self._in_the_way()

    def _in_the_way(self) -> list[str]:
        is_of_use = any(file.damage is None and file.has_topics for file in self._all)
        of_a_part = {"full", "damaged", "directory"} if is_of_use else {"full"}
        return [text for cause, text in self.failing.items() if cause not in of_a_part]

    def _tell_state(self, news: str = "") -> None:
        """Say what is in the way: what keeps nothing but a file's own topics from being used is not in the store's."""
        text = "; ".join(self.failing.values()) or f"{news}{len(self._all)} files in {self._directory}"
        self._on_state(self.is_usable, "; ".join(self._in_the_way()) or text)


def _connect(files: Sequence[File]) -> None:
    for file in files:
        file.connect()


def _wait_and_disconnect(files: Sequence[File], threads: Sequence[threading.Thread]) -> None:
    until = time.monotonic() + _JOIN_WITHIN_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    for file in files:
        file.disconnect()


def _numbered(files: Sequence[File]) -> dict[int, File]:
    return {number_of_file(file.path): file for file in files}


def _find(
    files: Sequence[File], bounds: Mapping[Path, DirectoryBound]
) -> tuple[list[StoreAway | None], dict[Path, Disk]]:
    """What `File.find` says of each, and the disks that their directories lie on; it may block."""
    disks = {}
    for directory, bound in bounds.items():
        of_directory = [file for file in files if file.path.parent == directory]
        if any(isinstance(file.damage, DirectoryLost) for file in of_directory):
            continue
        with suppress(OSError):
            fill_reserve(directory, len(of_directory))
            disks[directory] = bound.within(disk_of(directory))
    found = [file.find() for file in files]
    if any(found):  # a directory that went in between took along those that were found before
        found = [file.find() for file in files]
    return found, disks
