"""The committed entries of held queues. Lock and incarnation are checked in each transaction itself."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from remora.model.errors import OwnershipLost, RowDamaged, ShardGone, StoreDamaged, StoreError
from remora.model.ledger import Tally
from remora.model.record import Page
from remora.model.shard import LockToken, Origin, Shard
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.files.part import SqlitePart
from remora.storage.sqlite.ingest.group_commit import GroupCommit
from remora.storage.sqlite.ingest.one_topic import expire as expire_events
from remora.storage.sqlite.queues.two_phase import expire_stale
from remora.storage.sqlite.tables import layouts, recent
from remora.storage.sqlite.tables.queue_rows import QueueRow, held_row, marker, parsed
from remora.storage.sqlite.tables.removals import Removal
from remora.storage.sqlite.tables.schema import rowid
from remora.storage.sqlite.tables.soundness import changed

MOST_BYTES = 4 << 20
"""A listing ends soon after this many bytes, however many entries were asked for: their size is not known before the
first listing."""

_ROWS_AT_ONCE = 32

# The casts change nothing but where a row is damaged so that its values have other types.
_LIST = """
SELECT ifnull(CAST(data AS BLOB), x''), CAST(checksum AS INTEGER) FROM settled WHERE id >= ? AND id < ? ORDER BY id
"""
_COUNT = "SELECT count(*) FROM settled WHERE id >= ? AND id < ?"
_WITH_RESERVATIONS = """
SELECT name FROM queues WHERE reservations > 0 OR topic IN (SELECT topic FROM reservations WHERE state = 'open')
"""  # one of a topic may have outlived the queues that it had room in


class SqliteQueue(SqlitePart):
    """Lists, removes and frees room in held queues."""

    poll_cost_s = 0.00005
    """One read of an index, on this host."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._removals = GroupCommit(durable=False, upkeep=True)

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        """Up to `limit` entries from position `start` on; from the oldest one when `start` is empty.

        Read in the event loop: a thread would wait for the interpreter at each row.
        """
        return await self._file(token.shard).read(
            lambda connection: _read_held(connection, token.shard, held_row(connection, token, self._me), start, limit)
        )

    async def remove(self, token: LockToken, upto: bytes, count: int, tally: Tally) -> None:
        """Remove the oldest `count` entries, all those before position `upto`, and add the tally to the ledger.

        Not synced: after a power cut they are delivered again. It shares the transaction of what comes a moment later.
        """
        end = parsed(upto)
        if tally.total != count:
            raise ValueError(f"{token.shard}: a tally of {tally.total} for the removal of {count} entries")

        file = self._file(token.shard)
        if freed := await self._removals.submit(file, Removal(token, self._me, end, count, tally)):
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
            topics: defaultdict[int, list[LockToken]] = defaultdict(list)
            older_than_ns = int(older_than_s * 1e9)
            for token in due:
                try:
                    queue = held_row(connection, token, self._me)
                except (OwnershipLost, ShardGone, RowDamaged) as exc:
                    lost[token] = exc
                    continue
                expire_stale(connection, queue, older_than_ns)
                topics[queue.topic].append(token)
            for topic, of_topic in topics.items():
                try:
                    expire_events(connection, topic, older_than_ns)
                except RowDamaged as exc:  # before it has changed anything
                    lost |= dict.fromkeys(of_topic, exc)
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
