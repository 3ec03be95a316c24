"""Looks at queues from outside, without their lock and while others list and remove."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from remora.codec.rendering_plain import age_s
from remora.model.errors import RowDamaged, ShardGone, StoreError
from remora.model.record import CorruptBytes
from remora.model.shard import Shard, ShardStats
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.part import LockColumns, SqlitePart, holder_of
from remora.storage.sqlite.queues.queue import read_page
from remora.storage.sqlite.tables import recent
from remora.storage.sqlite.tables.queue_rows import queue_row
from remora.storage.sqlite.tables.schema import POSITION_BITS
from remora.storage.sqlite.tables.soundness import changed, typed

_PAGE = 256
_SURVEYED_AT_ONCE = 64

_FIGURES = f"""
SELECT q.name, q.tail - q.head, q.used_bytes, q.capacity_bytes, q.reservations, q.reserved_bytes,
    CAST(e.data AS BLOB), CAST(e.checksum AS INTEGER), q.id, q.head, q.settled,
    l.entity, l.cookie, l.boot, l.until_ns
FROM queues AS q
LEFT JOIN settled AS e ON e.id = (q.id << {POSITION_BITS} | q.head)
LEFT JOIN locks AS l ON l.queue = q.id
WHERE q.name = ?
"""  # noqa: S608 - a constant of the schema
_NOT_EMPTY = "SELECT name FROM queues WHERE tail > head OR reservations > 0"


class _Figures(NamedTuple):
    """Those of a queue, with its oldest entry where that has settled."""

    name: str
    entries: int
    used_bytes: int
    capacity_bytes: int
    reservations: int
    reserved_bytes: int
    oldest: bytes | None
    checksum: int | None
    id: int
    head: int
    settled: int


class SqliteInspection(SqlitePart):
    """Figures and contents of a queue."""

    async def stats(self, shard: Shard, *, exact: bool = False) -> ShardStats:
        """Figures of one queue, all of one moment and exact."""
        return await self._file(shard).read(lambda connection: self._figures(connection, shard))

    async def backlog(self, shards: Sequence[Shard]) -> Sequence[ShardStats]:
        """Figures of many queues; those that are empty, or in a damaged file, are left out."""
        wanted: defaultdict[File, dict[str, Shard]] = defaultdict(dict)
        for shard in shards:
            wanted[self._file(shard)][shard.queue] = shard
        found: list[ShardStats] = []
        for file, of_file in wanted.items():
            with suppress(StoreError):
                found += await self._survey(file, of_file)
        return found

    async def dump(self, shard: Shard) -> AsyncIterator[tuple[str, bytes]]:
        """Position and raw bytes of each pending entry, oldest first, none of them twice.

        Who owns the queue removes meanwhile. When that passes the next page, it begins at the front instead.
        """
        start, truncated = b"", True
        while truncated:
            page = await self._file(shard).read(
                lambda connection: read_page(connection, shard, queue_row(connection, shard), start, _PAGE)  # noqa: B023 - awaited
            )
            for i, entry in enumerate(page.entries):
                why = page.corrupt.get(i)
                yield page.positions[i].decode("ascii"), entry if why is None else CorruptBytes(entry, why)
            start, truncated = page.positions[-1], page.truncated

    async def _survey(self, file: File, wanted: dict[str, Shard]) -> list[ShardStats]:
        names = await file.read(lambda connection: [name for (name,) in connection.execute(_NOT_EMPTY)])
        shards = [wanted[name] for name in names if name in wanted]
        found: list[ShardStats] = []
        for i in range(0, len(shards), _SURVEYED_AT_ONCE):
            some = shards[i : i + _SURVEYED_AT_ONCE]
            found += await file.read(lambda connection: self._figures_of(connection, some))  # noqa: B023 - awaited
            await asyncio.sleep(0)  # others have their turn
        return found

    def _figures_of(self, connection: sqlite3.Connection, shards: Sequence[Shard]) -> list[ShardStats]:
        found: list[ShardStats] = []
        for shard in shards:
            with suppress(ShardGone, RowDamaged):  # whose owner meets that
                found.append(self._figures(connection, shard))
        return found

    def _figures(self, connection: sqlite3.Connection, shard: Shard) -> ShardStats:
        row = connection.execute(_FIGURES, (shard.queue,)).fetchone()
        if row is None:
            raise ShardGone(f"there is no queue {shard}")
        found = typed(connection, _Figures, row[:-4], "queues", shard.queue)
        oldest, checksum = found.oldest, found.checksum
        if found.entries and found.head >= found.settled:
            oldest, checksum = recent.entry(connection, found.id, found.head) or (None, None)
        front = None if oldest is None or changed(found.id, found.head, [(oldest, checksum)]) else oldest
        lock = None if row[-1] is None else typed(connection, LockColumns, row[-4:], "locks", shard.queue)
        return ShardStats(
            shard=shard,
            entries=found.entries,
            entries_exact=True,
            used_bytes=found.used_bytes,
            capacity_bytes=found.capacity_bytes,
            reservations=found.reservations,
            reserved_bytes=found.reserved_bytes,
            oldest_age_s=None if front is None else age_s(front, time.time_ns()),
            holder=None if lock is None else holder_of(self._files, *lock),
        )
