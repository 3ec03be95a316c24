"""Dead letters: an omap object for each queue, next to the queues but out of radosgw's sight.

Object `remora.dlq.<queue>` holds the letters of one queue under `<incarnation>:<position>`. Object `remora.dlq`
holds the queues' names as keys, as radosgw's own registry does: a single read finds all letters, where listing
the objects of a namespace would go through every placement group of the pool, and blocks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from remora.model.errors import StoreError
from remora.model.position import Position
from remora.model.record import DeadLetter
from remora.model.shard import Hold
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.connection import Connection
from remora.storage.rados.face import Face
from remora.storage.rados.omap import all_keys
from remora.storage.rados.refusals import MissingError

REGISTRY = "remora.dlq"

TOTALS = "#totals"
"""The key beside a queue's letters that is none of them; see `redriving`."""

_VERSION = 1
_PAGE = 64


class _Stored(msgspec.Struct, frozen=True):
    """A letter as it is stored. A newer version may add fields, which are skipped, but never change these."""

    version: int
    letter: DeadLetter


_decoder = msgspec.msgpack.Decoder(_Stored)


class DeadLetters(Face):
    """Stores entries that left their queue undelivered."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._registered: set[str] = set()

    async def park(self, hold: Hold, letter: DeadLetter) -> None:
        """Store the letter durably; the same letter again overwrites itself."""
        if letter.queue not in self._registered:
            await self._write(REGISTRY, letter.queue, b"")
            self._registered.add(letter.queue)
        value = msgspec.msgpack.encode(_Stored(_VERSION, letter))
        await self._write(f"{REGISTRY}.{letter.queue}", letter_key(letter), value)

    async def _write(self, oid: str, key: str, value: bytes) -> None:
        operation = WriteOp().set_omap({key: value})
        place = self._connection.session.places.own
        await self._connection.run(operation, oid, f"writing to {oid}", place=place)

    async def letters(self, queue: str | None = None) -> AsyncIterator[DeadLetter]:
        """Every stored letter, of one queue or of all, in position order within each queue and incarnation."""
        place = self._connection.session.places.own
        queues = await all_keys(self._connection, REGISTRY, place) if queue is None else [queue]
        for each in queues:
            oid = f"{REGISTRY}.{each}"
            keys = sorted({*await all_keys(self._connection, oid, place)} - {TOTALS}, key=_order)
            for i in range(0, len(keys), _PAGE):
                for letter in await self._values(oid, keys[i : i + _PAGE]):
                    yield letter

    async def _values(self, oid: str, keys: list[str]) -> list[DeadLetter]:
        """The letters under these keys, save those that have been deleted meanwhile."""
        operation = ReadOp().assert_exists()
        found = operation.omap_values(keys)
        place = self._connection.session.places.own
        try:
            await self._connection.run(operation, oid, f"reading {oid}", place=place)
        except MissingError:
            return []
        return [_letter(oid, key, found.values[key]) for key in keys if key in found.values]


def letter_key(letter: DeadLetter) -> str:
    """The key that a letter has in the omap of its queue's letters."""
    return f"{letter.incarnation}:{letter.position}"


def _letter(oid: str, key: str, value: bytes) -> DeadLetter:
    try:
        return _decoder.decode(value).letter
    except msgspec.MsgspecError as exc:
        raise StoreError(f"dead letter {key} in {oid} cannot be read: {exc}") from exc


def _order(key: str) -> tuple[str, Position]:
    incarnation, _, position = key.partition(":")
    try:
        return incarnation, Position.parse(position)
    except ValueError:
        return key, Position(0, 0)
