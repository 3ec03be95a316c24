"""The log of a file: entries as their transactions committed them, until they settle by queue.

A commit appends a row, or a few, that hold the entries of all queues of the transaction: it costs the same however
many queues there are. Most entries are delivered while they lie there. When the log has become long its oldest rows
are removed in one run, and those of their entries that still wait settle: each is copied to the table `settled`, in
which a queue is one range. So no queue that waits keeps the rows of others, and what waits for long is read in order.
What would be copied anyway, and is large, settles in its own transaction, once none of its queue waits in the log.

The row of a queue says up to which position its entries have settled. What lies at a position never changes, so what a
connection has read of the log stays true, save for what a transaction wrote that was rolled back.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import NamedTuple

import msgspec

from remora.storage.sqlite.tables.schema import insert, rowid
from remora.storage.sqlite.tables.soundness import checksums, row_damaged

LONGEST = 8 << 20
"""When the log weighs more than this, its oldest rows are removed."""

AT_ONCE = 2 << 20
"""So much weight of them is removed in one transaction: what settles together goes into few pages of each queue."""

_LEAST_WEIGHT = 4096
"""A row's weight is its bytes, and at least this: so the number of rows is bounded, too."""

_ROW_BYTES = 64 << 10
"""A row takes no further part beyond this."""

_CACHED_BYTES = LONGEST + (256 << 10)
"""All of a log that is as long as it may be: else a queue that is read from its beginning would drive out what the next
one needs."""

_ENTRIES_AT_ONCE = 32

_HEAD = struct.Struct("<II")
"""At the beginning of `parts`: the checksum of what follows, and the number of parts."""

_PART = struct.Struct("<IIQQ")
"""Of each part: queue, number of entries, position of the first one, bytes. Behind all parts, two numbers for each
entry: its length and its checksum."""

_ENDS = "SELECT (SELECT min(id) FROM recent), (SELECT max(id) FROM recent)"
_APPEND = "INSERT INTO recent (id, parts, data) VALUES (?, ?, ?)"
_NEW = "SELECT id, parts FROM recent WHERE id > ? ORDER BY id"
_NEW_BACKWARDS = "SELECT id, parts FROM recent WHERE id > ? ORDER BY id DESC"
_DATA = "SELECT data FROM recent WHERE id = ?"
_OLDEST = """
SELECT json_group_array(id), json_group_array(length(CAST(parts AS BLOB))), CAST(group_concat(parts, '') AS BLOB)
FROM (SELECT id, parts FROM recent WHERE id <= ? ORDER BY id)
"""
_DATA_OF = """
SELECT json_group_array(id), json_group_array(length(CAST(data AS BLOB))), CAST(group_concat(data, '') AS BLOB)
FROM (SELECT id, data FROM recent WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id)
"""
_FRONTS = """
SELECT json_group_array(json_array(id, max(head, settled))) FROM queues WHERE id IN (SELECT value FROM json_each(?))
"""
_SETTLED = """
UPDATE queues SET settled = new.value FROM json_each(?) AS new
WHERE queues.id = CAST(new.key AS INTEGER) AND queues.settled < new.value
"""
# The newest row stays, though empty: the next one's id has to be greater than all that there ever were.
_EMPTY = "UPDATE recent SET parts = x'', data = x'' WHERE id = ? AND id = (SELECT max(id) FROM recent)"
_REMOVE = "DELETE FROM recent WHERE id <= ? AND id < (SELECT max(id) FROM recent)"
_REMOVE_THESE = """
DELETE FROM recent WHERE id IN (SELECT value FROM json_each(?)) AND id < (SELECT max(id) FROM recent)
"""

_LAST_ROW = (1 << 63) - 1

_decode_numbers = msgspec.json.Decoder(list[int]).decode
_decode_fronts = msgspec.json.Decoder(list[tuple[int, int]]).decode

Entry = tuple[bytes, int | None]
"""An entry's bytes and the checksum that was kept for it."""

