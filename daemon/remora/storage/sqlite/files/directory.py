"""The directory of the store: who may use it, which files it has, and how they come to be.

Files are made and migrated under a lock of the whole directory, each step in one transaction. A process that is killed
at any moment leaves something that the next one completes: a file that is missing or empty is made, as long as no file
has ever had a topic.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import pwd
import secrets
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from remora.config.stores import SqliteSettings
from remora.model.errors import StoreDamaged, StoreError, StoreMisconfigured, StoreUnavailable
from remora.model.words import several
from remora.storage.sqlite.files.connections import PAGE_BYTES, connect, transaction
from remora.storage.sqlite.files.refusals import is_busy, kept_busy, of_the_host, translated
from remora.storage.sqlite.tables import schema

_log = logging.getLogger(__name__)

_LEAST_SQLITE = (3, 38)
"""The first with the `->>` operator."""

RESTORING = "restoring"
"""The file in the directory that says that its files are being made out of copies."""

_LOCK = "lock"
_LOCK_WITHIN_S = 30.0
_PAUSE_S = 0.01

_BUSY_FOR_S = 5.0
"""So long others of this host may be at work on a file."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """No other process makes, migrates, enters or leaves meanwhile. Blocks; raises StoreUnavailable after a time."""
    descriptor = os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + _LOCK_WITHIN_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as exc:
                if time.monotonic() > until:
                    raise StoreUnavailable(f"{directory} was locked for {_LOCK_WITHIN_S:g} s") from exc
                time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make the directory if it is not there, and see that it is ours alone. Raises StoreMisconfigured.

    What the group may do is taken from it: a kubelet gives the group of a pod (fsGroup) each file of a volume.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            with suppress(PermissionError):  # what may be entered need not be readable
                sync(path.parent)
    except OSError as exc:
        raise StoreMisconfigured(
            f"cannot make {path}: {exc.strerror}; run this as root, who makes it for the user of the daemon:"
            f" install -d -m 0700 -o {_our_name()} {path}"
        ) from exc
    _check(path, 0o700)


class JoinedStore(NamedTuple):
    """The store that a further directory belongs to, of so many files a directory, and the number of this one; `makes`
    where its files may be new."""

    store: str
    files: int
    number: int
    makes: bool = False


def prepare(
    directory: Path, settings: SqliteSettings, joined: JoinedStore | None = None
) -> tuple[list[Path], dict[Path, StoreDamaged]]:
    """Make, complete or migrate the files; to be called under the lock of the store's first directory.

    `joined` is the store of a directory that is not the first one of its store. Answers all files in the order of their
    numbers, and which of them are damaged and why. Raises StoreMisconfigured for files that are not this store's, or
    that this version cannot use.
    """
    if sqlite3.sqlite_version_info < _LEAST_SQLITE:
        least = ".".join(map(str, _LEAST_SQLITE))
        raise StoreMisconfigured(f"SQLite {least} or newer is needed; Python here has {sqlite3.sqlite_version}")
    if (directory / RESTORING).exists():
        raise StoreMisconfigured(f"the restore of {directory} was cut short: repeat `remora store restore`")
    found = sorted(directory.glob("queues-*.db"))
    for path in found:
        _check(path, 0o600)
    identities, damaged = _identities(found)
    store, count, place, _ = joined or _expected(directory, settings, identities, damaged)
    first = place * count
    paths = [path_of(directory, number) for number in range(first, first + count)]
    if strange := sorted(set(found) - set(paths)):
        files = several(count, "file")
        raise StoreMisconfigured(f"{strange[0]} does not belong to a store of {files}: move it elsewhere")
    missing = [path for path in paths if path not in identities and path not in damaged]
    if missing:
        _check_new(missing[0], joined, identities, damaged)
    for path in missing:
        _create(path, {"store": store, "files": count, "number": first + paths.index(path), "catalogue": 0})
    for number, path in enumerate(paths, first):
        if path in identities and identities[path] != (store, count, number):
            raise StoreMisconfigured(f"{path} belongs to another directory, or had another name: move it elsewhere")
        if path not in damaged:
            _migrate(path, schema.MIGRATIONS, damaged)
    sync(directory)
    return paths, damaged


def path_of(directory: Path, number: int) -> Path:
    """The file of this number."""
    return directory / f"queues-{number:03}.db"


def number_of_file(path: Path) -> int:
    """The number of a file of this name, among those of all directories of its store."""
    return int(path.stem.removeprefix("queues-"))


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[schema.Migration]) -> None:
    """Bring a file to the newest version, step by step. Raises StoreMisconfigured for one that is newer still."""
    version = _pragma(connection, "user_version")
    if version > len(migrations):
        raise StoreMisconfigured(
            f"{path} was made by a newer remora (version {version}, this one knows up to {len(migrations)}):"
            " install that one again"
        )
    for step in range(version, len(migrations)):
        with transaction(connection):
            migrations[step](connection)
            connection.execute(f"PRAGMA user_version = {step + 1}")


Identity = tuple[str, int, int]
"""What a file knows of itself: the store that it belongs to, of how many files in each directory, and its number among
all."""


def _identities(paths: Sequence[Path]) -> tuple[dict[Path, Identity], dict[Path, StoreDamaged]]:
    """The identities of the files that have one yet, and the files that cannot be read."""
    found: dict[Path, Identity] = {}
    damaged: dict[Path, StoreDamaged] = {}
    for path in paths:
        try:
            if identity := _identity(path):
                found[path] = identity
        except StoreDamaged as exc:
            damaged[path] = exc
    return found, damaged


def _identity(path: Path) -> Identity | None:
    """None for a file that was being made when that was cut short."""
    with connected(path) as connection:
        application = _pragma(connection, "application_id")
        if not application and not _pragma(connection, "schema_version"):
            return None
        if application != schema.APPLICATION_ID:
            raise StoreMisconfigured(f"{path} is another program's database: move it elsewhere")
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        store, files, number, catalogue = (meta.get(key) for key in ("store", "files", "number", "catalogue"))
        if isinstance(store, str) and isinstance(files, int) and isinstance(number, int) and isinstance(catalogue, int):
            return store, files, number
        raise StoreDamaged(f"{path} is damaged: what it knows of itself cannot be read")


def _expected(
    directory: Path, settings: SqliteSettings, identities: dict[Path, Identity], damaged: dict[Path, StoreDamaged]
) -> JoinedStore:
    """The store of a first directory, and how many files there are to be."""
    if identities:
        store, count, _ = next(iter(identities.values()))
        return JoinedStore(store, count, 0, makes=True)
    if damaged:
        raise StoreMisconfigured(f"no file of {directory} can be read: {next(iter(damaged.values()))}")
    return JoinedStore(secrets.token_hex(8), settings.files, 0, makes=True)


def _check_new(
    missing: Path, joined: JoinedStore | None, identities: dict[Path, Identity], damaged: dict[Path, StoreDamaged]
) -> None:
    """Raise StoreMisconfigured where a file that is missing must not be made."""
    if used := next((path for path in identities if was_used(path)), None) or next(iter(damaged), None):
        raise StoreMisconfigured(
            f"{missing} is missing or empty, though {used} has been in use: bring it back from where it is kept"
        )
    if joined and not joined.makes:
        raise StoreMisconfigured(f"{missing} is missing: is the disk of its directory mounted?")


def was_used(path: Path) -> bool:
    """Whether a file has ever had a topic."""
    with connected(path) as connection:
        return connection.execute("SELECT 1 FROM sqlite_sequence WHERE name = 'topics'").fetchone() is not None


def _create(path: Path, meta: dict[str, object]) -> None:
    """Make a file; empty until a single transaction gives it its tables, its mark and its identity."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with connected(path) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise StoreMisconfigured(f"{path}: no write-ahead log works there; a local file system is needed")
        connection.execute("PRAGMA synchronous = FULL")
        with transaction(connection):
            connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            schema.MIGRATIONS[0](connection)
            connection.execute("PRAGMA user_version = 1")
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())


