"""Making, changing and removing topics, each in one transaction with its queues."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from remora.codec.sequence import number_of
from remora.model.errors import (
    StoreError,
    StoreUnavailable,
    TopicNotSequenced,
    TopicRefused,
    TopicUnknown,
)
from remora.model.ingest import Removed
from remora.model.ledger import FormerQueue
from remora.model.shard import Origin
from remora.model.topic import MOST_SHARDS, NAME, SequenceState, Topic
from remora.model.words import several
from remora.policy.ingest.notification_rules import check_removal
from remora.storage.sqlite.files.directories import generation_in
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.files.part import SqlitePart
from remora.storage.sqlite.tables import layouts, recent
from remora.storage.sqlite.tables.attributes import COLUMNS, TopicColumns, encoded, topic_of_row
from remora.storage.sqlite.tables.schema import LAST_QUEUE_ID, PLACES, POSITION_BITS, rowid
from remora.storage.sqlite.tables.soundness import changed, row_damaged, typed
from remora.storage.sqlite.topics.holds import CATALOGUE_CHANGED, forget_hold
from remora.storage.sqlite.topics.notifications import StoredNotifications

_TOPIC = f"SELECT {COLUMNS} FROM topics WHERE name = ?"  # noqa: S608 - a constant
_FIND = "SELECT id, shards, sequence FROM topics WHERE name = ? AND uid = ?"
_ADD_TOPIC = """
INSERT INTO topics (name, uid, shards, closed, sequence, attributes) VALUES (?, ?, ?, ?, ?, ?) RETURNING id
"""
_ADD_QUEUE = "INSERT INTO queues (topic, number, name, incarnation, capacity_bytes) VALUES (?, ?, ?, ?, ?)"
_CHANGE = "UPDATE topics SET closed = ?, attributes = ? WHERE id = ?"
_SET_CAPACITY = "UPDATE queues SET capacity_bytes = ? WHERE topic = ?"
_LAST_QUEUE = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'queues'"
_WAITING = "SELECT total(tail - head) FROM queues WHERE topic = ?"
_LEAVE_ENTRIES = "INSERT INTO leftovers SELECT id, head, settled FROM queues WHERE topic = ? AND settled > head"
_FORMER_ENTRIES = f"""
SELECT 1 FROM topics AS t JOIN queues AS q ON q.topic = t.id
WHERE t.name = ? AND t.uid = ? AND q.number < t.generation * {PLACES} AND q.tail > q.head LIMIT 1
"""  # noqa: S608 - a constant of the schema
_REMOVE = (
    "DELETE FROM locks WHERE queue IN (SELECT id FROM queues WHERE topic = ?)",
    "DELETE FROM attempts WHERE queue IN (SELECT id FROM queues WHERE topic = ?)",
    "DELETE FROM queue_reservations WHERE queue IN (SELECT id FROM queues WHERE topic = ?)",
    "DELETE FROM reservations WHERE topic = ? AND state = 'open'",
    "DELETE FROM queues WHERE topic = ?",
    "DELETE FROM former_queues WHERE topic = ?",
    "DELETE FROM peaks WHERE topic = ?",
    "DELETE FROM topics WHERE id = ?",
)

_FRONTS = f"""
SELECT q.id, q.head, q.settled, CAST(e.data AS BLOB), CAST(e.checksum AS INTEGER) FROM queues AS q
LEFT JOIN settled AS e ON e.id = (q.id << {POSITION_BITS} | q.head)
WHERE q.topic = ? AND q.tail > q.head
"""  # noqa: S608 - a constant of the schema

_SWEPT_AT_ONCE = 1000
_AGAIN_S = 5.0
"""How long nothing more is swept after a transaction that was not committed."""

_LEFT = """
SELECT queue, head, tail FROM leftovers WHERE typeof(head) = 'integer' AND typeof(tail) = 'integer' LIMIT 1
"""
"""Damage of one row keeps nothing of the others: `store check` names it."""
_DELETE_ENTRIES = "DELETE FROM settled WHERE id >= ? AND id < ?"
_LESS_LEFT = "UPDATE leftovers SET head = ? WHERE queue = ?"
_NOTHING_LEFT = "DELETE FROM leftovers WHERE queue = ?"


class Topics(SqlitePart):
    """Topics of remora's own: all that this store has."""

    def __init__(self, files: Files, notifications: StoredNotifications) -> None:
        super().__init__(files)
        self._notifications = notifications

    async def find(self, name: str) -> Topic | None:
        """The topic of this name as it is now; None where there is none."""
        found = await self._files.file_of(name).read(lambda connection: _stored(connection, name))
        if found is None:
            self._files.check_placed()
        return found

    async def create(self, topic: Topic) -> Topic:
        """Make a topic with its empty queues, all or nothing, and answer it with its id."""
        _check_origin(topic)
        if not NAME.fullmatch(topic.name):
            raise TopicRefused(f'"{topic.name}" is no name for a topic: 1 to 200 letters, digits, "_" and "-" are')
        _check_shards(topic.shards)
        self._files.check_placed()
        uid, attributes, generation = secrets.token_hex(8), _encoded(topic), self._files.placement.generation

        def create(connection: sqlite3.Connection) -> None:
            if generation_in(connection) != generation:
                raise StoreUnavailable("the directories of the store are being changed: try again")
            if connection.execute(_TOPIC, (topic.name,)).fetchone():
                raise TopicRefused(f"there is a topic {topic.name} already")
            (last,) = connection.execute(_LAST_QUEUE).fetchone()
            if last + topic.shards > LAST_QUEUE_ID:
                raise TopicRefused(f"the file for {topic.name} has had as many queues as it ever can: use another name")
            row = (topic.name, uid, topic.shards, topic.closed, 0 if topic.is_sequenced else None, attributes)
            (number,) = connection.execute(_ADD_TOPIC, row).fetchone()
            capacity = self._capacity(topic)
            shards = enumerate(replace(topic, queue=topic.name, generation=0).open_shards())
            connection.executemany(
                _ADD_QUEUE, [(number, i, shard.queue, secrets.token_hex(8), capacity) for i, shard in shards]
            )
            connection.execute(CATALOGUE_CHANGED)

        file = self._files.file_of(topic.name)
        await file.write(create, changes_topics=True)
        return topic_of_row((topic.name, uid, topic.shards, topic.closed, topic.is_sequenced, 0, "[]", attributes))

    async def change(self, topic: Topic) -> None:
        """Replace the attributes of the topic of this name and id; never its layouts, nor its sequence."""
        _check_origin(topic)
        attributes = _encoded(topic)

        def change(connection: sqlite3.Connection) -> None:
            number, shards, sequence = _found(connection, topic)
            if (sequence is not None) != topic.is_sequenced:
                numbers = "no" if sequence is None else "its"
                raise TopicRefused(
                    f"{topic.name} numbers {numbers} events, and keeps to that: make a topic of another name, and"
                    " remove this one when it is drained"
                )
            if shards != topic.shards:
                raise TopicRefused(
                    f"{topic.name} has {several(shards, 'shard')}, not {topic.shards}: `reshard` changes that"
                )
            was = _stored(connection, topic.name)
            if was and was.capacity_bytes != topic.capacity_bytes:
                connection.execute(_SET_CAPACITY, (self._capacity(topic), number))
            connection.execute(_CHANGE, (topic.closed, attributes, number))
            connection.execute(CATALOGUE_CHANGED)

        # It is upkeep, since it also mends a topic that fills the disk.
        await self._files.file_of(topic.name).write(change, upkeep=True, changes_topics=True)

    async def reshard(self, topic: Topic, shards: int) -> Topic:
        """Give a topic another number of shards, in one transaction that makes the new queues and shuts the old ones.

        Synced, as everything that decides where events go.
        """
        _check_origin(topic)
        _check_shards(shards)

        def reshard(connection: sqlite3.Connection) -> Topic:
            number, *_ = _found(connection, topic)
            now = _stored(connection, topic.name) or topic
            layouts.change(connection, number, shards, self._capacity(now))
            return _stored(connection, topic.name) or topic

        return await self._files.file_of(topic.name).write(reshard, changes_topics=True)

    async def forget_former(self, topic: Topic) -> bool:
        """Remove the former layouts of a topic where nothing is left in them; whether any went."""

        def forget(connection: sqlite3.Connection) -> bool:
            return layouts.forget(connection, _found(connection, topic)[0])

        file = self._files.file_of(topic.name)
        if await file.read(lambda connection: connection.execute(_FORMER_ENTRIES, (topic.name, topic.id)).fetchone()):
            return False
        return await file.write(forget, upkeep=True, changes_topics=True)

    async def former_queues(self, topic: Topic) -> Sequence[FormerQueue]:
        """The queues that went with their layouts, oldest first."""
        return await self._files.file_of(topic.name).read(
            lambda connection: layouts.former_queues(connection, _found(connection, topic)[0])
        )

    async def remove(self, topic: Topic, *, discard: bool) -> Removed:
        """Remove a topic with its queues at once; the room of entries that are given up comes back little by little."""
        _check_origin(topic)

        def remove(connection: sqlite3.Connection) -> Removed:
            number, shards, _ = _found(connection, topic)
            entries = int(connection.execute(_WAITING, (number,)).fetchone()[0])
            if entries and not discard:
                waiting = several(entries, f"entry of {topic.name} waits", f"entries of {topic.name} wait")
                raise TopicRefused(f"{waiting}: have it delivered, or discard it")
            connection.execute(_LEAVE_ENTRIES, (number,))
            for statement in _REMOVE:
                connection.execute(statement, (number,))
            forget_hold(connection, topic.name)
            connection.execute(CATALOGUE_CHANGED)
            return Removed(shards, entries)

        file = self._files.file_of(topic.name)
        async with self._notifications.unchanged(file) as definitions:
            check_removal(topic.name, definitions)
            removed = await file.write(remove, upkeep=True, changes_topics=True)
        _sweep(file)
        return removed

    async def sequence(self, topic: Topic) -> SequenceState:
        """How far the topic's sequence has come, all of one moment."""
        _check_origin(topic)

        def look(connection: sqlite3.Connection) -> SequenceState:
            number, _, tail = _found(connection, topic)
            if tail is None:
                raise TopicNotSequenced(f"topic {topic.name} numbers no events: it was made without --sequence")
            return SequenceState(tail, min(_passed(connection, number), default=tail))

        return await self._files.file_of(topic.name).read(look)

    def _capacity(self, topic: Topic) -> int:
        """The most that a queue of the topic may hold where that is decided now."""
        return self._files.settings.queue_bytes if topic.capacity_bytes is None else topic.capacity_bytes