Added = tuple[int, int, Sequence[bytes]]
"""New entries of a queue: its id, the position of the first one, and these."""


class Part(NamedTuple):
    """Entries of one queue in one row: where they begin in its data, and their lengths and checksums."""

    first: int
    number: int
    row: int
    place: int
    nbytes: int
    figures: bytes

    @property
    def end(self) -> int:
        """The position behind its last entry."""
        return self.first + self.number

    def lengths(self) -> Sequence[int]:
        """The length of each entry."""
        return struct.unpack(f"<{2 * self.number}I", self.figures)[::2]

    def size(self, first: int, end: int) -> int:
        """The bytes of the entries from one position up to another, as far as they are here."""
        if first <= self.first and self.end <= end:
            return self.nbytes
        return sum(self.lengths()[max(0, first - self.first) : max(0, end - self.first)])

    def entries(self, data: bytes, first: int, end: int) -> list[Entry]:
        """The entries from one position up to another, as far as they are here, out of the row's data."""
        if self.number == 1:
            return [(data[self.place : self.place + self.nbytes], int.from_bytes(self.figures[4:], "little"))]
        begin, behind = max(0, first - self.first), min(self.number, end - self.first)
        figures = struct.unpack(f"<{2 * self.number}I", self.figures)
        places = list(accumulate(figures[: 2 * behind : 2], initial=self.place))
        return [(data[places[i] : places[i + 1]], figures[2 * i + 1]) for i in range(begin, behind)]


class Index:
    """What a connection knows of the log: where each queue's entries lie in it, and the data that was read last."""

    def __init__(self) -> None:
        self.weight = 0
        """How long the log was at the last append or settling here."""
        self.kept_back = 0
        """Bytes of entries that were appended here only because others of their queues wait in the log."""
        self.appended = 0
        """The last row that was appended here."""
        self._newest = 0
        self._rows: deque[tuple[int, Sequence[int]]] = deque()
        self._parts: dict[int, list[Part]] = {}
        self._data: dict[int, bytes] = {}
        self._data_bytes = 0

    def parts(self, connection: sqlite3.Connection, queue: int, first: int, end: int) -> Iterator[Part]:
        """Those of a queue that reach from one position up to another, in order, without a gap; none where one is."""
        place = first
        found = self._found(queue, first)
        if not found and self.refresh(connection):
            found = self._found(queue, first)
        for part in found:
            if place >= end or not part.first <= place < part.end:
                if part.end <= place:  # written twice: by a migration of a copy, or by damage
                    continue
                return
            yield part
            place = part.end
        if place < end and self.refresh(connection):
            yield from self.parts(connection, queue, place, end)

    def _found(self, queue: int, position: int) -> Sequence[Part]:
        known = self._parts.get(queue, ())
        begin = bisect_right(known, position, key=_first) - 1
        return known[begin:] if begin >= 0 and position < known[begin].end else ()

    def data(self, connection: sqlite3.Connection, row: int) -> bytes:
        """What a row holds; it is kept for the next queue that has a part of it."""
        if (known := self._data.get(row)) is not None:
            return known
        found = connection.execute(_DATA, (row,)).fetchone()
        data = found[0] if found and isinstance(found[0], bytes) else b""
        if len(data) < _CACHED_BYTES // 2:
            self._data[row] = data
            self._data_bytes += len(data)
            while self._data_bytes > _CACHED_BYTES:
                self._data_bytes -= len(self._data.pop(next(iter(self._data))))
        return data

    def refresh(self, connection: sqlite3.Connection, *, backwards: bool = False) -> bool:
        """Learn of rows that were appended since, and forget those that were removed; whether there were new ones."""
        before = self._newest
        for row, parts in connection.execute(_NEW_BACKWARDS if backwards else _NEW, (before,)):
            self._add(row, parts)
        if self._newest > before and not backwards:
            self._forget(connection.execute(_ENDS).fetchone()[0])
        return self._newest > before

    def _add(self, row: int, packed: object) -> None:
        queues = []
        for queue, part in unpacked(row, packed):
            known = self._parts.setdefault(queue, [])
            known.append(part)
            if len(known) > 1 and known[-2].first > part.first:  # read backwards
                known.sort(key=_first)
            queues.append(queue)
        self._rows.append((row, queues))
        self._newest = max(self._newest, row)

    def _forget(self, oldest: int) -> None:
        gone: set[int] = set()
        while self._rows and self._rows[0][0] < oldest:
            row, queues = self._rows.popleft()
            self._data_bytes -= len(self._data.pop(row, b""))
            gone.update(queues)
        for queue in gone:
            if left := [part for part in self._parts.pop(queue) if part.row >= oldest]:
                self._parts[queue] = left


