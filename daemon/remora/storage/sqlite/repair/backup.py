"""Copies a whole store while it is in use, and makes a store of such a copy.

All files are copied as they are at one moment: their writers are held up together for the milliseconds in which each
file gets a reader whose snapshot begins there. SQLite's backup copies what that reader sees, page by page. VACUUM INTO
was weighed: it makes a smaller copy, but runs in no transaction, so each file would be of a moment of its own.

What is restored gets new incarnations: positions that were given out since the copy are given out again, and must not
be taken for copies of what consumers have seen.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from remora.model.errors import StoreFull, StoreMisconfigured, StoreUnavailable
from remora.model.store_files import FileReport
from remora.model.words import several
from remora.policy.queues.store_directories import StoreDirectories
from remora.storage.sqlite.files.connections import connect, snapshot, transaction
from remora.storage.sqlite.files.directories import keep_placement
from remora.storage.sqlite.files.directory import (
    RESTORING,
    discard,
    locked,
    make_directory,
    migrate,
    number_of_file,
    path_of,
    sync,
)
from remora.storage.sqlite.files.refusals import is_busy, lacks_room, translated
from remora.storage.sqlite.repair.checks import check_directory, check_file, folders_of, open_to_look, placement_of, why
from remora.storage.sqlite.tables import schema

_HELD_UP_S = 0.5
"""So long one file may keep all writers waiting for the moment of the copy; after a pause it is tried again."""

_TRIES = 60
_PAUSE_S = 0.1

_ANEW = """
UPDATE queues SET incarnation = lower(hex(randomblob(8)));
DELETE FROM locks;
DELETE FROM members;
"""


def back_up(directory: Path, target: Path) -> list[FileReport]:
    """Copy all files of a store, of all its directories, into `target`, which is made, or is empty; what is in each
    copy, and wrong with it.

    A damaged page is copied as it is. Raises StoreMisconfigured where there is no whole store, or `target` cannot be
    used, StoreUnavailable where others keep a file busy, and StoreFull. `target` is empty then.
    """
    paths = whole(directory)
    make_directory(target)
    if any(target.iterdir()):
        raise StoreMisconfigured(f"{target} is not empty: name a directory that is, or that is not there")
    copies = [target / path.name for path in paths]
    with _undone(copies):
        with _of_one_moment(paths) as sources:
            for source, copy in zip(sources, copies, strict=True):
                _copy(source, copy)
        sync(target)
    return check_directory(target, in_one=True)


def restore(copies: Path, directories: Sequence[Path]) -> list[FileReport]:
    """Make a store in these directories out of what `back_up` has copied; what is in each of its files.

    Raises StoreMisconfigured where `copies` is not one whole store that is sound, of as many directories, or where a
    store is in one of these. Nothing has changed then. When it is cut short no daemon opens the store until it is
    repeated.
    """
    sources = whole(copies, in_one=True)
    placement = placement_of(copies)
    if (count := max(1, len(placement.directories))) != len(directories):
        raise StoreMisconfigured(
            f"{copies} is of a store of {several(count, 'directory', 'directories')}, and sqlite.directories names"
            f" {len(directories)}"
        )
    for each in directories:
        make_directory(each)
    first = directories[0]
    with locked(first):
        count = len(sources) // len(directories)
        numbers = [each.number for each in placement.directories] or [0]
        folders = dict(zip(numbers, directories, strict=True))
        # Where each file is made before all of them get their names.
        new = [folders[number_of_file(path) // count] / f"{path.name}.new" for path in sources]
        mark = first / RESTORING
        if not mark.exists():
            for each in directories:
                if found := sorted(each.glob("queues-*.db*")):
                    raise StoreMisconfigured(f"{found[0]} is there already: move what is in {each} elsewhere")
            mark.touch(0o600)
        discard(new)
        # by one that was cut short: the mark stays whatever comes
        is_begun = any(path for each in directories for path in each.glob("queues-*.db"))
        with _undone(new if is_begun else [*new, mark]):
            sync(first)
            reports = [_restored(source, copy) for source, copy in zip(sources, new, strict=True)]
            _set_paths(new[0], placement, directories)
        for copy in new:
            copy.replace(copy.with_suffix(""))
        for each in directories:
            sync(each)
        mark.unlink()
        sync(first)
    return [replace(each, path=each.path.with_suffix("")) for each in reports]


def _set_paths(file: Path, placement: StoreDirectories, directories: Sequence[Path]) -> None:
    """Have the first file know where the directories are now."""
    if placement.directories:
        places = zip(placement.directories, directories, strict=True)
        there = replace(placement, directories=[replace(each, path=str(path)) for each, path in places])
        with closing(sqlite3.connect(file, isolation_level=None)) as target, transaction(target):
            keep_placement(target, there)


def whole(directory: Path, *, in_one: bool = False) -> list[Path]:
    """All files of the store whose first directory this is, or of a copy that has all `in_one` directory. Raises
    StoreMisconfigured where there is none, or not all of one."""
    found = sorted(directory.glob("queues-*.db"))
    if not found:
        raise StoreMisconfigured(f"there is no store in {directory}: queues-000.db is missing")
    known = {path: _identity(path) for path in found}
    store, count, _ = known[found[0]]
    numbered = {
        number: path_of(folder, number)
        for at, folder in folders_of(directory, in_one=in_one)
        for number in range(at * count, (at + 1) * count)
    }
    for number, path in numbered.items():
        if not path.exists():
            raise StoreMisconfigured(f"{path} is missing: its store has {several(len(numbered), 'file')}")
        if (known.get(path) or _identity(path)) != (store, count, number):
            raise StoreMisconfigured(f"{path} belongs to another store, or had another name")
    if strange := sorted(set(found) - set(numbered.values())):
        raise StoreMisconfigured(f"{strange[0]} does not belong to a store of {several(len(numbered), 'file')}")
    return list(numbered.values())


def _identity(path: Path) -> tuple[str, int, int]:
    """The store that a file belongs to, of how many files, and its number. Raises StoreMisconfigured."""
    try:
        with closing(open_to_look(path)) as connection:
            if connection.execute("PRAGMA application_id").fetchone() != (schema.APPLICATION_ID,):
                raise StoreMisconfigured(f"{path} is another program's database, or its first page is damaged")
            meta = dict(connection.execute("SELECT key, value FROM meta"))
            return str(meta["store"]), int(meta["files"]), int(meta["number"])
    except (sqlite3.Error, OSError, LookupError) as exc:
        raise StoreMisconfigured(f"{path} cannot be read: {why(exc)}") from exc


@contextmanager
def _of_one_moment(paths: Sequence[Path]) -> Iterator[Sequence[sqlite3.Connection]]:
    """Readers that see all files as they are at one moment."""
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(connect(path, reader=True, patience_s=_HELD_UP_S))) for path in paths]
        for tries_left in reversed(range(_TRIES)):
            try:
                with ExitStack() as held:
                    for path in paths:
                        writer = held.enter_context(closing(connect(path, reader=False, patience_s=_HELD_UP_S)))
                        held.enter_context(transaction(writer))
                    for each in sources:
                        stack.enter_context(snapshot(each))
                        each.execute("SELECT count(*) FROM meta").fetchone()  # its snapshot begins
                break
            except sqlite3.Error as exc:
                if not is_busy(exc):
                    raise
                if not tries_left:
                    where = paths[0].parent
                    raise StoreUnavailable(f"{where}: others keep its files too busy for a copy of one moment") from exc
            for each in sources:
                if each.in_transaction:
                    each.execute("COMMIT")
            time.sleep(_PAUSE_S)
        yield sources


def _copy(source: sqlite3.Connection, copy: Path) -> None:
    """Copy what a connection sees to a file that is not there; synced, and with no log beside it."""
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(copy, isolation_level=None)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")


def _restored(source: Path, copy: Path) -> FileReport:
    """Make a file that is to be used out of a copy, of the newest version. Raises StoreMisconfigured for damage."""
    with closing(open_to_look(source)) as connection, snapshot(connection):
        _copy(connection, copy)
    with closing(sqlite3.connect(copy, isolation_level=None)) as target:
        migrate(target, source, schema.MIGRATIONS)
        with transaction(target):
            schema.run_script(target, _ANEW)
    report = check_file(copy)
    if report.problems:
        first = report.problems[0]
        raise StoreMisconfigured(
            f"{source}: {first.what}: {first.text}; `remora store salvage` copies what can be read of it"
        )
    return report


@contextmanager
def _undone(made: Sequence[Path]) -> Iterator[None]:
    """These files are not there when what is done fails; errors are the store's."""
    try:
        yield
    except BaseException as exc:
        discard(made)
        if isinstance(exc, sqlite3.Error) and lacks_room(exc):
            raise StoreFull(f"{made[0].parent}: no room for a copy of the store") from exc
        if isinstance(exc, sqlite3.Error | OSError):
            raise translated(exc, made[0]) from exc
        raise