def _migrate(path: Path, migrations: Sequence[schema.Migration], damaged: dict[Path, StoreDamaged]) -> None:
    try:
        with connected(path) as connection:
            connection.execute("PRAGMA journal_mode = WAL")  # a copy made by VACUUM INTO has lost it
            migrate(connection, path, migrations)
    except StoreDamaged as exc:
        damaged[path] = exc


@contextmanager
def connected(path: Path, patience_s: float | None = None) -> Iterator[sqlite3.Connection]:
    """A connection whose errors are the store's; it waits for others so long, else for five seconds."""
    try:
        with closing(connect(path, reader=False, patience_s=patience_s or _BUSY_FOR_S)) as connection:
            yield connection
    except sqlite3.Error as exc:
        if is_busy(exc):
            raise kept_busy(exc, path) from exc
        raise translated(exc, path) from exc


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


def _check(path: Path, mode: int) -> None:
    """Take from the group what it may do, and see that only we may read and write it.

    Raises StoreMisconfigured with the command that helps. What others than the group may do is left to the operator:
    no program of ours and no kubelet gives them anything, so the reason must be said.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode) != (mode == 0o700):
        raise StoreMisconfigured(f"{path} is not a {'directory' if mode == 0o700 else 'file'}")
    if found.st_uid != os.geteuid():
        owner = name_of(found.st_uid)
        help_ = (
            f"run it as that user: setpriv --reuid={owner} --regid={owner} --init-groups remora ..."
            if os.geteuid() == 0
            else "commands can be run as that user, or as root, which then becomes that user"
        )
        raise StoreMisconfigured(
            f"{path} belongs to {owner} and not to {_our_name()}, whom remora runs as: {help_};"
            " of a volume that has to stay root's, name a directory inside in sqlite.directory"
        )
    if found.st_mode & 0o070 and stat.S_IMODE(found.st_mode) & ~0o2070 == mode:
        found = _narrowed(path, mode)
    if stat.S_IMODE(found.st_mode) & 0o777 != mode:
        raise StoreMisconfigured(f"{path} must be readable and writable by its owner alone: chmod {mode:04o} {path}")
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreMisconfigured(f"{path} is on a file system that is mounted read-only")


def _narrowed(path: Path, mode: int) -> os.stat_result:
    """Take the group's rights and the set-group-id bit away, and log it; what the path is like afterwards."""
    try:
        path.chmod(mode)
    except OSError as exc:  # a volume that is mounted read-only, or refuses chmod: _check says what is wrong with it
        _log.debug("cannot narrow the mode of %s: %s", path, exc.strerror)
    else:
        _log.warning("the group could use %s: its mode is %04o now", path, mode)
    return path.stat()


def _our_name() -> str:
    return name_of(os.geteuid())


def name_of(uid: int) -> str:
    """The name of a user, else the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def sync(directory: Path) -> None:
    """Make the files' names durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(files: Iterable[Path]) -> None:
    """Delete files with what SQLite makes beside them, as far as they are there."""
    for path in files:
        for name in (path.name, f"{path.name}-journal", f"{path.name}-wal", f"{path.name}-shm"):
            with suppress(FileNotFoundError):
                path.with_name(name).unlink()


def opening_error(exc: OSError, directory: Path) -> StoreError:
    """What an error of the file system means to the process that opens the store."""
    if exc.errno in (errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT):
        return of_the_host(exc, directory)
    return StoreMisconfigured(f"cannot use {directory}: {exc.strerror or exc}")
