"""The committed entries of held queues, and how often they were tried in vain. Lock and incarnation are checked in each
transaction itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from remora.codec.attempts import decode_attempts, encode_attempts
from remora.model.errors import OwnershipLost, ShardGone, StoreDamaged, StoreError, StoreUnavailable
from remora.model.ledger import Cause, Tally
from remora.model.record import Attempt, Page
from remora.model.shard import LockToken, Origin, Shard
from remora.storage.sqlite import layouts, recent
from remora.storage.sqlite.file import File
from remora.storage.sqlite.ingest import expire as expire_events
from remora.storage.sqlite.part import QueueRow, SqlitePart, held_row, marker, parsed
from remora.storage.sqlite.schema import ENTRY_OVERHEAD, rowid
from remora.storage.sqlite.soundness import changed
from remora.storage.sqlite.two_phase import expire_stale

MOST_BYTES = 4 << 20
"""A listing ends soon after this many bytes, however many entries were asked for: their size is not known before the
first listing."""

_ROWS_AT_ONCE = 32

# The casts change nothing but where a row is damaged so that its values have other types.
_LIST = """
SELECT ifnull(CAST(data AS BLOB), x''), CAST(checksum AS INTEGER) FROM settled WHERE id >= ? AND id < ? ORDER BY id
"""
_COUNT = "SELECT count(*) FROM settled WHERE id >= ? AND id < ?"
_SIZE = "SELECT total(length(data)) FROM settled WHERE id >= ? AND id < ?"
_DELETE = "DELETE FROM settled WHERE id >= ? AND id < ?"
_MOVE_FRONT = """
UPDATE queues SET head = ?, used_bytes = ?, delivered = delivered + ?, dead_lettered = dead_lettered + ?,
    expired = expired + ?, dropped = dropped + ?, removed_elsewhere = removed_elsewhere + ?
