"""The balance of each queue: what commits and removals have booked in its row, and the entries that really are there.

A commit moves the queue's tail in its own transaction, so the tail tells what was committed; a removal books its causes
in its own. An entry that is missing between front and tail never comes back, so entries may be counted piece by piece.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from remora.model.errors import RowDamaged, ShardGone, StoreError
from remora.model.ledger import Balance, Tally
from remora.model.shard import LockToken, Shard
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.part import SqlitePart
from remora.storage.sqlite.queues.queue import present
from remora.storage.sqlite.tables.queue_rows import QueueRow
from remora.storage.sqlite.tables.soundness import typed

_PAGE = 4096

_COUNTED = 16_384
_COUNTED_EACH = 16
"""How many entries are looked at together by one look at many queues, and in each at least. Those behind them are
looked at when they have come to the front, which is before they are read to be delivered."""

_COLUMNS = (
    "name, incarnation, id, topic, used_bytes, settled, begun, head, tail, delivered, dead_lettered, expired, dropped,"
    " removed_elsewhere"
)
_ONE = f"SELECT {_COLUMNS} FROM queues WHERE name = ?"  # noqa: S608 - a constant
_ALL = f"SELECT {_COLUMNS} FROM queues"  # noqa: S608 - a constant


class _LedgerRow(NamedTuple):
    """A queue's ledger as it is now."""

    name: str
    incarnation: str
    id: int
    topic: int
    used_bytes: int
    settled: int
    begun: int
    head: int
    tail: int
    delivered: int
    dead_lettered: int
    expired: int
    dropped: int
    removed_elsewhere: int

    def balance(self, shard: Shard, missing: int) -> Balance:
        """The balance, where `missing` of the entries from head up to tail are missing."""
        removed = Tally(self.delivered, self.dead_lettered, self.expired, self.dropped, self.removed_elsewhere)
        return Balance(shard, self.tail - self.begun, self.tail - self.head - missing, removed)


class SqliteLedger(SqlitePart):
    """Looks at the balances of queues."""

    async def balance(self, shard: Shard) -> Balance:
        """One shard's balance, with every entry looked at, a page at a time."""
        file = self._file(shard)
        row = await file.read(lambda connection: _row(connection, shard.queue))
        place, missing = row.head, 0
        while place < row.tail:
            place, lost = await file.read(lambda connection: _missing(connection, row, place))  # noqa: B023 - awaited
            missing += lost
            await asyncio.sleep(0)  # others have their turn
        return row.balance(shard, missing)

    async def balances(self, tokens: Sequence[LockToken]) -> Sequence[Balance]:
        """The balances of held shards, where the oldest entries of each are looked at; without damaged files."""
        wanted: defaultdict[File, dict[str, LockToken]] = defaultdict(dict)
        for token in tokens:
            wanted[self._file(token.shard)][token.shard.queue] = token
        found: list[Balance] = []
        for file, of_file in wanted.items():
            with suppress(StoreError):
                found += await self._of_file(file, of_file, len(wanted))
        return found

    async def _of_file(self, file: File, wanted: dict[str, LockToken], files: int) -> list[Balance]:
        rows = await file.read(_sound_rows)
        await asyncio.sleep(0)  # others have their turn between two files, and between two queues
        ours = [row for row in rows if row.name in wanted and row.incarnation == wanted[row.name].incarnation]
        empty = [row for row in ours if row.head == row.tail]
        found = [row.balance(wanted[row.name].shard, 0) for row in empty]
        full = [row.name for row in ours if row.head < row.tail]
        each = max(_COUNTED_EACH, _COUNTED // max(1, len(full) * files))
        for name in full:
            with suppress(ShardGone, RowDamaged):
                found.append(await file.read(lambda connection: _front(connection, wanted[name], each)))  # noqa: B023 - awaited
            await asyncio.sleep(0)
        return found


def _sound_rows(connection: sqlite3.Connection) -> list[_LedgerRow]:
    """All ledgers, without those that cannot be read: their owners meet that."""
    found = []
    for row in connection.execute(_ALL):
        with suppress(RowDamaged):
            found.append(typed(connection, _LedgerRow, row, "queues", str(row[0])))
    return found


def _row(connection: sqlite3.Connection, queue: str) -> _LedgerRow:
    row = connection.execute(_ONE, (queue,)).fetchone()
    if row is None:
        raise ShardGone(f"there is no queue {queue}")
    return typed(connection, _LedgerRow, row, "queues", queue)


def _front(connection: sqlite3.Connection, token: LockToken, most: int) -> Balance:
    """A balance for which the oldest entries are looked at."""
    row = _row(connection, token.shard.queue)
    if row.incarnation != token.incarnation:
        raise ShardGone(f"the queue {token.shard} that was locked is gone")
    return row.balance(token.shard, _lost(connection, row, row.head, min(row.head + most, row.tail)))


def _missing(connection: sqlite3.Connection, seen: _LedgerRow, place: int) -> tuple[int, int]:
    """How far a page of a queue that was seen before goes from a place on, and how many entries are missing in it.

    Those that have been removed meanwhile count as having been there.
    """
    now = _row(connection, seen.name)
    if now.incarnation != seen.incarnation:
        raise ShardGone(f"the queue {seen.name} is another one by now")
    start = max(place, now.head)
    end = min(start + _PAGE, seen.tail)
    return max(start, end), _lost(connection, now, start, end)


def _lost(connection: sqlite3.Connection, row: _LedgerRow, start: int, end: int) -> int:
    """How many entries are missing of those from one position up to another."""
    if end <= start:
        return 0
    queue = QueueRow(row.id, row.topic, row.head, row.tail, row.used_bytes, row.settled)
    return end - start - present(connection, queue, start, end)
