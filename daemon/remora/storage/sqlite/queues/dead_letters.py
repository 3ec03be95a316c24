"""Dead letters: beside their queue while it lives, and there still when it is gone; those that leave the store are
re-driven into a queue, or dropped, each time in one transaction, which is synced."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from remora.codec.sequence import with_number, without_number
from remora.model.errors import RowDamaged, ShardGone, StoreDamaged, TopicUnknown
from remora.model.position import Position
from remora.model.record import CorruptLetter, DeadLetter, LetterTotals, Redrive
from remora.model.shard import LockToken, Shard
from remora.model.topic import Topic, own_topic_name
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.part import SqlitePart
from remora.storage.sqlite.ingest.one_topic import check_open
from remora.storage.sqlite.tables.queue_rows import held_row
from remora.storage.sqlite.tables.soundness import changed_letter, letter_checksum, typed
from remora.storage.sqlite.tables.write_batch import RoomNeed, WriteBatch

_VERSION = 1
_PAGE = 64

_STORE = """
INSERT OR REPLACE INTO letters (queue, incarnation, gen, position, letter, checksum) VALUES (?, ?, ?, ?, ?, ?)
"""

# The casts change nothing but where a row is damaged so that its values have other types.
_COLUMNS = "queue, incarnation, gen, position, ifnull(CAST(letter AS BLOB), x''), CAST(checksum AS INTEGER)"
_ALL = f"""
SELECT {_COLUMNS} FROM letters
WHERE (queue, incarnation, gen, position) > (?, ?, ?, ?) ORDER BY queue, incarnation, gen, position LIMIT ?
"""  # noqa: S608 - a constant
_OF_QUEUE = f"""
SELECT {_COLUMNS} FROM letters
WHERE queue = ? AND (incarnation, gen, position) > (?, ?, ?) ORDER BY incarnation, gen, position LIMIT ?
"""  # noqa: S608 - a constant
_STANDING = f"""
SELECT {_COLUMNS} FROM letters WHERE queue = ? AND incarnation = ? AND gen = 0 AND position >= ? ORDER BY position
"""  # noqa: S608 - a constant

_COUNTS = "SELECT CAST(queue AS TEXT), count(*) FROM letters GROUP BY queue"


class _LetterRow(NamedTuple):
    """A row of the table; the first four say where the letter's entry was."""

    queue: str
    incarnation: str
    gen: int
    position: int
    letter: bytes
    checksum: int | None


class _LetterInFile(msgspec.Struct, frozen=True):
    """A letter as it is stored. A newer version may add fields, which are skipped, but never change these."""

    version: int
    letter: DeadLetter


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_LetterInFile)


class SqliteDeadLetters(SqlitePart):
    """Stores entries that left their queue undelivered."""

    async def store(self, token: LockToken, *letters: DeadLetter) -> None:
        """Store letters, and sync: their entries are removed next. A letter at the same position is replaced."""
        rows = [_row(each) for each in letters]

        def store(connection: sqlite3.Connection) -> None:
            held_row(connection, token, self._files.owner.entity)
            connection.executemany(_STORE, rows)

        await self._file(token.shard).write(store, durable=True, upkeep=True)

    async def standing(self, token: LockToken) -> Sequence[DeadLetter]:
        """The letters of entries that are still in the held queue: a range of the table's index."""

        def standing(connection: sqlite3.Connection) -> list[_LetterRow]:
            queue = held_row(connection, token, self._files.owner.entity)
            place = token.shard.queue, token.incarnation, queue.head
            return [_typed(connection, cells) for cells in connection.execute(_STANDING, place)]

        return [_letter(row) for row in await self._file(token.shard).read(standing)]

    async def stored(self, queue: str | None = None) -> AsyncIterator[DeadLetter]:
        """Every stored letter, of one queue or of all, in position order within each queue and incarnation.

        One that has changed at rest is a CorruptLetter. Raises StoreDamaged after all other letters when a file is
        damaged, or a row does not say where its letter belongs.
        """
        damage: StoreDamaged | None = None
        for file in self._files.all if queue is None else [self._files.file_of(own_topic_name(queue))]:
            try:
                async for letter in self._of_file(file, queue):
                    yield letter
            except StoreDamaged as exc:
                damage = exc
        if damage is not None:
            raise damage

    async def counts(self) -> Mapping[str, int]:
        """How many letters are stored of each queue: a scan of the table's index, in each file that can be read."""
        found: dict[str, int] = {}
        for file in self._files.all:
            with suppress(StoreDamaged):
                found |= dict(await file.read(lambda connection: connection.execute(_COUNTS).fetchall()))
        return found

    async def _of_file(self, file: File, queue: str | None) -> AsyncIterator[DeadLetter]:
        query, last = (_ALL if queue is None else _OF_QUEUE), (queue or "", "", -1, -1)
        damage: RowDamaged | None = None
        while page := await file.read(lambda connection: _page(connection, query, (*last, _PAGE))):  # noqa: B023 - awaited
            for _, row in page:
                if isinstance(row, RowDamaged):
                    damage = row
                else:
                    yield _letter(row)
            last = page[-1][0]
        if damage is not None:
            raise damage


def _page(
    connection: sqlite3.Connection, query: str, values: tuple[Any, ...]
) -> list[tuple[tuple[Any, ...], _LetterRow | RowDamaged]]:
    """Rows behind a place, each with its own, and those that cannot be read as the reason."""
    found: list[tuple[tuple[Any, ...], _LetterRow | RowDamaged]] = []
    for cells in connection.execute(query, values):
        try:
            found.append((cells[:4], _typed(connection, cells)))
        except RowDamaged as exc:
            found.append((cells[:4], exc))
    return found


