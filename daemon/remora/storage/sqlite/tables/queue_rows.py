"""A queue's row as it is now, the lock check of each operation on a held queue, and positions as listings show them."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from remora.model.errors import LockLetGo, OwnershipLost, ShardGone
from remora.model.position import Position
from remora.model.shard import LockToken, Shard
from remora.storage.sqlite.tables.clock import boot_id, now_ns
from remora.storage.sqlite.tables.schema import NO_HANDOVER
from remora.storage.sqlite.tables.soundness import typed

_QUEUE = "SELECT id, topic, head, tail, used_bytes, settled, handover FROM queues WHERE name = ?"
_HELD = """
SELECT q.id, q.topic, q.head, q.tail, q.used_bytes, q.settled, q.handover, l.queue IS NOT NULL
FROM queues AS q LEFT JOIN locks AS l
ON l.queue = q.id AND l.entity = ? AND l.cookie = ? AND l.boot = ? AND l.until_ns > ?
WHERE q.name = ? AND q.incarnation = ?
"""
_HOLDER = "SELECT l.entity, l.cookie FROM locks AS l JOIN queues AS q ON q.id = l.queue WHERE q.name = ?"


class QueueRow(NamedTuple):
    """A queue as it is now: entries have the positions from `head` up to `tail`; those from `settled` on are in the
    log. `handover` is as in the schema."""

    id: int
    topic: int
    head: int
    tail: int
    used_bytes: int
    settled: int
    handover: int = NO_HANDOVER


def queue_row(connection: sqlite3.Connection, shard: Shard) -> QueueRow:
    """The queue of this name. Raises ShardGone."""
    row = connection.execute(_QUEUE, (shard.queue,)).fetchone()
    if row is None:
        raise ShardGone(f"there is no queue {shard}")
    return typed(connection, QueueRow, row, "queues", shard.queue)


def held_row(connection: sqlite3.Connection, token: LockToken, entity: str) -> QueueRow:
    """The queue of a hold. Raises ShardGone when it is another one by now, OwnershipLost when its lock has gone."""
    key = (entity, token.cookie, boot_id(), now_ns(), token.shard.queue, token.incarnation)
    row = connection.execute(_HELD, key).fetchone()
    if row is None:
        raise ShardGone(f"the queue {token.shard} that was locked is gone")
    *queue, is_held = row
    if not is_held:
        raise lock_lost(connection, token, entity)
    return typed(connection, QueueRow, queue, "queues", token.shard.queue)


def lock_lost(connection: sqlite3.Connection, token: LockToken, entity: str) -> OwnershipLost:
    """Why a hold is none any more. No two workers have a cookie in common, so a lock of this very worker under another
    entity is one that its store had before it opened its files anew."""
    row = connection.execute(_HOLDER, (token.shard.queue,)).fetchone()
    if row is not None and row[1] == token.cookie and row[0] != entity:
        return LockLetGo(f"the lock of {token.shard} was let go when the files of the store were opened anew")
    return OwnershipLost(f"the lock of {token.shard} is not held by {token.cookie}")


def marker(position: int) -> bytes:
    """A position as it stands in a listing."""
    return b"0/%d" % position


def parsed(text: bytes) -> int:
    """The position of a marker. ValueError for one that no listing of this store has."""
    gen, position = Position.parse(text.decode("ascii"))
    if gen:
        raise ValueError(f"no position that was ever listed: {text!r}")
    return position
