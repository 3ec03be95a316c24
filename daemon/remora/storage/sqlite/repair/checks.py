"""Checks the files of an embedded store, in use or not, without writing to any of them.

Each file is read in one transaction, so that what is compared is of one moment. A worker goes on meanwhile; what it
removes stays in the write-ahead log until the check is through.

SQLite's own `integrity_check` knows pages, cells and indexes; the rest is what the tables of `schema` promise. A file
whose pages make no sense is looked at as far as it can be read.
"""

from __future__ import annotations

import errno
import sqlite3
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from remora.codec.sequence import NUMBER_BYTES, number_of
from remora.model.errors import StoreDamaged
from remora.model.ingest import ReservedRoom
from remora.model.store_files import MOST_PROBLEMS, FileReport
from remora.model.words import several
from remora.policy.queues.store_directories import StoreDirectories
from remora.storage.sqlite.files.connections import snapshot
from remora.storage.sqlite.files.directories import placement_in
from remora.storage.sqlite.files.names import restore_names
from remora.storage.sqlite.ingest.decisions import answer_of
from remora.storage.sqlite.tables import recent, schema
from remora.storage.sqlite.tables.attributes import LayoutColumns
from remora.storage.sqlite.tables.soundness import NO_CHECKSUM, changed, changed_letter

BUSY_S = 5.0
_BATCH = 256


@dataclass(frozen=True, slots=True)
class _Topic:
    name: str
    layouts: LayoutColumns
    last: int | None

    @property
    def numbers(self) -> list[int]:
        """The numbers that its queues are to have."""
        layouts = [(each.generation, each.shards) for each in self.layouts.former_layouts]
        layouts.append((self.layouts.generation, self.layouts.shards))
        return [generation * schema.PLACES + number for generation, shards in layouts for number in range(shards)]


@dataclass(frozen=True, slots=True)
class _Queue:
    id: int
    name: str
    topic: int
    number: int
    incarnation: str
    begun: int
    head: int
    tail: int
    settled: int
    used: int
    reservations: int
    reserved_entries: int
    reserved_bytes: int
    removed: int


_QUEUES = """
SELECT id, name, topic, number, incarnation, begun, head, tail, settled, used_bytes, reservations, reserved_entries,
    reserved_bytes, delivered + dead_lettered + expired + dropped + removed_elsewhere FROM queues ORDER BY id
"""
_ENTRIES = """
SELECT id, ifnull(CAST(data AS BLOB), x''), CAST(checksum AS INTEGER) FROM settled WHERE id >= ? AND id < ? ORDER BY id
"""
_STRAYS = "SELECT id FROM settled WHERE id >= ? AND id < ? ORDER BY id LIMIT 10"
_TOPICS = "SELECT id, name, sequence, shards, generation, former FROM topics"
_OPEN = "SELECT topic, generation, CAST(rooms AS BLOB) FROM reservations WHERE state = 'open'"
LETTERS = """
SELECT queue, incarnation, gen, position, ifnull(CAST(letter AS BLOB), x''), CAST(checksum AS INTEGER) FROM letters
"""


def check_directory(directory: Path, *, in_one: bool = False) -> list[FileReport]:
    """A report of each file of the store whose first directory this is, or of a copy that has all `in_one`, by their
    numbers. OSError where the directory cannot be read."""
    folders = folders_of(directory, in_one=in_one)
    found = {path for _, folder in folders for path in folder.glob("queues-*.db")}
    reports = [check_file(path) for path in sorted(found)]
    known = [each for each in reports if each.number >= 0]
    for each in known:
        first = known[0]
        if (each.store, each.files) != (first.store, first.files):
            each.found("file", f"it belongs to another store than {first.path.name}")
        if each.path.name != f"queues-{each.number:03}.db":
            each.found("file", f"it is number {each.number} of its store, and has another name")
    if known:
        count = known[0].files
        for at, folder in folders:
            for number in range(at * count, (at + 1) * count):
                if (path := folder / f"queues-{number:03}.db") not in found:
                    missing = FileReport(path)
                    files = several(count * len(folders), "file")
                    missing.found("file", f"it is missing, though its store has {files}")
                    reports.append(missing)
    return sorted(reports, key=lambda each: each.path.name)


