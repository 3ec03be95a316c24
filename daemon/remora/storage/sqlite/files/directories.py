"""The directories of one store, as its first file knows them, and how one is added and removed.

A change is one transaction of each file, that of the first file last. From its own on a file takes no topic that
somebody makes who does not know the change, so that the names that are there by then can be written down with where
they lie. A change that was cut short leaves files that take no new topics, and is completed when it is repeated.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from remora.config.stores import SqliteSettings
from remora.model.errors import (
    DirectoryLost,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMisconfigured,
    StoreUnavailable,
)
from remora.model.store_files import DirectoryReport
from remora.model.topic import own_topic_name
from remora.policy.queues.store_directories import StoreDirectories, StoreDirectory
from remora.storage.sqlite.files.allocation import NO_ROOM, fill_reserve
from remora.storage.sqlite.files.connections import connect, snapshot, transaction
from remora.storage.sqlite.files.directory import (
    JoinedStore,
    connected,
    locked,
    make_directory,
    number_of_file,
    path_of,
    prepare,
    sync,
    was_used,
)

_KNOWN = "SELECT value FROM meta WHERE key = 'directories'"
_GENERATION = "SELECT value FROM meta WHERE key = 'placement'"
KEEP_FACT = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"
"""Replaces a fact about a file; that of this module are `directories` and `placement`."""

_decode = msgspec.json.Decoder(StoreDirectories).decode


def placement_in(connection: sqlite3.Connection) -> StoreDirectories:
    """The directories of a store, of its first file."""
    row = connection.execute(_KNOWN).fetchone()
    return StoreDirectories() if row is None else _decode(row[0])


def keep_placement(connection: sqlite3.Connection, placement: StoreDirectories) -> None:
    """Within a transaction of the first file, have the store know its directories."""
    connection.execute(KEEP_FACT, ("directories", msgspec.json.encode(placement).decode()))


def generation_in(connection: sqlite3.Connection) -> int:
    """The last change of the directories that a file knows."""
    row = connection.execute(_GENERATION).fetchone()
    return 0 if row is None else int(row[0])


_log = logging.getLogger(__name__)

_PATIENCE_S = 10.0

_NAMES = "SELECT name FROM topics"
_LETTERS = "SELECT queue FROM letters UNION SELECT queue FROM letter_totals"
_IDENTITY = "SELECT key, value FROM meta WHERE key IN ('store', 'files')"
_HELD = """
SELECT (SELECT count(*) FROM topics), (SELECT total(tail - head) FROM queues), (SELECT count(*) FROM letters),
    (SELECT count(*) FROM decisions WHERE length(parts) > 0)