class IndexedConnection(sqlite3.Connection):
    """A connection that keeps what it knows of the log."""

    index: Index

    def forget(self) -> None:
        """Know nothing of it: what was rolled back may be another thing the next time."""
        self.index = Index()


def index_of(connection: sqlite3.Connection) -> Index:
    """What is known of the log; a connection that keeps nothing learns it anew each time."""
    return connection.index if isinstance(connection, IndexedConnection) else Index()


def _first(part: Part) -> int:
    return part.first


# ------------------------------------------------------------------------------------------------- reading


def entries(connection: sqlite3.Connection, queue: int, first: int, end: int) -> Iterator[list[Entry]]:
    """A queue's entries in the log from one position up to another, some at a time; up to the first that is missing."""
    index = index_of(connection)
    some: list[Entry] = []
    for part in index.parts(connection, queue, first, end):
        some += part.entries(index.data(connection, part.row), first, end)
        if len(some) >= _ENTRIES_AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def entry(connection: sqlite3.Connection, queue: int, position: int) -> Entry | None:
    """The entry at a position of a queue; None where the log has none there."""
    return next(chain.from_iterable(entries(connection, queue, position, position + 1)), None)


def size(connection: sqlite3.Connection, queue: int, first: int, end: int) -> int:
    """The bytes of a queue's entries in the log from one position up to another."""
    return sum(part.size(first, end) for part in index_of(connection).parts(connection, queue, first, end))


def count(connection: sqlite3.Connection, queue: int, first: int, end: int) -> int:
    """How many entries of a queue are in the log from one position up to another, or to the first that is missing."""
    place = first
    for part in index_of(connection).parts(connection, queue, first, end):
        place = min(end, part.end)
    return place - first


def unpacked(row: int, packed: object) -> Iterator[tuple[int, Part]]:
    """The parts of a row with their queues; none where it is empty or its bytes have changed."""
    if not packed or not isinstance(packed, bytes) or is_damaged(packed):
        return
    _, number = _HEAD.unpack_from(packed)
    figures, place = _HEAD.size + number * _PART.size, 0
    for queue, number_of_entries, first, nbytes in _PART.iter_unpack(packed[_HEAD.size : figures]):
        behind = figures + 8 * number_of_entries
        yield queue, Part(first, number_of_entries, row, place, nbytes, packed[figures:behind])
        figures, place = behind, place + nbytes


def is_damaged(packed: object) -> bool:
    """Whether `parts` of a row are not what was written."""
    if not isinstance(packed, bytes):
        return True
    checksum = int.from_bytes(packed[:4], "little")
    return bool(packed) and (len(packed) < _HEAD.size or zlib.crc32(memoryview(packed)[4:]) != checksum)


# ------------------------------------------------------------------------------------------------- appending


def append(connection: sqlite3.Connection, parts: Iterable[Added], kept_back: int = 0) -> None:
    """Within a transaction, add entries of queues. So many bytes of them would have settled at once, but for entries of
    their queues that wait here."""
    oldest, newest = connection.execute(_ENDS).fetchone()
    row = newest or 0
    for some in _rows(parts):
        packed, data = _packed(some)
        row += max(_LEAST_WEIGHT, len(packed) + len(data))
        connection.execute(_APPEND, (row, packed, data))
    index = index_of(connection)
    index.weight, index.appended = row - (oldest or row), row
    index.kept_back += kept_back


