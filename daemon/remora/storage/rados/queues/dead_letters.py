"""Dead letters: an omap object for each queue, in the queues' pool and in remora's namespace.

Object `remora.dlq.<queue>` holds the letters of one queue under `<incarnation>:<position>`. Object `remora.dlq` holds
the queues' names as keys, as radosgw's own registry does: one read finds all letters, where listing the objects of a
namespace blocks and goes through every placement group of the pool.

A letter and its entry lie in two objects, and keys are not ordered by position. So before a worker stores letters it
announces them in the queue's omap, key `remora.parking.<position of the last>`, which is removed with that entry: the
next owner looks for letters of entries that are still in the queue only where it finds such a key.

Attribute `remora.parker.<incarnation>` of the object of letters has a random name that the lock's holder chose for its
letters, and each write of a letter compares it. The next holder changes it before it looks for letters, so that a late
write of an earlier holder is refused. A name replaces the one that its holder has seen while it had the lock: one that
stood still before it chose, and has lost the lock since, replaces none of a later holder's.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from remora.codec.queue_ops import HEAD_SIZE, decode_head
from remora.model.errors import StoreError, StoreUnavailable
from remora.model.position import Position
from remora.model.record import DeadLetter
from remora.model.shard import LockToken
from remora.storage.librados import ObjectOperation, ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart, all_keys, decoded, held_read, held_write
from remora.storage.rados.cluster.refusals import FULL, HELD, OWN, ExistsError, MismatchError, MissingError, Refusals
from remora.storage.rados.cluster.state import queue_front, stored_state

REGISTRY = "remora.dlq"

TOTALS = "#totals"
"""The key beside a queue's letters that holds their counts and is no letter; see `redriving`."""

_ANNOUNCED, _OWNER = "remora.parking.", "remora.parker."

_VERSION = 1
_PAGE = 64
_MOST_ANNOUNCED = 1024
_TRIES = 5

_WRITTEN: Refusals = {**HELD, **FULL}


class _StoredLetter(msgspec.Struct, frozen=True):
    """A letter as it is stored. A newer version may add fields, which are skipped, but never change these."""

    version: int
    letter: DeadLetter


_decoder = msgspec.msgpack.Decoder(_StoredLetter)