def placement_of(directory: Path) -> StoreDirectories:
    """The directories of the store whose first directory, or copy, this is, looked up without changing anything; as one
    of a single directory where its first file cannot be read."""
    try:
        with closing(open_to_look(directory / "queues-000.db")) as connection:
            return placement_in(connection)
    except (sqlite3.Error, OSError, msgspec.MsgspecError):
        return StoreDirectories()


def folders_of(directory: Path, *, in_one: bool = False) -> Sequence[tuple[int, Path]]:
    """The directories of that store with their numbers; `in_one` for a copy that has all files in one."""
    further = [each for each in placement_of(directory).directories if each.number]
    return [(0, directory), *((each.number, directory if in_one else Path(each.path)) for each in further)]


def check_file(path: Path) -> FileReport:
    """What is in a file, and all that is wrong with it."""
    report = FileReport(path)
    try:
        with closing(open_to_look(path)) as connection, snapshot(connection):
            if _is_ours(connection, report):
                for check in (_pages, _identity, _tables):
                    _guarded(connection, report, check)
    except (sqlite3.Error, OSError) as exc:
        report.found("file", f"it cannot be read: {why(exc)}")
    return report


def open_to_look(path: Path) -> recent.IndexedConnection:
    """A connection that can write nothing; text that is no UTF-8 keeps its bytes. OSError where no file can be read.

    SQLite would wait for ever at the opening of a pipe, and takes an empty file for an empty database. It leaves a log
    behind, also when it may write nothing: that is the one whose room is kept, or the next start would give that up.
    """
    found = path.stat()  # to open and close the file would drop the locks of this process
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if not found.st_size:
        raise OSError(errno.ENODATA, "it is empty")
    restore_names(path, BUSY_S)
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, factory=recent.IndexedConnection)
    connection.forget()
    connection.execute("PRAGMA query_only = 1")
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    return connection


def why(exc: Exception) -> str:
    """What kept a file from being read, in words."""
    if isinstance(exc, OSError):
        return exc.strerror or str(exc)
    if getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_CANTOPEN:
        return f"{exc}: where its directory cannot be written, copy it with its -wal file to one that can"
    return str(exc)


Check = Callable[[sqlite3.Connection, FileReport], None]


def _guarded(connection: sqlite3.Connection, report: FileReport, check: Check) -> None:
    """Check one thing; what cannot be read or makes no sense is a problem, and the others are checked all the same."""
    try:
        check(connection, report)
    except (sqlite3.Error, LookupError, ValueError, TypeError, OverflowError) as exc:
        report.found(check.__name__.strip("_"), f"it cannot be read: {type(exc).__name__}: {exc}")


