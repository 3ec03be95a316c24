"""Copies what can be read of a damaged file to a new one that a daemon can deliver from. The damaged one stays.

Topics, queues with their ledgers, dead letters, remembered requests, ended reservations and logs are copied row by row;
an entry that is not there or cannot be read is replaced by an empty one without a right checksum. The daemon parks that
as `corrupt`, so that positions stay without gaps, and the ledger and the dead letters have each lost entry. Not copied
are locks, workers and attempts, which begin anew, and open reservations: a commit of one is refused.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from remora.model.errors import StoreDamaged, StoreFull, StoreMisconfigured
from remora.model.store_files import Salvaged
from remora.storage.sqlite.files.connections import PAGE_BYTES, snapshot, transaction
from remora.storage.sqlite.files.directory import discard
from remora.storage.sqlite.repair.checks import LETTERS, open_to_look, why
from remora.storage.sqlite.tables import recent, schema
from remora.storage.sqlite.tables.attributes import LayoutColumns
from remora.storage.sqlite.tables.soundness import NO_CHECKSUM, changed, changed_letter, checksums

_BATCH = 256

MOST_MISSING = 1_000_000
"""A queue that lacks more entries has not lost them: its positions are damaged."""

_WHOLE = ("meta", "topics")
"""Without these, and without the queues, nothing can be told of the entries."""

_ROWS = (
    "letters", "letter_totals", "once", "logs", "leftovers", "former_queues", "notifications", "decisions", "taken",
    "announcements", "peaks",
)  # fmt: skip
_SOME = {"reservations": "state <> 'open'", "log_entries": "log > 0"}
"""Of the ballast, an entry of no log, nothing is lost."""


@dataclass(frozen=True, slots=True)
class _Range:
    """A queue's entries."""

    queue: int
    name: str
    head: int
    settled: int
    tail: int


def salvage(damaged: Path, new: Path) -> Salvaged:
    """Copy a file.

    Raises StoreMisconfigured where `new` cannot be made, StoreFull where it has no room, and StoreDamaged where nothing
    is left. In each case, and when this is interrupted, `new` is not there afterwards; of a process that is killed it
    stays without the mark of a store, which no remora opens.
    """
    try:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise StoreMisconfigured(f"{new} is there already: name a file that is not") from None
    except OSError as exc:
        raise StoreMisconfigured(f"{new} cannot be made: {exc.strerror}") from exc
    found = Salvaged()
    try:
        with closing(open_to_look(damaged)) as source, closing(_made(new)) as target, snapshot(source):
            with transaction(target):
                _copy(source, target, found)
                target.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            target.execute("PRAGMA journal_mode = WAL")
    except BaseException as exc:
        discard([new])
        if isinstance(exc, sqlite3.Error) and getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            raise StoreFull(f"{new}: no room for what was salvaged: name a file on a disk that has some") from exc
        if isinstance(exc, _OF_DAMAGE):
            raise StoreDamaged(f"{damaged}: {why(exc)}; nothing of it can be salvaged") from exc
        raise
    return found


_OF_DAMAGE = (sqlite3.Error, OSError, StoreDamaged, LookupError, ValueError, TypeError, OverflowError)