def _rows(parts: Iterable[Added]) -> Iterator[list[Added]]:
    """What goes into each row."""
    row: list[Added] = []
    nbytes = 0
    for queue, first, payloads in parts:
        begin = 0
        for place, payload in enumerate(payloads):
            nbytes += len(payload)
            if nbytes >= _ROW_BYTES:
                yield [*row, (queue, first + begin, payloads[begin : place + 1])]
                row, nbytes, begin = [], 0, place + 1
        if begin < len(payloads):
            row.append((queue, first + begin, payloads[begin:] if begin else payloads))
    if row:
        yield row


def _packed(parts: Sequence[Added]) -> tuple[bytes, bytes]:
    heads: list[int] = []
    figures: list[int] = []
    for queue, first, payloads in parts:
        lengths = [len(payload) for payload in payloads]
        heads += (queue, len(payloads), first, sum(lengths))
        figures += chain.from_iterable(zip(lengths, checksums(queue, first, payloads), strict=True))
    body = struct.pack(f"<I{'IIQQ' * len(parts)}{len(figures)}I", len(parts), *heads, *figures)
    data = b"".join(chain.from_iterable(payloads for _, _, payloads in parts))
    return zlib.crc32(body).to_bytes(4, "little") + body, data


# ------------------------------------------------------------------------------------------------- settling


def is_due(connection: sqlite3.Connection) -> bool:
    """Whether rows are to be removed: the log was too long at the last append of this connection, or its entries keep
    much from settling at once."""
    index = index_of(connection)
    return index.weight > LONGEST or index.kept_back > AT_ONCE


def settle(connection: sqlite3.Connection, weight: int = AT_ONCE) -> None:
    """Within a transaction, remove the oldest rows of the log of so much weight; what waits in them settles. Raises
    RowDamaged."""
    oldest, newest = connection.execute(_ENDS).fetchone()
    index = index_of(connection)
    if newest is None:
        index.weight = index.kept_back = 0
        return
    rows = _column(connection, _OLDEST, oldest + weight)
    if damaged := [row for row, packed in rows if is_damaged(packed)]:
        raise row_damaged(connection, "recent", str(damaged[0]), "it is not what was committed")
    last = rows[-1][0]
    parts = [each for row, packed in rows for each in unpacked(row, packed)]
    fronts = _fronts(connection, {queue for queue, _ in parts})
    waiting = [each for each in parts if each[1].end > fronts.get(each[0], each[1].end)]
    data = dict(_column(connection, _DATA_OF, _json(list({part.row for _, part in waiting})))) if waiting else {}
    _remove(connection, last)  # first, so that what settles goes into their pages
    _insert_settled(connection, waiting, fronts, data)
    connection.execute(_SETTLED, (_json({queue: part.end for queue, part in parts}),))
    index.weight = newest - last
    if last >= index.appended:
        index.kept_back = 0


def append_settled(connection: sqlite3.Connection, parts: Iterable[Added]) -> None:
    """Within a transaction, add entries of queues that have nothing in the log. The caller notes how far they have
    settled."""
    values: list[int | bytes] = []
    nbytes = 0
    for queue, first, payloads in parts:
        ids = range(rowid(queue, first), rowid(queue, first) + len(payloads))
        values += chain.from_iterable(zip(ids, payloads, checksums(queue, first, payloads), strict=True))
        nbytes += sum(map(len, payloads))
    insert(connection, "settled (id, data, checksum)", 3, values, nbytes)


