"""The notifications of this directory, in the first file.

Their topics lie in other files, and no transaction of SQLite over several files is sure to be whole after a power cut.
So a lock on the store's directory keeps a change of notifications and a removal of a topic apart: the kernel lets go of
it when its holder ends, however that is.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from remora.bounded import all_of
from remora.model.errors import StoreError, StoreUnavailable
from remora.model.notification import Definitions, Notification
from remora.policy.ingest.notification_rules import check_replacement, check_topics
from remora.storage.sqlite.files.file import File, write_nothing
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.files.part import SqlitePart
from remora.storage.sqlite.tables.soundness import number_fact

_ALL = "SELECT id, definition FROM notifications ORDER BY id"
_ONE = "SELECT definition FROM notifications WHERE id = ?"
_COUNT = "SELECT count(*) FROM notifications"
_PUT = "INSERT OR REPLACE INTO notifications (id, definition) VALUES (?, ?)"
_DELETE = "DELETE FROM notifications WHERE id = ?"
_TOPIC = "SELECT 1 FROM topics WHERE name = ?"
_CHANGED = "UPDATE meta SET value = value + 1 WHERE key = 'notifications'"

_WITHIN_S = 30.0
_PAUSE_S = 0.01

# A newer version may add fields, which are skipped, but never change these.
_decoder = msgspec.json.Decoder(Notification)


class StoredNotifications(SqlitePart):
    """Reads and replaces them; what was read stands until somebody changes any."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._known = Definitions(version=-1)

    async def definitions(self) -> Definitions:
        """All of them as they are now; the same object while nothing changed."""
        known = self._known

        def look(connection: sqlite3.Connection) -> Definitions:
            version = number_fact(connection, "notifications")
            if version == known.version:
                return known
            return Definitions(tuple(_decoded(*row) for row in connection.execute(_ALL).fetchall()), version)

        self._known = await self._files.first.read(look)
        return self._known

    @asynccontextmanager
    async def unchanged(self, file: File) -> AsyncIterator[Definitions]:
        """All of them, which nobody changes meanwhile; nor does another process remove a topic that is removed so.

        `file` is where the caller writes to meanwhile. Raises StoreUnavailable where others go on for too long.
        """
        _ = self._files.first  # which says why the store is not open
        directory = Path(self._files.settings.first)
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise StoreUnavailable(f"cannot open {directory}: {exc.strerror}") from exc
        with ExitStack() as held:
            held.callback(os.close, descriptor)
            await _lock(descriptor, directory)
            try:
                yield await self.definitions()
            except (StoreUnavailable, asyncio.CancelledError):
                # What nobody waits for any more may be under way: the lock is let go of behind it, as the file's writer
                # does one job after the other.
                lock = held.pop_all()
                if not file.post(write_nothing, lambda _: lock.close()):
                    lock.close()
                raise

    async def change(self, before: Notification | None, after: Notification | None) -> None:
        """Replace one by another of its id, where it is as `before` says."""
        given = after or before
        assert given is not None
        name = given.id

        def change(connection: sqlite3.Connection) -> None:
            row = connection.execute(_ONE, (name,)).fetchone()
            (count,) = connection.execute(_COUNT).fetchone()
            check_replacement(name, None if row is None else _decoded(name, *row), before, count)
            if after is None:
                connection.execute(_DELETE, (name,))
            else:
                connection.execute(_PUT, (name, msgspec.json.encode(after)))
            connection.execute(_CHANGED)

        async with self.unchanged(self._files.first):
            if after is not None:
                check_topics(after, await self.topics_there(after.topics))
            await self._files.first.write(change, upkeep=True)  # what keeps events from a full disk

    async def topics_there(self, names: Sequence[str]) -> Sequence[str]:
        """Those of the names that topics have now."""

        async def is_there(name: str) -> bool:
            return bool(await self._files.file_of(name).read(lambda found: found.execute(_TOPIC, (name,)).fetchone()))

        there = await all_of(names, is_there)
        return [name for name, found in zip(names, there, strict=True) if found]


async def _lock(descriptor: int, directory: Path) -> None:
    until = asyncio.get_running_loop().time() + _WITHIN_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            if asyncio.get_running_loop().time() > until:
                raise StoreUnavailable(
                    f"others changed notifications or removed topics in {directory} for {_WITHIN_S:g} s"
                ) from exc
        except OSError as exc:  # of a file system without such locks
            raise StoreUnavailable(f"cannot lock {directory}: {exc.strerror}") from exc
        await asyncio.sleep(_PAUSE_S)


def _decoded(name: str, definition: bytes) -> Notification:
    try:
        return _decoder.decode(definition)
    except msgspec.MsgspecError as exc:
        raise StoreError(f"notification {name} cannot be read: {exc}") from exc
