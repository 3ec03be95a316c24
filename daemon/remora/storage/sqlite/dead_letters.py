"""Dead letters: beside their queue while it lives, and there still when it is gone."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence

import msgspec

from remora.model.errors import StoreDamaged, StoreError
from remora.model.position import Position
from remora.model.record import DeadLetter
from remora.model.shard import LockToken
from remora.storage.sqlite.files import File
from remora.storage.sqlite.part import SqlitePart, held_row, topic_of

_VERSION = 1
_PAGE = 64

_STORE = "INSERT OR REPLACE INTO letters (queue, incarnation, gen, position, letter) VALUES (?, ?, ?, ?, ?)"
_ALL = """
SELECT queue, incarnation, gen, position, letter FROM letters
WHERE (queue, incarnation, gen, position) > (?, ?, ?, ?) ORDER BY queue, incarnation, gen, position LIMIT ?
"""
_OF_QUEUE = """
SELECT queue, incarnation, gen, position, letter FROM letters
WHERE queue = ? AND (incarnation, gen, position) > (?, ?, ?) ORDER BY incarnation, gen, position LIMIT ?
"""
_STANDING = """
SELECT letter FROM letters WHERE queue = ? AND incarnation = ? AND gen = 0 AND position >= ? ORDER BY position
"""

_Row = tuple[str, str, int, int, bytes]


class _StoredLetter(msgspec.Struct, frozen=True):
    """A letter as it is stored. A newer version may add fields, which are skipped, but never change these."""

    version: int
    letter: DeadLetter


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_StoredLetter)


class DeadLetters(SqlitePart):
    """Stores entries that left their queue undelivered."""

    async def store(self, token: LockToken, *letters: DeadLetter) -> None:
        """Store letters, and sync: their entries are removed next. The same letter again overwrites itself."""
        rows = [
            (each.queue, each.incarnation, *Position.parse(each.position), _encode(_StoredLetter(_VERSION, each)))
            for each in letters
        ]

        def store(connection: sqlite3.Connection) -> None:
            held_row(connection, token, self._files.owner.entity)
            connection.executemany(_STORE, rows)

        await self._file(token.shard).write(store, durable=True)

    async def standing(self, token: LockToken) -> Sequence[DeadLetter]:
        """The letters of entries that stand in the held queue yet: a range of the table's index."""
        file = self._file(token.shard)

        def standing(connection: sqlite3.Connection) -> list[tuple[bytes]]:
            queue = held_row(connection, token, self._files.owner.entity)
            return connection.execute(_STANDING, (token.shard.queue, token.incarnation, queue.head)).fetchall()

        return [_letter(file, value) for (value,) in await file.read(standing)]

    async def stored(self, queue: str | None = None) -> AsyncIterator[DeadLetter]:
        """Every stored letter, of one queue or of all, in position order within each queue and incarnation.

        Those of a damaged file are missed by an error after all others.
        """
        damage: StoreDamaged | None = None
        for file in self._files.all if queue is None else [self._files.file_of(topic_of(queue))]:
            try:
                async for letter in self._of_file(file, queue):
                    yield letter
            except StoreDamaged as exc:
                damage = exc
        if damage is not None:
            raise damage

    async def _of_file(self, file: File, queue: str | None) -> AsyncIterator[DeadLetter]:
        query, last = (_ALL if queue is None else _OF_QUEUE), (queue or "", "", -1, -1)
        while page := await file.read(lambda connection: _rows(connection, query, (*last, _PAGE))):  # noqa: B023 - awaited
            for *_, value in page:
                yield _letter(file, value)
            last = page[-1][:4]


def _rows(connection: sqlite3.Connection, query: str, values: tuple[str | int, ...]) -> list[_Row]:
    return connection.execute(query, values).fetchall()


def _letter(file: File, value: bytes) -> DeadLetter:
    try:
        return _decoder.decode(value).letter
    except msgspec.MsgspecError as exc:
        raise StoreError(f"{file.path}: a dead letter cannot be read: {exc}") from exc