def _made(path: Path) -> sqlite3.Connection:
    """An empty file of the newest version, with tables and without mark and identity."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    for migration in schema.MIGRATIONS:
        migration(connection)
    connection.execute("DELETE FROM meta")  # each row of the new file is one of the damaged one's
    connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS)}")
    return connection


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, found: Salvaged) -> None:
    (application,) = source.execute("PRAGMA application_id").fetchone()
    if application != schema.APPLICATION_ID:
        raise StoreDamaged("it is another program's database, or its first page is damaged")
    (version,) = source.execute("PRAGMA user_version").fetchone()
    if version != len(schema.MIGRATIONS):
        raise StoreDamaged(f"it is of version {version}, and this remora salvages {len(schema.MIGRATIONS)} only")
    for table in _WHOLE:
        lost = len(found.lost)
        _copy_rows(source, target, table, found)
        if len(found.lost) > lost:
            raise StoreDamaged(found.lost[-1])
    if {"store", "files", "number"} - {name for (name,) in target.execute("SELECT key FROM meta")}:
        raise StoreDamaged("what it knows of itself cannot be read")
    target.execute("INSERT OR IGNORE INTO meta VALUES ('catalogue', 0)")  # a count of changes: any number will do
    assert isinstance(source, recent.IndexedConnection)
    source.index = recent.readable(source)
    queues = _copy_queues(source, target, found)
    found.lost += _of_no_queue(source, target)
    for each in queues:
        _copy_entries(source, target, each, found)
    for table in _ROWS:
        _copy_rows(source, target, table, found)
        found.lost += _only_in_index(source, target, table)
    for table, only in _SOME.items():
        _copy_rows(source, target, table, found, only)
    found.lost += _changed_letters(target)
    with suppress(sqlite3.Error):  # the greatest number that was given, also to what is gone
        for name, number in source.execute("SELECT name, seq FROM sqlite_sequence").fetchall():
            target.execute("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
            target.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, number))


# -------------------------------------------------------------------------------------------------------- queues


def _copy_queues(source: sqlite3.Connection, target: sqlite3.Connection, found: Salvaged) -> list[_Range]:
    """Copy the queues, without their open reservations."""
    lost = len(found.lost)
    _copy_rows(source, target, "queues", found)
    if len(found.lost) > lost:
        raise StoreDamaged(found.lost[-1])
    ranges = target.execute("SELECT id, name, head, settled, tail FROM queues ORDER BY id").fetchall()
    target.execute("UPDATE queues SET reservations = 0, reserved_entries = 0, reserved_bytes = 0, settled = tail")
    return [_Range(*row) for row in ranges]


def _of_no_queue(source: sqlite3.Connection, target: sqlite3.Connection) -> list[str]:
    """What belongs to queues that are not there, though nothing failed: a page that holds others may read as empty."""
    lost = []
    for key, *layouts in target.execute("SELECT id, name, shards, generation, former FROM topics").fetchall():
        named = LayoutColumns(*layouts)
        there = {queue for (queue,) in target.execute("SELECT name FROM queues WHERE topic = ?", (key,))}
        if missing := [shard.queue for shard in named.queues if shard.queue not in there]:
            lost.append(f"topic {named.name}: its queues {', '.join(missing)} are not there")
    (orphans,) = target.execute("SELECT count(*) FROM queues WHERE topic NOT IN (SELECT id FROM topics)").fetchone()
    if orphans:
        lost.append(f"{orphans} queues are of topics that are not there")
    known = {queue for (queue,) in target.execute("SELECT id FROM queues")}
    with suppress(sqlite3.Error):
        known |= {queue for (queue,) in source.execute("SELECT queue FROM leftovers")}
        for queue, count in source.execute("SELECT id >> ?, count(*) FROM settled GROUP BY 1", (schema.POSITION_BITS,)):
            if queue not in known:
                lost.append(f"{count} entries are of queue number {queue}, which is not there")
    return lost


def _copy_entries(source: sqlite3.Connection, target: sqlite3.Connection, queue: _Range, found: Salvaged) -> None:
    _check_range(source, queue, found)
    used, proven = 0, False
    for begin in range(queue.head, queue.tail, _BATCH):
        end = min(begin + _BATCH, queue.tail)
        rows = _read(source, queue, begin, end)
        copied = []
        for position in range(begin, end):
            data, checksum = rows.get(position, (b"", None))
            why = _reason(queue.queue, position, rows) or (NO_CHECKSUM if proven and checksum is None else "")
            if why:
                found.lost.append(f"queue {queue.name}, entry {position}: {why}")
                if checksum is None:
                    checksum = checksums(queue.queue, position, [data])[0] ^ 1  # a wrong one: it is not to be delivered
            proven = proven or (position in rows and checksum is not None)
            used += len(data) + schema.ENTRY_OVERHEAD
            found.entries += not why
            found.unproven += checksum is None
            copied.append((schema.rowid(queue.queue, position), data, checksum))
        target.executemany("INSERT INTO settled (id, data, checksum) VALUES (?, ?, ?)", copied)
    target.execute("UPDATE queues SET used_bytes = ? WHERE id = ?", (used, queue.queue))


def _check_range(source: sqlite3.Connection, queue: _Range, found: Salvaged) -> None:
    """Note entries outside of the queue's range; StoreDamaged for a range that cannot be right."""
    inside = (schema.rowid(queue.queue, queue.head), schema.rowid(queue.queue, min(queue.settled, queue.tail)))
    whole = (schema.rowid(queue.queue, 0), schema.rowid(queue.queue, schema.END_OF_QUEUE))
    count = "SELECT count(*) FROM settled WHERE id >= ? AND id < ?"
    there = 0
    with suppress(sqlite3.Error):
        (there,) = source.execute(count, inside).fetchone()
        (every,) = source.execute(count, whole).fetchone()
        if every > there:
            found.lost.append(f"queue {queue.name}: {every - there} entries lie before its beginning or behind its end")
    with suppress(sqlite3.Error):
        there += recent.count(source, queue.queue, max(queue.head, queue.settled), queue.tail)
    if not 0 <= queue.head <= queue.tail <= schema.END_OF_QUEUE or queue.tail - queue.head - there > MOST_MISSING:
        raise StoreDamaged(
            f"queue {queue.name} reaches from {queue.head} to {queue.tail}, and {there} entries are there"
        )


