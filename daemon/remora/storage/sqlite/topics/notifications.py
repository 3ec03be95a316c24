"""The notifications of this directory, in the first file."""

from __future__ import annotations

import sqlite3

import msgspec

from remora.model.errors import StoreError
from remora.model.notification import Definitions, Notification
from remora.policy.ingest.notification_rules import check_replacement
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.files.part import SqlitePart
from remora.storage.sqlite.tables.soundness import number_fact

_ALL = "SELECT id, definition FROM notifications ORDER BY id"
_ONE = "SELECT definition FROM notifications WHERE id = ?"
_COUNT = "SELECT count(*) FROM notifications"
_PUT = "INSERT OR REPLACE INTO notifications (id, definition) VALUES (?, ?)"
_DELETE = "DELETE FROM notifications WHERE id = ?"
_CHANGED = "UPDATE meta SET value = value + 1 WHERE key = 'notifications'"

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

        await self._files.first.write(change, upkeep=True)  # what keeps events from a full disk


def _decoded(name: str, definition: bytes) -> Notification:
    try:
        return _decoder.decode(definition)
    except msgspec.MsgspecError as exc:
        raise StoreError(f"notification {name} cannot be read: {exc}") from exc
