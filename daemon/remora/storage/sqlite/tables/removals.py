"""Removals from the fronts of queues. Those that come together are requests of one job, and move fronts together."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from remora.model.errors import StoreUnavailable
from remora.model.ledger import Cause, Tally
from remora.model.shard import LockToken
from remora.storage.sqlite.tables import layouts, recent
from remora.storage.sqlite.tables.queue_rows import QueueRow, held_row
from remora.storage.sqlite.tables.schema import AWAITED, ENTRY_OVERHEAD, rowid
from remora.storage.sqlite.tables.write_batch import WriteBatch

_SIZE = "SELECT total(length(data)) FROM settled WHERE id >= ? AND id < ?"
_DELETE = "DELETE FROM settled WHERE id >= ? AND id < ?"


@dataclass(frozen=True, slots=True)
class Removal:
    """The oldest `count` entries of a queue that an entity holds, all those before position `end`, and what becomes of
    them. Carried out, it returns the names of the queues that it frees."""

    token: LockToken
    entity: str
    end: int
    count: int
    tally: Tally

    def __call__(self, batch: WriteBatch) -> Sequence[str]:
        shard, connection = self.token.shard, batch.connection
        queue = held_row(connection, self.token, self.entity)
        if queue.id in batch.fronts:  # another removal of the same job moves it first
            batch.flush()
            queue = held_row(connection, self.token, self.entity)
        if self.end > queue.tail:
            raise ValueError(f"{shard}: nothing was listed up to {self.end}, so nothing may be removed so far")
        if self.end <= queue.head:
            return ()
        if self.end - self.count != queue.head:
            where = f"its front is at {queue.head} by now"
            raise StoreUnavailable(f"{shard} is not removed up to {self.end}: {where}")
        # Nothing is spilled here, and so nothing is exported.
        counts = [count for cause, count in self.tally.items() if cause is not Cause.EXPORTED]
        batch.fronts[queue.id] = (self.end, _taken_out(connection, queue, self.end), *counts)
        if self.end < queue.tail or queue.handover != AWAITED:
            return ()
        batch.flush()
        return layouts.freed_by(connection, queue)


def _taken_out(connection: sqlite3.Connection, queue: QueueRow, end: int) -> int:
    """Delete what has settled up to a position; how many bytes of room all entries up to there had."""
    freed = ENTRY_OVERHEAD * (end - queue.head)
    freed += recent.size(connection, queue.id, max(queue.head, queue.settled), end)
    if queue.head < queue.settled:
        span = rowid(queue.id, queue.head), rowid(queue.id, min(end, queue.settled))
        (nbytes,) = connection.execute(_SIZE, span).fetchone()
        connection.execute(_DELETE, span)
        freed += int(nbytes)
    return freed
