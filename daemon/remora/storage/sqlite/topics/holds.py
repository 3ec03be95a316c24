"""Holds of topics: a row each among the facts of the topic's file, which a daemon of an earlier release passes over."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace

import msgspec

from remora.model.errors import TopicUnknown
from remora.model.shard import Origin, Shard
from remora.model.topic import Topic, TopicHold
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.files.part import SqlitePart

_log = logging.getLogger(__name__)

HOLD = "hold:"
"""The beginning of the key of a hold; its topic's name follows."""

CATALOGUE_CHANGED = "UPDATE meta SET value = value + 1 WHERE key = 'catalogue'"
"""Has every process read the topics of a file anew."""

_EXISTS = "SELECT 1 FROM topics WHERE name = ? AND uid = ?"
_KEEP = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"
_FORGET = "DELETE FROM meta WHERE key = ?"

# A newer version may add fields, which are skipped, but never change these.
_decoder = msgspec.json.Decoder(TopicHold)


class TopicHolds(SqlitePart):
    """Changes holds; `read` is how the catalog, which reads them with the topics, tells of them."""

    def __init__(self, files: Files, read: Callable[[], Awaitable[Mapping[Shard, TopicHold]]]) -> None:
        super().__init__(files)
        self._read = read

    async def held(self) -> Mapping[Shard, TopicHold]:
        """All holds by their topic's first shard; the same object while nothing changed."""
        return await self._read()

    async def set_hold(self, topic: Topic, hold: TopicHold | None) -> None:
        """Hold a topic from now on, or no longer."""
        value = None if hold is None else msgspec.json.encode(replace(hold, topic_id=topic.id)).decode()

        def change(connection: sqlite3.Connection) -> None:
            if connection.execute(_EXISTS, (topic.name, topic.id)).fetchone() is None:
                raise TopicUnknown(f"there is no topic {topic.name} of this id")
            if value is None:
                forget_hold(connection, topic.name)
            else:
                connection.execute(_KEEP, (HOLD + topic.name, value))
            connection.execute(CATALOGUE_CHANGED)

        await self._files.file_of(topic.name).write(change, upkeep=True, changes_topics=True)


def forget_hold(connection: sqlite3.Connection, name: str) -> None:
    """Hold the topic of this name no longer."""
    connection.execute(_FORGET, (HOLD + name,))


def stored_hold(key: str, value: str) -> Iterator[tuple[Shard, TopicHold]]:
    """The hold of a row by its topic's first shard; nothing, and a line in the log, where it cannot be read."""
    name = key.removeprefix(HOLD)
    try:
        yield Shard(name, Origin.REMORA), _decoder.decode(value)
    except msgspec.MsgspecError as exc:
        _log.warning("the hold of topic %s cannot be read, and has no effect: %s", name, exc)