def free_pages(connection: sqlite3.Connection) -> bool:
    """Within a transaction, remove the rows of the log in which nothing waits, wherever they stand; whether there were
    any. It takes no page."""
    known = _ends_by_row(connection)
    fronts = _fronts(connection, {queue for _, ends in known for queue in ends})
    gone: list[int] = []
    settled: dict[int, int] = {}
    for row, ends in known:
        if all(end <= fronts.get(queue, end) for queue, end in ends.items()):
            gone.append(row)
            settled |= ends
    if gone:
        connection.execute(_EMPTY, (gone[-1],))
        connection.execute(_REMOVE_THESE, (_json(gone),))
        connection.execute(_SETTLED, (_json(settled),))
    return bool(gone)


def make_room(connection: sqlite3.Connection) -> bool:
    """Within a transaction, remove what was delivered from the log; whether there was any.

    Where each row has something that waits, that of the oldest ones settles, if more of them was delivered: for what
    settles there may be no page.
    """
    if free_pages(connection):
        return True
    oldest, newest = connection.execute(_ENDS).fetchone()
    if newest is None or oldest == newest:
        return False
    rows = _column(connection, _OLDEST, oldest + AT_ONCE)
    parts = [each for row, packed in rows for each in unpacked(row, packed)]
    fronts = _fronts(connection, {queue for queue, _ in parts})
    waiting = sum(part.nbytes for queue, part in parts if part.end > fronts.get(queue, part.end))
    if 2 * waiting > sum(part.nbytes for _, part in parts) or any(is_damaged(packed) for _, packed in rows):
        return False
    settle(connection)
    return True


def _ends_by_row(connection: sqlite3.Connection) -> list[tuple[int, dict[int, int]]]:
    """The rows of the log that can be read, and take room: by queue, the position behind the last entry there."""
    rows = _column(connection, _OLDEST, _LAST_ROW)
    return [
        (row, {queue: part.end for queue, part in unpacked(row, packed)})
        for row, packed in rows
        if not is_damaged(packed) and (packed or row < rows[-1][0])
    ]


def _remove(connection: sqlite3.Connection, upto: int) -> None:
    connection.execute(_EMPTY, (upto,))
    connection.execute(_REMOVE, (upto,))


def _insert_settled(
    connection: sqlite3.Connection,
    waiting: Iterable[tuple[int, Part]],
    fronts: Mapping[int, int],
    data: Mapping[int, bytes],
) -> None:
    """Copy entries that wait out of the data of their rows."""
    values: list[int | bytes | None] = []
    nbytes = 0
    for queue, part in sorted(waiting, key=lambda each: (each[0], each[1].first)):
        begin = max(part.first, fronts[queue])
        for place, (payload, checksum) in enumerate(part.entries(data[part.row], begin, part.end)):
            values += (rowid(queue, begin + place), payload, checksum)
        nbytes += part.nbytes
    insert(connection, "settled (id, data, checksum)", 3, values, nbytes)


def _column(connection: sqlite3.Connection, sql: str, which: int | str) -> list[tuple[int, bytes]]:
    """Ids of rows with a column of theirs, in one step: each step lets go of the interpreter, and a busy event loop
    gives it back only after up to 5 ms."""
    ids, lengths, joined = connection.execute(sql, (which,)).fetchone()
    ends = list(accumulate(_decode_numbers(lengths), initial=0))
    return [(row, joined[ends[place] : ends[place + 1]]) for place, row in enumerate(_decode_numbers(ids))]


def _fronts(connection: sqlite3.Connection, queues: Iterable[int]) -> dict[int, int]:
    """The position from which entries of these queues wait in the log, of those queues that are there."""
    (found,) = connection.execute(_FRONTS, (_json(list(queues)),)).fetchone()
    return dict(_decode_fronts(found))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def readable(connection: sqlite3.Connection) -> Index:
    """An index of all rows of a damaged log that can be read: from its beginning, and from its end."""
    index = Index()
    try:
        index.refresh(connection)
    except sqlite3.DatabaseError:
        with suppress(sqlite3.DatabaseError):
            index.refresh(connection, backwards=True)
    return index