WHERE id = ?
"""
_WITH_RESERVATIONS = """
SELECT name FROM queues WHERE reservations > 0 OR topic IN (SELECT topic FROM reservations WHERE state = 'open')
"""  # one of a topic may have outlived the queues that it had room in


class SqliteQueue(SqlitePart):
    """Lists, removes and frees room in held queues."""

    poll_cost_s = 0.00005
    """One read of an index, on this host."""

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        """Up to `limit` entries from position `start` on; from the oldest one when `start` is empty.

        Read in the event loop: a thread would wait for the interpreter at each row.
        """
        return await self._file(token.shard).read(
            lambda connection: _read_held(connection, token.shard, held_row(connection, token, self._me), start, limit)
        )

    async def remove(self, token: LockToken, upto: bytes, count: int, tally: Tally) -> None:
        """Remove the oldest `count` entries, all those before position `upto`, and add the tally to the ledger.

        Not synced: after a power cut they are delivered again.
        """
        end = parsed(upto)
        if tally.total != count:
            raise ValueError(f"{token.shard}: a tally of {tally.total} for the removal of {count} entries")

        def remove(connection: sqlite3.Connection) -> Sequence[str]:
            queue = held_row(connection, token, self._me)
            if end > queue.tail:
                raise ValueError(f"{token.shard}: nothing was listed up to {end}, so nothing may be removed so far")
            if end <= queue.head:
                return ()
            if end - count != queue.head:
                raise StoreUnavailable(f"{token.shard} is not removed up to {end}: its front is at {queue.head} by now")
            _remove(connection, queue, end, tally)
            forget_attempts(connection, queue, end)
            return layouts.freed_by(connection, queue) if end == queue.tail else ()

        file = self._file(token.shard)
        if freed := await file.write(remove, durable=False, upkeep=True):
            file.ring([Shard(name, Origin.REMORA) for name in freed])

    async def expire_all(self, tokens: Sequence[LockToken], older_than_s: float) -> Sequence[StoreError | None]:
        """Expire in several queues; where there are no reservations, which is usual, a look at each file is enough."""
        return await self._in_each_file(tokens, lambda file, of_file: self._expire_in(file, of_file, older_than_s))

    async def _expire_in(
        self, file: File, tokens: Sequence[LockToken], older_than_s: float
    ) -> dict[LockToken, StoreError]:
        """Expire in queues of one file; which holds turned out to be lost."""
        names = await file.read(lambda connection: {name for (name,) in connection.execute(_WITH_RESERVATIONS)})
        due = [token for token in tokens if token.shard.queue in names]

        def expire(connection: sqlite3.Connection) -> dict[LockToken, StoreError]:
            lost: dict[LockToken, StoreError] = {}
            queues: list[QueueRow] = []
            for token in due:
                try:
                    queues.append(held_row(connection, token, self._me))
                except (OwnershipLost, ShardGone) as exc:
                    lost[token] = exc
            older_than_ns = int(older_than_s * 1e9)
            for queue in queues:
                expire_stale(connection, queue, older_than_ns)
            for topic in {queue.topic for queue in queues}:
                expire_events(connection, topic, older_than_ns)
            return lost

        return await file.write(expire, durable=False, upkeep=True) if due else {}

    @property
    def _me(self) -> str:
        return self._files.owner.entity


def _read_held(connection: sqlite3.Connection, shard: Shard, queue: QueueRow, start: bytes, limit: int) -> Page:
    """As `read_page`, for the queue's owner: nothing while the queue is held back by what waits in its parents.

    Parents and queue are looked at in one moment, so an owner whose view of the topic is old waits, and overtakes none.
    """
    if why := layouts.held_back_by(connection, queue):
        return Page([marker(queue.head)], [], truncated=False, held_back=why)
    page = read_page(connection, shard, queue, start, limit)
    if not queue.head and page.entries and page.positions[0] == marker(0):
        after = layouts.ends_of_parents(connection, queue)
        return replace(page, after=after) if after else page
    return page


def read_page(connection: sqlite3.Connection, shard: Shard, queue: QueueRow, start: bytes, limit: int) -> Page:
    """Entries of a queue from a position on, or from its front when that has passed it."""
    first = max(queue.head, parsed(start) if start else 0)
    end = min(first + limit, queue.tail)
    entries, corrupt = _data(connection, queue, first, end)
    if len(entries) != max(0, end - first) and not _was_cut_short(connection, queue, first, entries):
        raise StoreDamaged(f"{shard} has lost entries: {len(entries)} are left of {end - first} that were stored")
    behind = first + len(entries)
    positions = [marker(position) for position in range(first, behind + 1)]
    return Page(positions, entries, behind < queue.tail, corrupt)


def _data(connection: sqlite3.Connection, queue: QueueRow, first: int, end: int) -> tuple[list[bytes], dict[int, str]]:
    """What is stored from a position on, up to `end` or until it is a lot, and what is corrupt of it."""
    entries: list[bytes] = []
    corrupt: dict[int, str] = {}
    nbytes = 0
    for rows in _stored(connection, queue, first, end):
        more = [data for data, _ in rows]
        nbytes += sum(map(len, more))
        for i, why in changed(queue.id, first + len(entries), rows).items():
            corrupt[len(entries) + i] = why
        entries += more
        if nbytes >= MOST_BYTES:
            break
    return entries, corrupt


def _stored(connection: sqlite3.Connection, queue: QueueRow, first: int, end: int) -> Iterator[Sequence[recent.Entry]]:
    """What is stored from one position up to another, a few entries at a time: what has settled, then the log.

    Nothing of the log where entries before it are missing.
    """
    place = first
    if first < queue.settled:
        cursor = connection.execute(_LIST, (rowid(queue.id, first), rowid(queue.id, min(end, queue.settled))))
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            place += len(rows)
            yield rows
    if place >= queue.settled:
        yield from recent.entries(connection, queue.id, place, end)


def present(connection: sqlite3.Connection, queue: QueueRow, first: int, end: int) -> int:
    """How many entries are there from one position up to another."""
    found = 0
    if first < queue.settled:
        (found,) = connection.execute(
            _COUNT, (rowid(queue.id, first), rowid(queue.id, min(end, queue.settled)))
        ).fetchone()
    return int(found) + recent.count(connection, queue.id, max(first, queue.settled), end)


def _was_cut_short(connection: sqlite3.Connection, queue: QueueRow, first: int, entries: Sequence[bytes]) -> bool:
    """Whether these were a lot, and none is missing among them."""
    count = present(connection, queue, first, first + len(entries))
    return sum(map(len, entries)) >= MOST_BYTES and count == len(entries)


def _remove(connection: sqlite3.Connection, queue: QueueRow, end: int, tally: Tally) -> None:
    freed = ENTRY_OVERHEAD * (end - queue.head)
    if queue.head < queue.settled:
        span = rowid(queue.id, queue.head), rowid(queue.id, min(end, queue.settled))
        (nbytes,) = connection.execute(_SIZE, span).fetchone()
        connection.execute(_DELETE, span)
        freed += int(nbytes)
    freed += recent.size(connection, queue.id, max(queue.head, queue.settled), end)
    counts = [count for cause, count in tally.items() if cause is not Cause.EXPORTED]  # nothing is spilled here
    connection.execute(_MOVE_FRONT, (end, queue.used_bytes - freed, *counts, queue.id))


_NOTE = "INSERT OR REPLACE INTO attempts (queue, last, noted) VALUES (?, ?, ?)"
_NOTED = "SELECT noted FROM attempts WHERE queue = ?"
_FORGET = "DELETE FROM attempts WHERE queue = ? AND last < ?"


class SqliteAttempts(SqlitePart):
    """Keeps attempts. Not synced: after a power cut entries are tried once more, at worst."""

    async def note(self, token: LockToken, attempts: Mapping[bytes, Attempt]) -> None:
        """Keep these in place of all that were kept before."""
        last = max(map(parsed, attempts), default=-1)
        value = encode_attempts(attempts)

        def note(connection: sqlite3.Connection) -> None:
            queue = held_row(connection, token, self._me)
            if attempts:
                connection.execute(_NOTE, (queue.id, last, value))
            else:
                forget_attempts(connection, queue, queue.tail)

        await self._file(token.shard).write(note, durable=False, upkeep=True)

    async def noted(self, token: LockToken) -> Mapping[bytes, Attempt]:
        """What was kept last."""

        def noted(connection: sqlite3.Connection) -> bytes | None:
            queue = held_row(connection, token, self._me)
            row = connection.execute(_NOTED, (queue.id,)).fetchone()
            return row[0] if row else None

        value = await self._file(token.shard).read(noted)
        return decode_attempts(value) if value is not None else {}

    @property
    def _me(self) -> str:
        return self._files.owner.entity


def forget_attempts(connection: sqlite3.Connection, queue: QueueRow, end: int) -> None:
    """Within a transaction that removes the entries before `end`, forget the attempts if those were all."""
    connection.execute(_FORGET, (queue.id, end))
