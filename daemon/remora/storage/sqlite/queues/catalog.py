"""What topics and queues there are."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import msgspec

from remora.model.errors import StoreDamaged
from remora.model.record import CorruptBytes
from remora.model.shard import Shard
from remora.model.topic import Topic, TopicHold
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.files.part import SqlitePart
from remora.storage.sqlite.queues.queue import read_page
from remora.storage.sqlite.tables.attributes import COLUMNS, IS_SEQUENCED, LayoutColumns, TopicColumns, topic_of_row
from remora.storage.sqlite.tables.queue_rows import queue_row
from remora.storage.sqlite.tables.soundness import number_fact, typed
from remora.storage.sqlite.topics.holds import HOLD, stored_hold

_log = logging.getLogger(__name__)

_HOLDS = f"SELECT key, value FROM meta WHERE key >= '{HOLD}' AND key < '{HOLD[:-1]};'"  # noqa: S608 - a constant
_TOPICS = f"SELECT {COLUMNS} FROM topics"  # noqa: S608 - a constant


class _FileCatalog(NamedTuple):
    """A file's topics as of a version of its catalogue, with their holds; and all its queues, also of topics that
    cannot be read."""

    version: int
    topics: Mapping[Shard, Topic]
    shards: Sequence[Shard]
    holds: Mapping[Shard, TopicHold]


class SqliteCatalog(SqlitePart):
    """Finds topics and queues, and remembers them until something changes: then what changed is read anew."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._by_file: dict[File, _FileCatalog] = {}
        self._parts: Sequence[_FileCatalog] = ()
        self._shards: Sequence[Shard] = []
        self._topics: Mapping[Shard, Topic] = {}
        self._holds: Mapping[Shard, TopicHold] = {}

    async def shards(self) -> Sequence[Shard]:
        """Every queue in name order; the same object while nothing changed."""
        await self._refresh()
        return self._shards

    async def topics(self) -> Mapping[Shard, Topic]:
        """All topics by their first shard; the same object while nothing changed."""
        await self._refresh()
        return self._topics

    async def held(self) -> Mapping[Shard, TopicHold]:
        """All holds by their topic's first shard; the same object while nothing changed."""
        await self._refresh()
        return self._holds

    async def changed(self) -> None:
        """Return when the looks for arrivals have found that the topics of a file were changed, by any process."""
        await self._files.catalogue_news.wait()

    async def released(self) -> frozenset[Shard]:
        """None: no radosgw comes to the queues of this store."""
        return frozenset()

    async def set_released(self, shards: Sequence[Shard], *, released: bool) -> None:
        """Refused: all queues are remora's own."""
        raise ValueError(f"no radosgw comes to {', '.join(each.queue for each in shards)}: released={released}")

    async def peek(self, shard: Shard) -> bytes | None:
        """The first entry of a queue, read without the lock; None when it is empty."""

        def look(connection: sqlite3.Connection) -> bytes | None:
            page = read_page(connection, shard, queue_row(connection, shard), b"", 1)
            if page.corrupt:
                return CorruptBytes(page.entries[0], page.corrupt[0])
            return page.entries[0] if page.entries else None

        return await self._file(shard).read(look)

    async def _refresh(self) -> None:
        """Read what changed. Of a damaged file the last that was known stands."""
        for file in self._files.all:
            with suppress(StoreDamaged):
                known = self._by_file.get(file)
                part = await file.read(lambda connection: _read_catalog(connection, known))  # noqa: B023 - awaited
                if part is not known:
                    self._by_file[file] = part
                    await asyncio.sleep(0)  # thousands of topics take milliseconds a file
        parts = [self._by_file[file] for file in self._files.all if file in self._by_file]
        if [*map(id, parts)] != [*map(id, self._parts)]:  # another refresh may have read them
            self._parts = parts
            self._shards = sorted(chain.from_iterable(part.shards for part in parts), key=lambda shard: shard.queue)
            self._topics = {shard: topic for part in parts for shard, topic in part.topics.items()}
            self._holds = {shard: hold for part in parts for shard, hold in part.holds.items()}


def _read_catalog(connection: sqlite3.Connection, known: _FileCatalog | None) -> _FileCatalog:
    """A file's topics; those that are known when they are of the same version."""
    version = number_fact(connection, "catalogue")
    if known is not None and known.version == version:
        return known
    topics: list[Topic] = []
    shards: list[Shard] = []
    for cells in connection.execute(_TOPICS).fetchall():
        try:
            row = typed(connection, TopicColumns, cells, "topics", str(cells[0]))
        except StoreDamaged as exc:
            _log.error("a topic cannot be used: %s", exc)
            continue
        try:
            topics.append(topic_of_row(row))
        except msgspec.MsgspecError:
            if row[IS_SEQUENCED]:
                continue  # its entries do not tell the topic's id, and must not be sent without their numbers
        with suppress(msgspec.MsgspecError):  # which queues it has had before cannot be read
            shards += LayoutColumns.of(row).queues
    holds = {shard: hold for key, value in connection.execute(_HOLDS) for shard, hold in stored_hold(key, value)}
    return _FileCatalog(version, {topic.first_shard: topic for topic in topics}, shards, holds)