def _is_ours(connection: sqlite3.Connection, report: FileReport) -> bool:
    """Whether this version knows the file's tables."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != schema.APPLICATION_ID:
        report.found("file", "it is another program's database, or its first page is damaged")
        return False
    if version > len(schema.MIGRATIONS):
        report.found("file", f"a newer remora made it: version {version}, this one knows {len(schema.MIGRATIONS)}")
        return False
    if version < len(schema.MIGRATIONS):
        report.found(
            "file", f"it is of version {version}: this remora brings it to {len(schema.MIGRATIONS)} at its start"
        )
        return False
    return True


def _pages(connection: sqlite3.Connection, report: FileReport) -> None:
    for (text,) in connection.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})"):
        if text != "ok":
            report.found("pages", str(text))


def _identity(connection: sqlite3.Connection, report: FileReport) -> None:
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    report.store, report.files, report.number = str(meta["store"]), int(meta["files"]), int(meta["number"])
    int(meta["catalogue"])  # a file without it is damaged


def _tables(connection: sqlite3.Connection, report: FileReport) -> None:
    topics = {
        key: _Topic(name, LayoutColumns(name, *layouts), last)
        for key, name, last, *layouts in connection.execute(_TOPICS)
    }
    queues = [_Queue(*row) for row in connection.execute(_QUEUES)]
    report.topics, report.queues = len(topics), len(queues)
    for key, topic in topics.items():
        numbers = sorted(each.number for each in queues if each.topic == key)
        if numbers != topic.numbers:
            expected = len(topic.numbers)
            queues_text = several(expected, "queue")
            report.found(f"topic {topic.name}", f"it has {queues_text}, and the numbers {numbers} are there")
    assert isinstance(connection, recent.IndexedConnection)
    connection.index = recent.readable(connection)
    _guarded(connection, report, _log)
    checks = [_entries_of(each, topics.get(each.topic)) for each in queues]
    belongings = (_rooms_of(queues, topics), _letters_of(queues), _strays_of(queues), _strays_in_log(queues))
    for check in (*checks, *belongings, _references, _decisions):
        _guarded(connection, report, check)


# ------------------------------------------------------------------------------------------------- one queue


def _books(queue: _Queue, report: FileReport) -> None:
    """Positions only grow, and what has left is booked."""
    what = f"queue {queue.name}"
    if queue.settled > queue.tail:
        report.found(what, f"its entries have settled up to {queue.settled}, and they end at {queue.tail}")
    if not 0 <= queue.begun <= queue.head <= queue.tail <= schema.END_OF_QUEUE:
        report.found(
            what, f"its ledger begins at {queue.begun}, its entries at {queue.head}, and they end at {queue.tail}"
        )
    elif queue.head - queue.begun != queue.removed:
        report.found(
            what, f"{queue.head - queue.begun} entries have left it, and its ledger has {queue.removed} of them"
        )


def _entries_of(queue: _Queue, topic: _Topic | None) -> Check:
    what = f"queue {queue.name}"

    def entries(connection: sqlite3.Connection, report: FileReport) -> None:
        """Each position between head and tail has its entry, whose bytes are those that were committed."""
        if topic is None:
            report.found(what, "its topic is not there")
        _books(queue, report)
        used, expected, number, proven = 0, queue.head, 0, False
        for first, rows in _batches(connection, queue):
            if first != expected:
                report.found(what, _gap(expected, first))
            expected = first + len(rows)
            report.entries += len(rows)
            # Releases before the checksums stored what is before the first one. What is behind it has lost its own.
            first_proven = next((place for place, (_, kept) in enumerate(rows) if kept is not None), len(rows))
            begun = 0 if proven else first_proven
            report.unproven += begun
            proven = proven or begun < len(rows)
            used += sum(len(data) + schema.ENTRY_OVERHEAD for data, _ in rows)
            bare = {place: NO_CHECKSUM for place in range(begun, len(rows)) if rows[place][1] is None}
            wrong = {**changed(queue.id, first, rows), **bare}
            for place, why in wrong.items():
                report.found(what, f"the entry at {first + place}: {why}")
            if topic is not None and topic.last is not None:
                good = [(first + place, data) for place, (data, _) in enumerate(rows) if place not in wrong]
                number = _follow(report, what, good, number, topic.last)
        if expected != queue.tail:
            report.found(what, _gap(expected, queue.tail))
        elif used != queue.used:
            report.found(what, f"its entries take {used} bytes, and it counts {queue.used}")

    return entries


def _batches(connection: sqlite3.Connection, queue: _Queue) -> Iterator[tuple[int, list[tuple[bytes, int | None]]]]:
    """Runs of entries without a gap, each with the position of its first one."""
    begin, end = schema.rowid(queue.id, queue.head), schema.rowid(queue.id, min(queue.settled, queue.tail))
    run: list[tuple[bytes, int | None]] = []
    first = following = begin
    for rowid, data, checksum in connection.execute(_ENTRIES, (begin, end)):
        if run and (rowid != following or len(run) >= _BATCH):
            yield first & schema.END_OF_QUEUE, run
            run = []
        if not run:
            first = rowid
        run.append((data, checksum))
        following = rowid + 1
    if run:
        yield first & schema.END_OF_QUEUE, run
    position = max(queue.head, queue.settled)
    for rows in recent.entries(connection, queue.id, position, queue.tail):
        yield position, list(rows)
        position += len(rows)


def _gap(expected: int, found: int) -> str:
    count = found - expected
    if count <= 0:
        return f"entries from {found} on are there twice"
    return f"{count} {'entry is' if count == 1 else 'entries are'} missing, from {expected} on"


def _follow(report: FileReport, what: str, entries: Sequence[tuple[int, bytes]], before: int, last: int) -> int:
    """Numbers of a sequence grow from entry to entry, and were given; returns the greatest."""
    for position, data in entries:
        number = number_of(data)
        if number is None:
            report.found(what, f"the entry at {position} has no number, though its topic numbers its events")
        elif number <= before:
            report.found(what, f"the entry at {position} has number {number} of the topic's sequence, behind {before}")
        elif number > last:
            report.found(what, f"the entry at {position} has number {number}, and the topic has given {last}")
        before = max(before, number or 0)
    return before


# ------------------------------------------------------------------------------------------- what belongs to them


def _rooms_of(queues: Sequence[_Queue], topics: Mapping[int, _Topic]) -> Check:
    names = {each.id: each.name for each in queues}
    by_place = {(each.topic, each.number): each.name for each in queues}

    def reservations(connection: sqlite3.Connection, report: FileReport) -> None:
        """Each queue counts the room of its open reservations of both kinds."""
        rooms: dict[str, list[int]] = {each.name: [0, 0, 0] for each in queues}
        for queue, entries, nbytes in connection.execute("SELECT queue, entries, nbytes FROM queue_reservations"):
            _add(rooms, names.get(queue, ""), (1, entries, nbytes))
        for topic, generation, packed in connection.execute(_OPEN):
            known = topics.get(topic)
            first = generation * schema.PLACES
            if known is not None and first not in known.numbers:
                continue  # its room went with its layout
            number_bytes = NUMBER_BYTES if known is not None and known.last is not None else 0
            events = msgspec.msgpack.decode(packed, type=list[ReservedRoom])
            for event in events:
                _add(rooms, by_place.get((topic, first + event.shard), ""), (0, 1, event.nbytes + number_bytes))
            for shard in {event.shard for event in events}:
                _add(rooms, by_place.get((topic, first + shard), ""), (1, 0, 0))
        for each in queues:
            counted, there = [each.reservations, each.reserved_entries, each.reserved_bytes], rooms[each.name]
            if there != counted:
                text = f"it counts {_room(counted)}, and {_room(there)} are there"
                report.found(f"queue {each.name}", text)

    return reservations


def _add(rooms: dict[str, list[int]], queue: str, room: tuple[int, int, int]) -> None:
    found = rooms.setdefault(queue, [0, 0, 0])
    for place, count in enumerate(room):
        found[place] += count


def _room(room: Sequence[int]) -> str:
    entries = several(room[1], "entry", "entries")
    return f"{several(room[0], 'open reservation')} for {entries} of {room[2]} bytes"


def _letters_of(queues: Sequence[_Queue]) -> Check:
    known = {(each.name, each.incarnation): each for each in queues}

    def letters(connection: sqlite3.Connection, report: FileReport) -> None:
        """Dead letters have their bytes, and are of entries that were committed."""
        for queue, incarnation, gen, position, letter, checksum in connection.execute(LETTERS):
            report.letters += 1
            report.unproven += checksum is None
            what = f"dead letter of {queue} at {incarnation}:{gen}/{position}"
            if why := changed_letter((queue, incarnation, gen, position), letter, checksum):
                report.found(what, why)
            of = known.get((queue, incarnation))
            if of is not None and position >= of.tail:
                report.found(what, f"its queue has no entry there: it ends at {of.tail}")

    return letters


def _strays_of(queues: Sequence[_Queue]) -> Check:
    def entries(connection: sqlite3.Connection, report: FileReport) -> None:
        """No entry lies outside of its queue, save what is left of removed ones."""
        ranges = [(schema.rowid(each.id, each.head), schema.rowid(each.id, each.settled)) for each in queues]
        for queue, head, tail in connection.execute("SELECT queue, head, tail FROM leftovers"):
            if isinstance(head, int) and isinstance(tail, int):
                ranges.append((schema.rowid(queue, head), schema.rowid(queue, tail)))
            else:
                report.found("leftovers", f"what is left of queue number {queue} has no range")
        begin = 0
        for first, end in [*sorted(ranges), ((1 << 63) - 1, (1 << 63) - 1)]:
            for (rowid,) in connection.execute(_STRAYS, (begin, first)):
                queue, position = rowid >> schema.POSITION_BITS, rowid & schema.END_OF_QUEUE
                report.found("entries", f"one at {position} of queue number {queue} belongs to no queue as it is now")
            begin = max(begin, end)

    return entries


def _strays_in_log(queues: Sequence[_Queue]) -> Check:
    tails = {each.id: each.tail for each in queues}

    def entries(connection: sqlite3.Connection, report: FileReport) -> None:
        """No entry lies in the log behind the end of its queue. Those of removed queues go with the log's front."""
        for row, packed in connection.execute("SELECT id, parts FROM recent"):
            for queue, part in recent.unpacked(row, packed):
                if part.end > tails.get(queue, part.end):
                    report.found(
                        "entries", f"one at {part.end - 1} of queue number {queue} belongs to no queue as it is now"
                    )

    return entries


