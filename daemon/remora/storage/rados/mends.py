"""Gives queues the room back that OSDs have leaked: writes what is really reserved into the head of a queue object.

The write passes only on the very object that was read: its version, and the bytes from the magic number to the sum that
is replaced, are compared in the same operation. So a reservation, commit, abort or removal that comes between has the
write refused, and is not touched by it; docs/decisions/mending-queues.md has the proof.
"""

from __future__ import annotations

import errno
from types import MappingProxyType
from typing import NamedTuple

from remora.codec.queue_ops import (
    HEAD_SIZE,
    RESERVED_AT,
    URGENT_VERSIONS,
    QueueHead,
    decode_head,
    encode_reserved,
    open_reservations,
    room_of,
)
from remora.model.errors import StoreError
from remora.model.shard import LockToken, Mend, QueueRoom, Shard
from remora.storage.librados import MISMATCH, ReadOp, WriteOp
from remora.storage.rados.part import RadosPart, decoded, held_read, held_write
from remora.storage.rados.refusals import HELD, QUEUE, ChangedError, Refusals

_TRIES, _PATIENT_TRIES = 20, 1000

_COMPARED = RESERVED_AT + 8

_RACED: Refusals = MappingProxyType(
    {
        errno.ERANGE: (ChangedError, "the queue has changed"),
        errno.EOVERFLOW: (ChangedError, "the queue has been made anew"),
        **{MISMATCH + byte: (ChangedError, "its head has changed") for byte in range(_COMPARED)},
    }
)

_ANYBODYS: Refusals = MappingProxyType({**QUEUE, **_RACED})
_HOLDERS: Refusals = MappingProxyType({**HELD, **_RACED})


class _Look(NamedTuple):
    data: bytes
    head: QueueHead
    room: QueueRoom
    version: int


class RadosMends(RadosPart):
    """Looks at the room of queues and mends it."""

    async def mend(self, token: LockToken) -> Mend:
        """Give a held queue its leaked room back; gives up after some tries while others write to it all the time."""
        return await self._mend(token.shard, token, _TRIES)

    async def mend_unheld(self, shard: Shard, *, patient: bool = False) -> Mend:
        """The same without the lock: the guard is the object's version, as it is for the holder."""
        return await self._mend(shard, None, _PATIENT_TRIES if patient else _TRIES)

    async def look(self, shard: Shard) -> Mend:
        """What a mend would find; writes nothing."""
        return Mend((await self._look(shard, None)).room)

    async def _mend(self, shard: Shard, token: LockToken | None, tries: int) -> Mend:
        found = await self._look(shard, token)
        for _ in range(tries):
            if not found.room.leaked_bytes:
                return Mend(found.room)
            try:
                await self._write(shard, token, found)
            except ChangedError:
                found = await self._look(shard, token)
                continue
            return Mend(found.room, (await self._look(shard, token)).room)
        return Mend(found.room, is_busy=True)

    async def _look(self, shard: Shard, token: LockToken | None) -> _Look:
        """Head, open reservations and version, all of one moment."""
        what = f"looking at the room of {shard}"
        operation = held_read(token) if token else ReadOp().assert_exists()
        content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
        refusals = HELD if token else QUEUE
        version = await self._connection.run(operation, shard.queue, what, refusals, self._locator(shard))
        head = decoded(decode_head, content.data, what)
        reservations = decoded(lambda values: open_reservations(head, values), xattrs.values, what)
        return _Look(content.data, head, room_of(head, reservations), version)

    async def _write(self, shard: Shard, token: LockToken | None, found: _Look) -> None:
        """Replace the sum that was seen. Raises ChangedError when anything came between, then nothing is written."""
        what = f"giving {shard} its room back"
        if found.head.reserved_at != RESERVED_AT or found.head.urgent_version not in URGENT_VERSIONS:
            raise StoreError(f"{what}: its head has a form that this remora does not know")
        operation = held_write(token) if token else WriteOp().assert_exists()
        operation.assert_version(found.version).assert_data(0, found.data[:_COMPARED])
        operation.write(RESERVED_AT, encode_reserved(found.room.owed_bytes))
        refusals = _HOLDERS if token else _ANYBODYS
        await self._connection.run(operation, shard.queue, what, refusals, self._locator(shard))