@dataclass(slots=True)
class _HeldLetters:
    """What this process knows of a held queue's letters: those it announced, and the name that it stores them under."""

    announced: set[Position] = field(default_factory=set)
    name: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class RadosDeadLetters(RadosPart):
    """Stores entries that left their queue undelivered."""

    def __init__(self, connection: ClusterConnection) -> None:
        super().__init__(connection)
        self._registered: set[str] = set()
        self._held: defaultdict[LockToken, _HeldLetters] = defaultdict(_HeldLetters)

    async def store(self, token: LockToken, *letters: DeadLetter) -> None:
        """Store letters durably, all at once; a letter at the same position is replaced."""
        name = await self._announce(token, max(Position.parse(each.position) for each in letters))
        storing = [self._store_one(token, each, name) for each in letters]
        for answer in await asyncio.gather(*storing, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    async def _announce(self, token: LockToken, last: Position) -> str:
        """Announce letters up to this position to the next holder; returns the name to store them under."""
        queue = token.shard.queue
        held = self._held[token]
        async with held.turn:
            if queue not in self._registered:
                await self._write(WriteOp().set_omap({queue: b""}), REGISTRY)
                self._registered.add(queue)
            if not any(each >= last for each in held.announced):
                operation = held_write(token).set_omap({f"{_ANNOUNCED}{last}": b""})
                await self._on_queue(operation, token, f"announcing letters of {token.shard}")
                held.announced.add(last)
            return held.name or await self._claim(token, held)

    async def _claim(self, token: LockToken, held: _HeldLetters) -> str:
        """Choose a new name for this holder's letters, so that those of earlier holders are refused."""
        what, oid = f"claiming letters of {token.shard}", f"{REGISTRY}.{token.shard.queue}"
        owner = _OWNER + token.incarnation
        for _ in range(_TRIES):
            look, before = ReadOp().assert_exists(), None
            xattrs = look.xattrs()
            with contextlib.suppress(MissingError):
                await self._connection.run(look, oid, f"reading {oid}", locator=self._own)
                before = xattrs.values.get(owner, b"")
            await self._on_queue(held_read(token), token, what)  # so the name before is of no later holder
            operation, name = WriteOp(), secrets.token_hex(8)
            if before is None:
                operation.create(exclusive=True)
            else:
                operation.assert_exists().assert_xattr(owner, before)
            with contextlib.suppress(ExistsError, MismatchError, MissingError):
                await self._write(operation.set_xattr(owner, name), oid)
                held.name = name
                return name
        raise StoreUnavailable(f"{what}: other holders do so, too")

    async def _store_one(self, token: LockToken, letter: DeadLetter, name: str) -> None:
        value = msgspec.msgpack.encode(_StoredLetter(_VERSION, letter))
        operation = WriteOp().assert_xattr(_OWNER + token.incarnation, name).set_omap({letter_key(letter): value})
        try:
            await self._write(operation, f"{REGISTRY}.{letter.queue}")
        except MismatchError as exc:
            await self._on_queue(held_read(token), token, f"storing letters of {token.shard}")
            self._held[token].name = ""  # the write of an earlier holder's name came late
            raise StoreUnavailable(
                f"storing letters of {token.shard}: another holder has stored letters there"
            ) from exc

    async def _write(self, operation: WriteOp, oid: str) -> None:
        await self._connection.run(operation, oid, f"writing to {oid}", OWN, self._own)

    async def _on_queue(self, operation: ObjectOperation, token: LockToken, what: str) -> None:
        await self._connection.run(operation, token.shard.queue, what, _WRITTEN, self._locator(token.shard))

    # --------------------------------------------------------------------------- of entries that stand

    async def standing(self, token: LockToken) -> Sequence[DeadLetter]:
        """The letters of entries that are still in the held queue.

        Usually none were announced, and one read tells.
        """
        what = f"looking for letters of {token.shard}"
        operation = held_read(token)
        content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
        found = operation.omap_page("", _ANNOUNCED, _MOST_ANNOUNCED)
        await self._on_queue(operation, token, what)
        held = self._held[token] = _HeldLetters({Position.parse(key.removeprefix(_ANNOUNCED)) for key in found.values})
        front = queue_front(stored_state(decoded(decode_head, content.data, what), xattrs.values, what))
        if not any(each >= front for each in held.announced):
            return []
        await self._claim(token, held)
        oid = f"{REGISTRY}.{token.shard.queue}"
        mine = f"{token.incarnation}:"
        keys = [key for key in await all_keys(self._connection, oid, self._own) if key.startswith(mine)]
        standing = sorted((key for key in keys if _order(key)[1] >= front), key=_order)
        return [each async for each in self._pages(oid, standing)]

    def forget(self, operation: WriteOp, token: LockToken, end: Position) -> None:
        """Add to the removal of the entries before `end` the removal of their letters' announcements."""
        if gone := self._announced_before(token, end):
            operation.remove_omap([f"{_ANNOUNCED}{each}" for each in sorted(gone)])

    def forgotten(self, token: LockToken, end: Position) -> None:
        """Note that this removal has succeeded."""
        if gone := self._announced_before(token, end):
            self._held[token].announced -= gone

    def let_go(self, token: LockToken) -> None:
        """Note that the lock is no longer held."""
        self._held.pop(token, None)

    def _announced_before(self, token: LockToken, end: Position) -> set[Position]:
        held = self._held.get(token)
        return {each for each in held.announced if each < end} if held is not None else set()

    # ------------------------------------------------------------------------------------------ of all

    async def stored(self, queue: str | None = None) -> AsyncIterator[DeadLetter]:
        """Every stored letter, of one queue or of all, in position order within each queue and incarnation."""
        queues = await all_keys(self._connection, REGISTRY, self._own) if queue is None else [queue]
        for each in queues:
            oid = f"{REGISTRY}.{each}"
            keys = sorted({*await all_keys(self._connection, oid, self._own)} - {TOTALS}, key=_order)
            self._connection.traffic.looked(sum(map(len, keys)))
            async for letter in self._pages(oid, keys):
                yield letter

    async def counts(self) -> Mapping[str, int]:
        """How many letters are stored of each queue: the keys of its object, without their values."""
        queues = await all_keys(self._connection, REGISTRY, self._own)
        keys = {each: await all_keys(self._connection, f"{REGISTRY}.{each}", self._own) for each in queues}
        self._connection.traffic.looked(sum(len(key) for found in keys.values() for key in found))
        counts = {queue: len({*found} - {TOTALS}) for queue, found in keys.items()}
        return {queue: count for queue, count in counts.items() if count}

    async def _pages(self, oid: str, keys: list[str]) -> AsyncIterator[DeadLetter]:
        """The letters under these keys, without those that were deleted meanwhile."""
        for i in range(0, len(keys), _PAGE):
            for letter in await self._values(oid, keys[i : i + _PAGE]):
                yield letter

    async def _values(self, oid: str, keys: list[str]) -> list[DeadLetter]:
        """The letters under these keys, without those that were deleted meanwhile."""
        operation = ReadOp().assert_exists()
        found = operation.omap_values(keys)
        try:
            await self._connection.run(operation, oid, f"reading {oid}", locator=self._own)
        except MissingError:
            return []
        await self._connection.traffic.walked(sum(map(len, found.values.values())))
        return [_letter(oid, key, found.values[key]) for key in keys if key in found.values]


def letter_key(letter: DeadLetter) -> str:
    """The key of a letter in the omap of its queue's letters."""
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