def _reason(queue: int, position: int, rows: dict[int, tuple[bytes, int | None]]) -> str:
    """What is wrong with the entry at a position of what was read; empty where nothing is."""
    if position not in rows:
        return "it cannot be read; an empty one stands in its place"
    return changed(queue, position, [rows[position]]).get(0, "")


def _read(source: sqlite3.Connection, queue: _Range, begin: int, end: int) -> dict[int, tuple[bytes, int | None]]:
    """Entries by position, those left out that cannot be read: together, else one by one."""
    sql = "SELECT id, ifnull(CAST(data AS BLOB), x''), CAST(checksum AS INTEGER) FROM settled WHERE id >= ? AND id < ?"

    def between(first: int, last: int) -> dict[int, tuple[bytes, int | None]]:
        rows = source.execute(sql, (schema.rowid(queue.queue, first), schema.rowid(queue.queue, last))).fetchall()
        return {rowid & schema.END_OF_QUEUE: (data, checksum) for rowid, data, checksum in rows}

    found: dict[int, tuple[bytes, int | None]] = {}
    behind = min(end, queue.settled)
    with suppress(sqlite3.Error):
        found = between(begin, behind)
    if len(found) < behind - begin:
        for position in range(begin, behind):
            with suppress(sqlite3.Error):
                found |= between(position, position + 1)
    return found | _in_log(source, queue, max(begin, queue.settled), end)


def _in_log(source: sqlite3.Connection, queue: _Range, begin: int, end: int) -> dict[int, tuple[bytes, int | None]]:
    """The same of those that lie in the log."""
    found: dict[int, tuple[bytes, int | None]] = {}
    for position in range(begin, end):
        with suppress(sqlite3.Error):
            if (entry := recent.entry(source, queue.queue, position)) is not None:
                found[position] = entry
    return found


# ---------------------------------------------------------------------------------------------------- other tables


def _changed_letters(target: sqlite3.Connection) -> Iterator[str]:
    """The dead letters whose bytes are not those that were stored; their checksums are wrong in the new file too."""
    for queue, incarnation, gen, position, letter, checksum in target.execute(LETTERS):
        if why_changed := changed_letter((queue, incarnation, gen, position), letter, checksum):
            yield f"dead letter of {queue} at {incarnation}:{gen}/{position}: {why_changed}"


def _copy_rows(
    source: sqlite3.Connection, target: sqlite3.Connection, table: str, found: Salvaged, only: str = "1"
) -> None:
    """Copy a table's rows, as far as they can be read."""
    names = [name for _, name, *_ in target.execute(f"PRAGMA table_info({table})")]
    columns, places = ", ".join(names), ", ".join("?" * len(names))
    insert = f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({places})"  # noqa: S608 - names of the schema
    select = f"SELECT {columns} FROM {table} WHERE {only}"  # noqa: S608 - names of the schema
    try:
        for rows in _batches(source, select):
            for row in rows:
                try:
                    if target.execute(insert, row).rowcount:
                        found.rows += 1
                    else:  # another table's, or it has the key of one that is there
                        found.lost.append(f"table {table}: a row that does not belong there")
                except UnicodeEncodeError:  # its text was no UTF-8 any more
                    found.lost.append(f"table {table}: a row whose text cannot be read")
    except sqlite3.DatabaseError as exc:
        found.lost.append(f"table {table}: the rows after the first {_count(target, table)} cannot be read: {exc}")


def _only_in_index(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> list[str]:
    """Whether an index has more rows than its table: under a page of another, empty table nothing fails."""
    with suppress(sqlite3.Error):
        if (indexed := _count(source, table)) > (there := _count(target, table)):  # it counts in the smallest index
            return [f"table {table}: {indexed - there} rows that its index names are not there"]
    return []


def _batches(source: sqlite3.Connection, select: str) -> Iterator[Sequence[tuple[object, ...]]]:
    rows: list[tuple[object, ...]] = []
    try:
        for row in source.execute(select):
            rows.append(row)
            if len(rows) >= _BATCH:
                yield rows
                rows = []
    except sqlite3.DatabaseError:
        yield rows
        raise
    yield rows


def _count(of: sqlite3.Connection, table: str) -> int:
    (count,) = of.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - names of the schema
    return int(count)