"""


def place_of(name: str, files: int) -> tuple[int, int]:
    """The file within its directory that a name falls into, of so many, and what is left to choose the directory by."""
    place, number = divmod(zlib.crc32(name.encode("utf-8", "surrogateescape")), files)
    return number, place


@dataclass(frozen=True, slots=True)
class PreparedFiles:
    """The files of a directory of this number, and which of them are damaged and why: all, where it is lost."""

    number: int
    paths: Sequence[Path]
    damaged: Mapping[Path, StoreDamaged]

    @property
    def is_lost(self) -> bool:
        """Whether the directory cannot be used."""
        return any(isinstance(each, DirectoryLost) for each in self.damaged.values())


def anchored(directory: Path, anchors: ExitStack) -> None:
    """Have what SQLite makes at an opening of each file stay until `anchors` are closed."""
    for path in directory.glob("queues-*.db"):
        with suppress(sqlite3.Error, StoreFull):  # which is met again
            anchors.enter_context(closing(connect(path, reader=True)))


def first_placement(directory: Path, first: PreparedFiles, settings: SqliteSettings) -> StoreDirectories:
    """The directories of a store that is opened under its lock; those of the settings where none was ever in use.

    Where the first file is damaged nobody knows further ones.
    """
    if first.paths[0] in first.damaged:
        return StoreDirectories()
    store = _Store(directory)
    further = [Path(each) for each in settings.directories[1:]]
    if store.placement.directories or not further:
        _warn_of_unused(store.placement, further)
        return store.placement
    if any(path in first.damaged or was_used(path) for path in first.paths):
        _warn_of_unused(store.placement, further)
        return store.placement
    known = [StoreDirectory(0, str(directory))]
    for number, path in enumerate(further, 1):
        make_directory(path)
        prepare(path, settings, JoinedStore(store.id, store.files, number, makes=True))
        known.append(StoreDirectory(number, str(path)))
    store.change(known)
    return store.placement


def unplaced(first: PreparedFiles) -> DirectoryLost | None:
    """Why nobody knows what lies in further directories, though a file of the first one tells that there are some."""
    damage = first.damaged.get(first.paths[0])
    for path in first.paths[1:] if damage else ():
        with suppress(StoreError), connected(path, _PATIENCE_S) as connection:
            if generation_in(connection):
                why = "it has the list of the store's directories, so what lies in others than the first one is lost"
                return DirectoryLost(f"{damage}; {why} until it can be read")
    return None


def _warn_of_unused(placement: StoreDirectories, wanted: Sequence[Path]) -> None:
    for path in wanted:
        if placement.at(str(path)) is None:
            _log.warning("%s is in sqlite.directories and not in use: `remora store directory add %s`", path, path)


def prepare_further(first: Path, directory: StoreDirectory, settings: SqliteSettings) -> PreparedFiles:
    """The files of a further directory, ready to be opened; to be called under the lock of the first one. Where they
    cannot be used the directory is lost."""
    store, folder = _Store(first), Path(directory.path)
    try:
        with _probe_in(folder):
            paths, damaged = prepare(folder, settings, JoinedStore(store.id, store.files, directory.number))
            fill_reserve(folder, len(paths))
    except (StoreError, OSError) as exc:
        is_absent = isinstance(exc, OSError) and exc.errno == errno.ENOENT
        why = "is its disk mounted?" if is_absent else getattr(exc, "strerror", None) or str(exc)
        lost = DirectoryLost(f"directory {folder} is lost until it can be used again: {why}")
        return PreparedFiles(directory.number, store.paths(directory), dict.fromkeys(store.paths(directory), lost))
    return PreparedFiles(directory.number, paths, damaged)


@contextmanager
def _probe_in(folder: Path) -> Iterator[None]:
    """A file without a name in a directory that can be written to. OSError for one that cannot."""
    descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, bytes(1), 0)
        yield
    except OSError as exc:
        if exc.errno not in NO_ROOM:
            raise
        yield
    finally:
        os.close(descriptor)


def reports(first: Path) -> list[DirectoryReport]:
    """All directories of a store, with what lies in each; blocks. Raises StoreMisconfigured where there is no store."""
    store = _Store(first)
    return [store.report(each) for each in store.directories]


def add(first: Path, path: Path, settings: SqliteSettings) -> bool:
    """Have a store use one more directory, for topics that are made from now on, or an old one at another path, where
    it was moved; blocks. False where it does so already.

    Raises StoreMisconfigured where the directory cannot be used, and StoreUnavailable where another one is lost.
    """
    with _locked(first) as store:
        known = store.directories
        if any(each.path == str(path) and each.takes_topics for each in known):
            return False
        found = [number_of_file(each) for each in path.glob("queues-*.db")]
        moved = min(found) // store.files if found else None
        number = moved if moved in {each.number for each in known[1:]} else None
        here = StoreDirectory(store.placement.next_number if number is None else number, str(path))
        make_directory(path)
        prepare(path, settings, JoinedStore(store.id, store.files, here.number, makes=number is None))
        after = [here if each.number == number else each for each in known]
        if number is None:
            after.append(here)
        store.change(after)
    return True


def remove(first: Path, path: Path, *, discard: bool) -> DirectoryReport:
    """Have a store use a directory no longer, and say what was in it; blocks. Its files stay there.

    From the first call on it takes no topic. It goes when no topic, letter or unfinished request lies in it, else this
    raises StoreError; with `discard` it goes with all it holds, also one that is lost.
    """
    with _locked(first) as store:
        leaving = next((each for each in store.directories if each.path == str(path)), None)
        if leaving is None:
            raise StoreMisconfigured(f"{path} is no further directory of the store in {first}")
        if leaving.number == 0:
            raise StoreMisconfigured(f"{path} is the first directory, which has what concerns the whole store")
        rest = [each for each in store.placement.directories if each is not leaving]
        found = store.report(leaving)
        if discard:
            store.change(rest)
            return found
        if found.trouble:
            raise StoreUnavailable(found.trouble)
        if leaving.takes_topics:
            store.change([replace(each, takes_topics=each is not leaving) for each in store.placement.directories])
            rest = [each for each in store.placement.directories if each.number != leaving.number]
        store.shut(leaving)
        found = store.report(leaving)
        if not found.is_empty:
            raise StoreError(
                f"{path} takes no topics from now on, and has {found.text}: remove these topics when they are delivered"
                " (`remora topic rm NAME --drain`), drop or re-drive the letters, and repeat this; or give all up with"
                " --discard"
            )
        store.change(rest)
        return found


class _Store:
    """The directories of a store and its files, one connection at a time."""

    def __init__(self, first: Path) -> None:
        self._first = first
        path = path_of(first, 0)
        if not path.exists():
            raise StoreMisconfigured(f"there is no store in {first}: queues-000.db is missing")
        try:
            with connected(path, _PATIENCE_S) as connection, snapshot(connection):
                self.placement = placement_in(connection)
                meta = dict(connection.execute(_IDENTITY))
            self.id, self.files = str(meta["store"]), int(meta["files"])
        except msgspec.MsgspecError as exc:
            raise StoreDamaged(f"{path} is damaged: what it knows of its store's directories: {exc}") from exc
        except (KeyError, TypeError, ValueError) as exc:
            raise StoreDamaged(f"{path} is damaged: what it knows of itself cannot be read") from exc

    @property
    def directories(self) -> Sequence[StoreDirectory]:
        """All of them; the first alone where the store never had another."""
        return self.placement.directories or (StoreDirectory(0, str(self._first)),)

    def paths(self, directory: StoreDirectory) -> list[Path]:
        """The files of a directory."""
        folder = Path(directory.path) if directory.number else self._first
        return [path_of(folder, directory.number * self.files + number) for number in range(self.files)]

    def report(self, directory: StoreDirectory) -> DirectoryReport:
        """What lies in a directory."""
        held: list[Sequence[int]] = []
        try:
            for path in self.paths(directory):
                with connected(path, _PATIENCE_S) as connection:
                    held.append([int(each) for each in connection.execute(_HELD).fetchone()])
        except (StoreError, OSError) as exc:
            return DirectoryReport(directory.path, directory.takes_topics, trouble=f"{directory.path} is lost: {exc}")
        topics, entries, letters, requests = map(sum, zip(*held, strict=True))
        return DirectoryReport(directory.path, directory.takes_topics, topics, entries, letters, requests)

    def shut(self, directory: StoreDirectory) -> None:
        """Have the files of a directory take no topic by any generation until now, of whatever name."""
        with suppress(StoreError):  # which the report tells
            for path in self.paths(directory):
                with _synced(path) as connection:
                    _noted(connection, self.placement.generation + 1, directory.number, self.files)

    def change(self, directories: Sequence[StoreDirectory]) -> None:
        """Have all files, and then the store, know these directories, and write down the names that lie elsewhere than
        the rule says."""
        generation, known = self.placement.generation + 1, dict[str, tuple[int, int]]()
        paths = [(each.number, path) for each in directories for path in self.paths(each)]
        for number, path in paths[1:]:
            with _synced(path) as connection:
                known |= _noted(connection, generation, number, self.files)
        number, path = paths[0]
        with _synced(path) as connection:
            known |= _noted(connection, generation, number, self.files)
            placement = self.placement.changed(directories, known)
            keep_placement(connection, placement)
        self.placement = placement
        sync(self._first)


@contextmanager
def _locked(first: Path) -> Iterator[_Store]:
    """A store that nobody else changes meanwhile. Where there is none, not even a lock is made for one."""
    _Store(first)
    with locked(first):
        yield _Store(first)


@contextmanager
def _synced(path: Path) -> Iterator[sqlite3.Connection]:
    """A transaction on a file that is synced; errors are the store's."""
    with connected(path, _PATIENCE_S) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        with transaction(connection):
            yield connection


def _noted(connection: sqlite3.Connection, generation: int, number: int, files: int) -> Mapping[str, tuple[int, int]]:
    """Within a transaction, have a file take no topic by an earlier generation; the names that it has, which lie in the
    directory of this number."""
    connection.execute(KEEP_FACT, ("placement", generation))
    names = {name for (name,) in connection.execute(_NAMES)}
    names |= {own_topic_name(queue) for (queue,) in connection.execute(_LETTERS)}
    return {name: (number, place_of(name, files)[1]) for name in names}
