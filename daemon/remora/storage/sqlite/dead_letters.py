"""Dead letters: beside their queue while it lives, and there still when it is gone."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from remora.model.errors import StoreDamaged
from remora.model.position import Position
from remora.model.record import CorruptLetter, DeadLetter
from remora.model.shard import LockToken
from remora.model.topic import own_topic_name
from remora.storage.sqlite.checksums import changed_letter, letter_checksum
from remora.storage.sqlite.file import File
from remora.storage.sqlite.part import SqlitePart, held_row

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
            return _rows(connection, _STANDING, (token.shard.queue, token.incarnation, queue.head))

        return [_letter(row) for row in await self._file(token.shard).read(standing)]

    async def stored(self, queue: str | None = None) -> AsyncIterator[DeadLetter]:
        """Every stored letter, of one queue or of all, in position order within each queue and incarnation.

        One that has changed at rest is a CorruptLetter. Raises StoreDamaged after the letters of all other files when a
        file is damaged.
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
        while page := await file.read(lambda connection: _rows(connection, query, (*last, _PAGE))):  # noqa: B023 - awaited
            for row in page:
                yield _letter(row)
            last = page[-1][:4]


def _rows(connection: sqlite3.Connection, query: str, values: tuple[str | int, ...]) -> list[_LetterRow]:
    return [_LetterRow(*row) for row in connection.execute(query, values)]


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