async def sweep_all(files: Files) -> None:
    """Go on with the removals that were cut short when the store was last closed."""
    for file in files.sound:
        with suppress(StoreError):  # a file that cannot be read says so to those who need it
            if await file.read(lambda connection: connection.execute(_LEFT).fetchone()):
                _sweep(file)


def _sweep(file: File) -> None:
    """Delete the entries that removed topics left, a few in a transaction, so that no other job waits for long.

    The next transaction is asked for when one is committed, and a while after one that was not.
    """

    def go_on(is_more: bool | BaseException) -> None:
        if isinstance(is_more, BaseException):
            asyncio.get_running_loop().call_later(_AGAIN_S, file.post, _delete_some, go_on)
        elif is_more:
            file.post(_delete_some, go_on)

    file.post(_delete_some, go_on)


def _delete_some(connection: sqlite3.Connection) -> bool:
    """Whether there may be more."""
    left = connection.execute(_LEFT).fetchone()
    if left is None:
        recent.free_pages(connection)
        return False
    queue, head, tail = left
    end = min(head + _SWEPT_AT_ONCE, tail)
    connection.execute(_DELETE_ENTRIES, (rowid(queue, head), rowid(queue, end)))
    connection.execute(*((_LESS_LEFT, (end, queue)) if end < tail else (_NOTHING_LEFT, (queue,))))
    return True