def _log(connection: sqlite3.Connection, report: FileReport) -> None:
    """Each row of the log says what it holds."""
    for row, packed, nbytes in connection.execute("SELECT id, parts, length(CAST(data AS BLOB)) FROM recent"):
        parts = [part for _, part in recent.unpacked(row, packed)]
        if recent.is_damaged(packed):
            report.found("log", f"what its row {row} holds is not what was committed")
        elif sum(part.nbytes for part in parts) != (nbytes or 0):
            report.found(
                "log", f"its row {row} has {nbytes} bytes, and its entries {sum(part.nbytes for part in parts)}"
            )


def _references(connection: sqlite3.Connection, report: FileReport) -> None:
    """What is kept of queues and topics is of some that are there.

    Ended reservations and remembered requests (`once`) outlive their topic, whose id no other one gets: they are
    forgotten when they are old enough.
    """
    for table, column, of in (
        ("locks", "queue", "queues"),
        ("attempts", "queue", "queues"),
        ("queue_reservations", "queue", "queues"),
        ("reservations", "state = 'open' AND topic", "topics"),
        ("former_queues", "topic", "topics"),
    ):
        sql = f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT id FROM {of})"  # noqa: S608 - names above
        (count,) = connection.execute(sql).fetchone()
        if count:
            report.found(
                table, several(count, f"row is of {of} that are not there", f"rows are of {of} that are not there")
            )


def _decisions(connection: sqlite3.Connection, report: FileReport) -> None:
    """What requests have decided for other files is what was committed, and their answers can be read."""
    look = "SELECT id, CAST(answer AS BLOB), CAST(parts AS BLOB), checksum FROM decisions"
    for name, answer, parts, checksum in connection.execute(look):
        if zlib.crc32(parts) != checksum:
            report.found("decisions", f"what request {name} has decided is not what was committed")
        try:
            answer_of(name, answer)
        except StoreDamaged as exc:
            report.found("decisions", str(exc))
