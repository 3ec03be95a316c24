"""Which queues got new entries, and that topics have changed: notified at once by this and other processes, else found
by polling."""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from remora.model.errors import StoreError
from remora.model.shard import Origin, Shard
from remora.storage.sqlite.files.doorbell import Listener
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.files.part import SqlitePart
from remora.storage.sqlite.tables.layouts import IS_HELD_BACK
from remora.storage.sqlite.tables.soundness import number_fact

_LOOK_EVERY_S = 0.5
"""How late a commit may be noticed whose process was killed before it rang."""

_DEAF_LOOK_EVERY_S = 0.1
"""The same where no doorbell can be heard. For sixteen files all looks cost 0.5 % of a core, mostly for waking up."""

_NAMES = "SELECT id, name FROM queues ORDER BY id"
_TAILS = f"""
SELECT group_concat(tail) FROM (
    SELECT CASE WHEN {IS_HELD_BACK} THEN q.head ELSE q.tail END AS tail FROM queues AS q ORDER BY q.id
)
"""  # noqa: S608 - a constant
"""Where queues end for their owners: one that is held back is as if it were empty, and gets its entries when it is
held back no longer."""


class _FileQueues(NamedTuple):
    """The queues of a file, as of a version of its catalogue."""

    version: int
    shards: Sequence[tuple[int, Shard]]


_NONE = _FileQueues(-1, ())


@dataclass(slots=True)
class _FileState:
    """What is known of a file: all its queues, and where their ends were at the last look."""

    version: int = -1
    queues: _FileQueues = _NONE
    text: str = ""
    tails: dict[int, str] = field(default_factory=dict)


class SqliteArrivals(SqlitePart):
    """Waits for commits of any process."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._seen: defaultdict[File, _FileState] = defaultdict(_FileState)  # files may be opened before `begin`
        self._looked_at = 0.0
        self._every_s = _DEAF_LOOK_EVERY_S
        self._listeners: list[Listener] = []

    notifies = True
    """Every commit shows, from any process."""

    def begin(self) -> None:
        """Tell of everything that is committed from now on to the files that are open now."""
        self.end()
        self._seen.clear()
        self._look()
        self._files.bell.take()

    def end(self) -> None:
        """Tell of nothing more."""
        for each in self._listeners:
            each.close()
        self._listeners = []

    async def wait(self) -> Sequence[Shard]:
        """Wait for commits, and answer which queues got entries."""
        bell = self._files.bell
        while True:
            if time.monotonic() - self._looked_at >= self._every_s:
                self._look()
            self._listen()
            if found := bell.take():
                return found
            await bell.wait(self._every_s)

    def _listen(self) -> None:
        """Hear doorbells from now on; where that is not possible, look more often."""
        if self._listeners:
            return
        self._every_s = _DEAF_LOOK_EVERY_S
        with suppress(OSError):
            for each in {file.path.parent: None for file in self._files.sound}:
                self._listeners.append(Listener(each, self._heard))
            self._every_s = _LOOK_EVERY_S
            self._look()  # at what was rung for before

    def _heard(self, stem: str | None) -> None:
        with suppress(StoreError):  # the files are being opened anew
            for file in self._files.sound:
                if stem in (file.path.stem, None):
                    self._try_to_look(file)

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        for file in self._files.sound:
            self._try_to_look(file)

    def _try_to_look(self, file: File) -> None:
        # What is in the way now is not there at the next look; damage is reported where it is found.
        with suppress(StoreError, sqlite3.OperationalError):
            self._look_into(file, self._seen[file])

    def _look_into(self, file: File, seen: _FileState) -> None:
        version = file.version()
        if version == seen.version:
            return
        queues, text = file.glance(lambda connection: _ends(connection, seen.queues))
        if text != seen.text or queues is not seen.queues:
            tails = dict(zip((number for number, _ in queues.shards), text.split(","), strict=False))
            self._files.bell.ring(
                shard for number, shard in queues.shards if tails[number] != seen.tails.get(number, "0")
            )
            seen.tails = tails
        if queues is not seen.queues:
            self._files.catalogue_news.tell()
        seen.version, seen.queues, seen.text = version, queues, text


def _ends(connection: sqlite3.Connection, known: _FileQueues) -> tuple[_FileQueues, str]:
    """The queues of a file, and the ends of all of them as one row: seven hundred rows would take ten times as long."""
    version = number_fact(connection, "catalogue")
    if version != known.version:
        rows = connection.execute(_NAMES).fetchall()
        known = _FileQueues(version, [(number, Shard(name, Origin.REMORA)) for number, name in rows])
    (text,) = connection.execute(_TAILS).fetchone()
    return known, text or ""
