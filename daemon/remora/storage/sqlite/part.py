"""What the parts of the store share: finding a queue, and the lock check of each operation on a held queue."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from remora.model.errors import OwnershipLost, ShardGone, StoreError
from remora.model.position import Position
from remora.model.shard import LockHolder, LockToken, Shard
from remora.model.topic import own_topic_name
from remora.storage.sqlite.clock import boot_id, now_ns
from remora.storage.sqlite.file import File
from remora.storage.sqlite.files import Files
from remora.storage.sqlite.schema import NO_HANDOVER
from remora.storage.sqlite.soundness import typed

_QUEUE = "SELECT id, topic, head, tail, used_bytes, settled, handover FROM queues WHERE name = ?"
_HELD = """
SELECT q.id, q.topic, q.head, q.tail, q.used_bytes, q.settled, q.handover, l.queue IS NOT NULL
FROM queues AS q LEFT JOIN locks AS l
ON l.queue = q.id AND l.entity = ? AND l.cookie = ? AND l.boot = ? AND l.until_ns > ?
WHERE q.name = ? AND q.incarnation = ?
"""


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


class SqlitePart:
    """The base of the store's parts, which share its files."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def _file(self, shard: Shard) -> File:
        return self._files.file_of(own_topic_name(shard.queue))

    async def _in_each_file(
        self,
        tokens: Sequence[LockToken],
        act: Callable[[File, Sequence[LockToken]], Awaitable[dict[LockToken, StoreError]]],
    ) -> Sequence[StoreError | None]:
        """What became of each hold, where those of a file are done together and `act` names the lost ones."""
        by_file: defaultdict[File, list[LockToken]] = defaultdict(list)
        for token in tokens:
            by_file[self._file(token.shard)].append(token)
        lost: dict[LockToken, StoreError] = {}

        async def one(file: File, of_file: Sequence[LockToken]) -> None:
            try:
                lost.update(await act(file, of_file))
            except StoreError as exc:
                lost.update(dict.fromkeys(of_file, exc))

        await asyncio.gather(*(one(file, of_file) for file, of_file in by_file.items()))
        return [lost.get(token) for token in tokens]


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
        raise OwnershipLost(f"the lock of {token.shard} is not held by {token.cookie}")
    return typed(connection, QueueRow, queue, "queues", token.shard.queue)


def holder_of(files: Files, entity: str, cookie: str, boot: str, until_ns: int) -> LockHolder:
    """Who has a lock by its row, with nothing left of a lease that does not count any more."""
    left_s = max(0.0, (until_ns - now_ns()) / 1e9) if boot == boot_id() else 0.0
    if left_s and files.owner.is_dead(entity):
        left_s = 0.0
    return LockHolder(entity, cookie, left_s)


def marker(position: int) -> bytes:
    """A position as it stands in a listing."""
    return b"0/%d" % position


def parsed(text: bytes) -> int:
    """The position of a marker. ValueError for one that no listing of this store has."""
    gen, position = Position.parse(text.decode("ascii"))
    if gen:
        raise ValueError(f"no position that was ever listed: {text!r}")
    return position