def _typed(connection: sqlite3.Connection, cells: tuple[Any, ...]) -> _LetterRow:
    return typed(connection, _LetterRow, cells, "letters", f"of {cells[0]}")


def _row(letter: DeadLetter) -> _LetterRow:
    gen, position = Position.parse(letter.position)
    value = _encode(_LetterInFile(_VERSION, letter))
    place = (letter.queue, letter.incarnation, gen, position)
    return _LetterRow(*place, value, letter_checksum(place, value))


def _letter(row: _LetterRow) -> DeadLetter:
    """The letter of a row; a CorruptLetter where its bytes changed, or make no sense though no checksum was kept."""
    try:
        letter, why = _decoder.decode(row.letter).letter, ""
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        letter, why = None, f"its letter cannot be read: {exc}"
    why = changed_letter(row[:4], row.letter, row.checksum) or why
    if letter is not None and not why:
        return letter
    return CorruptLetter(
        queue=row.queue,
        incarnation=row.incarnation,
        position=str(Position(row.gen, row.position)),
        next_position=str(Position(row.gen, row.position + 1)),
        cause="corrupt",
        reason=why,
        attempts=0,
        first_seen=0.0,
        parked_at=0.0,
        raw=row.letter if letter is None else letter.raw,
    )


_FORGET = "DELETE FROM letters WHERE queue = ? AND incarnation = ? AND gen = ? AND position = ?"
_COUNT = """
INSERT INTO letter_totals (queue, redriven, dropped) VALUES (?, ?, ?)
ON CONFLICT (queue) DO UPDATE SET redriven = redriven + excluded.redriven, dropped = dropped + excluded.dropped
"""
_STANDS = "SELECT 1 FROM queues WHERE name = ? AND incarnation = ? AND head <= ?"
_TOTALS = "SELECT queue, redriven, dropped FROM letter_totals"


class SqliteLetters(SqliteDeadLetters):
    """The stored letters; re-drives and drops them, too."""

    async def still_standing(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """Those whose entries stand in their queue yet."""
        by_file: defaultdict[File, list[DeadLetter]] = defaultdict(list)
        for each in letters:
            by_file[self._files.file_of(own_topic_name(each.queue))].append(each)
        return [letter for file, of_file in by_file.items() for letter in await _standing(file, of_file)]

    async def drop(self, letters: Sequence[DeadLetter]) -> int:
        """Forget letters of one queue for good."""

        def drop(connection: sqlite3.Connection) -> int:
            count = len([each for each in letters if _forget(connection, each)])
            if count:
                connection.execute(_COUNT, (letters[0].queue, 0, count))
            return count

        return await self._files.file_of(own_topic_name(letters[0].queue)).write(drop, upkeep=True) if letters else 0

    async def redrive(self, shard: Shard, topic: Topic | None, again: Sequence[Redrive]) -> int:
        """Commit entries to a queue and forget their letters. All queues of a topic lie in one file."""
        if topic is None:
            raise TopicUnknown(f"there is no topic of queue {shard}")
        if shard not in topic.open_shards():
            raise ShardGone(f"topic {topic.name} has no queue {shard} that takes events")
        number = topic.open_shards().index(shard)

        def redrive(connection: sqlite3.Connection) -> int:
            batch = WriteBatch(connection)
            row = batch.open_topic(topic)
            check_open(row, topic)
            # A new commit: the old number goes.
            payloads = [
                without_number(each.payload) if each.letter.sequence else each.payload
                for each in again
                if _forget(connection, each.letter)
            ]
            if payloads:
                need = RoomNeed(len(payloads), sum(map(len, payloads)))
                queue = batch.with_room(topic, {number: need})[number]
                if row.sequence is not None:
                    payloads = list(map(with_number, payloads, batch.take_numbers(row, len(payloads))))
                queue.append(payloads, row.room(need))
                batch.flush()
                connection.execute(_COUNT, (again[0].letter.queue, len(payloads), 0))
            return len(payloads)

        return await self._file(shard).write(redrive, arrived=[shard]) if again else 0

    async def totals(self) -> Mapping[str, LetterTotals]:
        """What commands have done with the letters of each queue, save those of damaged files."""
        totals: dict[str, LetterTotals] = {}
        for file in self._files.all:
            try:
                rows = await file.read(lambda connection: connection.execute(_TOTALS).fetchall())
            except StoreDamaged:
                continue
            totals |= {queue: LetterTotals(redriven, dropped) for queue, redriven, dropped in rows}
        return totals


async def _standing(file: File, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
    return await file.read(lambda connection: [each for each in letters if _stands(connection, each)])


def _stands(connection: sqlite3.Connection, letter: DeadLetter) -> bool:
    """Whether a letter's entry has not left its queue."""
    position = Position.parse(letter.position).offset
    return connection.execute(_STANDS, (letter.queue, letter.incarnation, position)).fetchone() is not None


def _forget(connection: sqlite3.Connection, letter: DeadLetter) -> bool:
    """Delete a letter, unless its entry stands in its queue; whether that was done."""
    if _stands(connection, letter):
        return False
    gen, position = Position.parse(letter.position)
    return connection.execute(_FORGET, (letter.queue, letter.incarnation, gen, position)).rowcount > 0