def _check_shards(shards: int) -> None:
    if not 1 <= shards <= MOST_SHARDS:
        raise TopicRefused(f"a topic has 1 to {MOST_SHARDS} shards, not {shards}")


def _check_origin(topic: Topic) -> None:
    if topic.origin is not Origin.REMORA:
        raise TopicRefused(f"topic {topic.name} is a radosgw's: it is made, changed and removed there")


def _passed(connection: sqlite3.Connection, topic: int) -> Iterator[int]:
    """For each queue that has entries: the last number before that of its oldest one, 0 where that is unreadable."""
    for queue, head, settled, data, checksum in connection.execute(_FRONTS, (topic,)).fetchall():
        if head >= settled:
            data, checksum = recent.entry(connection, queue, head) or (None, None)
        number = None if data is None or changed(queue, head, [(data, checksum)]) else number_of(data)
        yield 0 if number is None else number - 1


def _stored(connection: sqlite3.Connection, name: str) -> Topic | None:
    """The topic of this name; None where there is none. Raises StoreDamaged."""
    if (cells := connection.execute(_TOPIC, (name,)).fetchone()) is None:
        return None
    row = typed(connection, TopicColumns, cells, "topics", name)
    try:
        return topic_of_row(row)
    except msgspec.MsgspecError as exc:
        raise row_damaged(connection, "topics", name, f"attributes: {exc}") from exc


def _found(connection: sqlite3.Connection, topic: Topic) -> tuple[int, int, int | None]:
    """Number, shards and last number of a topic. Raises TopicUnknown."""
    row = connection.execute(_FIND, (topic.name, topic.id)).fetchone()
    if row is None:
        raise TopicUnknown(f"there is no topic {topic.name} of this id")
    return row[0], row[1], row[2]


def _encoded(topic: Topic) -> bytes:
    try:
        return encoded(topic)
    except ValueError as exc:
        raise TopicRefused(f"the attributes of {topic.name} are not text: {exc}") from exc
