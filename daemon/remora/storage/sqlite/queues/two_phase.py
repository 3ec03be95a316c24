"""The producing side of single queues, as a gateway uses it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import count

from remora.codec.sequence import NUMBER_BYTES, with_number
from remora.model.errors import QueueFull, StoreError, TopicMoved
from remora.model.shard import Shard
from remora.storage.sqlite.files.part import SqlitePart
from remora.storage.sqlite.tables import recent
from remora.storage.sqlite.tables.clock import boot_id, now_ns
from remora.storage.sqlite.tables.queue_rows import QueueRow, queue_row
from remora.storage.sqlite.tables.schema import END_OF_QUEUE, ENTRY_OVERHEAD, PLACES

_HAS_ROOM = """
SELECT used_bytes + reserved_bytes + :overhead * (reserved_entries + :entries) + :nbytes <= capacity_bytes
    AND tail + reserved_entries + :entries <= :last
FROM queues WHERE id = :queue
"""
_RESERVE = """
INSERT INTO queue_reservations (queue, entries, nbytes, boot, created_ns)
VALUES (:queue, :entries, :nbytes, :boot, :now) RETURNING id
"""
_KEEP_ROOM = """
UPDATE queues SET reservations = reservations + 1, reserved_entries = reserved_entries + :entries,
    reserved_bytes = reserved_bytes + :nbytes
WHERE id = :queue
"""
_FIND = "SELECT entries, nbytes FROM queue_reservations WHERE id = ? AND queue = ?"
_MOVE_END = "UPDATE queues SET tail = tail + ?, used_bytes = used_bytes + ? WHERE id = ?"
_STALE = """
SELECT id, entries, nbytes FROM queue_reservations
WHERE queue = ? AND (boot <> ? OR created_ns <= ?)
"""
_END = "DELETE FROM queue_reservations WHERE id = ?"
_SEQUENCE = "SELECT sequence FROM topics WHERE id = ?"
_SET_SEQUENCE = "UPDATE topics SET sequence = ? WHERE id = ?"
_IS_SHUT = f"""
SELECT 1 FROM queues AS q JOIN topics AS t ON t.id = q.topic WHERE q.id = ? AND q.number < t.generation * {PLACES}
"""  # noqa: S608 - a constant of the schema
_GIVE_ROOM_BACK = """
UPDATE queues SET reservations = reservations - 1, reserved_entries = reserved_entries - ?,
    reserved_bytes = reserved_bytes - ?
WHERE id = ?
"""


class SqliteTwoPhase(SqlitePart):
    """Reserves, commits and aborts. Only a commit is synced: no reservation outlives a start of the host."""

    async def reserve(self, shard: Shard, entries: int, nbytes: int) -> int:
        """Reserve room and answer the reservation's id."""

        def reserve(connection: sqlite3.Connection) -> int:
            queue = queue_row(connection, shard)
            _check_takes(connection, queue, shard)
            numbers = 0 if _sequence(connection, queue) is None else NUMBER_BYTES * entries
            asked = {"queue": queue.id, "entries": entries, "nbytes": nbytes + numbers}
            limits = {"overhead": ENTRY_OVERHEAD, "last": END_OF_QUEUE}
            (has_room,) = connection.execute(_HAS_ROOM, asked | limits).fetchone()
            if not has_room:
                raise QueueFull(f"{shard} has no room for {entries} entries of {nbytes} bytes")
            (number,) = connection.execute(_RESERVE, asked | {"boot": boot_id(), "now": now_ns()}).fetchone()
            connection.execute(_KEEP_ROOM, asked)
            return int(number)

        return await self._file(shard).write(reserve, durable=False)

    async def commit(self, shard: Shard, reservation: int, payloads: Sequence[bytes]) -> None:
        """Append the payloads in order, all or none, and end the reservation."""
        what = f"committing to {shard}"

        def commit(connection: sqlite3.Connection) -> None:
            queue = queue_row(connection, shard)
            _check_takes(connection, queue, shard)
            reserved = connection.execute(_FIND, (reservation, queue.id)).fetchone()
            if reserved is None:
                raise StoreError(f"{what}: there is no reservation {reservation}; it may have expired")
            entries = _numbered(connection, queue, payloads)
            nbytes = sum(map(len, entries))
            if len(entries) > reserved[0] or nbytes > reserved[1]:
                raise StoreError(f"{what}: the payloads are larger than their reservation")
            recent.append(connection, [(queue.id, queue.tail, entries)])
            used = nbytes + ENTRY_OVERHEAD * len(entries)
            connection.execute(_MOVE_END, (len(entries), used, queue.id))
            _end(connection, queue, reservation, *reserved)

        await self._file(shard).write(commit, durable=True, arrived=[shard])

    async def abort(self, shard: Shard, reservation: int) -> None:
        """End the reservation; unknown ones are no error."""

        def abort(connection: sqlite3.Connection) -> None:
            queue = queue_row(connection, shard)
            if reserved := connection.execute(_FIND, (reservation, queue.id)).fetchone():
                _end(connection, queue, reservation, *reserved)

        await self._file(shard).write(abort, durable=False, upkeep=True)


def _check_takes(connection: sqlite3.Connection, queue: QueueRow, shard: Shard) -> None:
    """Raise TopicMoved for a queue of a former layout: nothing lands there any longer."""
    if connection.execute(_IS_SHUT, (queue.id,)).fetchone():
        raise TopicMoved(f"{shard} takes no events: its topic has another number of shards by now")


def _sequence(connection: sqlite3.Connection, queue: QueueRow) -> int | None:
    """The last number of the queue's topic; None where it numbers no events."""
    (last,) = connection.execute(_SEQUENCE, (queue.topic,)).fetchone()
    return None if last is None else int(last)


def _numbered(connection: sqlite3.Connection, queue: QueueRow, payloads: Sequence[bytes]) -> Sequence[bytes]:
    """The payloads as they are stored: with the next numbers of the topic, where it has a sequence."""
    last = _sequence(connection, queue)
    if last is None:
        return payloads
    connection.execute(_SET_SEQUENCE, (last + len(payloads), queue.topic))
    return list(map(with_number, payloads, count(last + 1)))


def expire_stale(connection: sqlite3.Connection, queue: QueueRow, older_than_ns: int) -> None:
    """End a queue's reservations that are older than this, and all that an earlier start of the host has left."""
    stale = connection.execute(_STALE, (queue.id, boot_id(), now_ns() - older_than_ns)).fetchall()
    for reservation, entries, nbytes in stale:
        _end(connection, queue, reservation, entries, nbytes)


def _end(connection: sqlite3.Connection, queue: QueueRow, reservation: int, entries: int, nbytes: int) -> None:
    connection.execute(_END, (reservation,))
    connection.execute(_GIVE_ROOM_BACK, (entries, nbytes, queue.id))
