"""The peaks of topics: a row for each topic, hour and number of shards, in the file that has the topic."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence

from remora.model.peaks import KEPT_HOURS, HourPeak
from remora.model.topic import Topic
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.part import SqlitePart

_OF = "(SELECT id FROM topics WHERE name = ? AND uid = ?)"
_KEEP = """
INSERT INTO peaks (topic, hour, shards, events, bytes) SELECT id, ?, ?, ?, ? FROM topics WHERE name = ? AND uid = ?
ON CONFLICT DO UPDATE SET events = max(events, excluded.events), bytes = max(bytes, excluded.bytes)
"""
_FORGET = f"DELETE FROM peaks WHERE topic = {_OF} AND hour <= ?"  # noqa: S608 - a constant
_KEPT = f"""
SELECT hour, shards, events, bytes FROM peaks WHERE topic = {_OF} AND hour >= ? ORDER BY hour, shards
"""  # noqa: S608 - a constant


class SqlitePeaks(SqlitePart):
    """Keeps peaks. Not synced: after a power cut an hour may be missing."""

    async def keep(self, peaks: Mapping[Topic, HourPeak]) -> None:
        """Keep an hour's peak of each of these topics, in one transaction for each file."""
        by_file: defaultdict[File, list[tuple[Topic, HourPeak]]] = defaultdict(list)
        for topic, peak in peaks.items():
            by_file[self._files.file_of(topic.name)].append((topic, peak))
        await asyncio.gather(*(self._keep(file, found) for file, found in by_file.items()))

    async def _keep(self, file: File, peaks: Sequence[tuple[Topic, HourPeak]]) -> None:
        rows = [(each.hour, each.shards, each.events, each.bytes, topic.name, topic.id) for topic, each in peaks]
        old = [(topic.name, topic.id, each.hour - KEPT_HOURS) for topic, each in peaks]

        def keep(connection: sqlite3.Connection) -> None:
            connection.executemany(_KEEP, rows)
            connection.executemany(_FORGET, old)

        await file.write(keep, durable=False)

    async def kept(self, topic: Topic, since: int) -> Sequence[HourPeak]:
        """What is kept of a topic from this hour on, oldest first."""
        key = topic.name, topic.id, since
        rows = await self._files.file_of(topic.name).read(lambda connection: connection.execute(_KEPT, key).fetchall())
        return [HourPeak(*row) for row in rows]
