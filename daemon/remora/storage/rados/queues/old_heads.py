"""Gives queues the room back that OSDs have leaked: writes what is really reserved into the head of a queue object.

The write passes only on the very object that was read: its version, and the bytes from the magic number to the sum
that is replaced, are compared in the same operation. So a reservation, commit, abort or removal that comes between
has the write refused, and is not touched by it; docs/decisions/mending-queues.md has the proof.

Heads that OSDs with the leak have left are mended before anything of ours spoils them. An OSD without the leak counts
what is reserved anew when the first thing that it does to an old head is a reservation. When that is a removal, an
abort, or a commit in an older reservation, it keeps the leaked sum and marks the head as counted: for good. So before
we do one of these, we reserve a byte and abort it. A gateway's reservation does as well. A queue that is full to its
last bytes has no room for that: there the sum is written, as for any other queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from remora.codec.queue_ops import (
    HEAD_SIZE,
    RESERVED_AT,
    URGENT_VERSIONS,
    QueueHead,
    QueueReservation,
    decode_head,
    encode_abort,
    encode_reserve,
    encode_reserved,
    open_reservations,
    room_of,
)
from remora.model.errors import QueueFull, StoreError
from remora.model.shard import LockToken, Mend, QueueRoom, Shard
from remora.storage.librados import MISMATCH, ObjectOperation, ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import QUEUE_CLASS, RadosPart, decoded, held_read, held_write
from remora.storage.rados.cluster.refusals import HELD, QUEUE, RESERVED, ChangedError, Refusals

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
        self._connection.traffic.looked(len(content.data))
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


COUNTED_VERSION = 3
"""The form of a head in which nothing leaks."""


_MIXED_S = 10.0
"""Where OSDs of both kinds are up, a queue may move between them at any time, and is looked at again after this."""


MOST_SETTLED = 1 << 16
"""Of so many queues it is known that nothing is to be done; queues come and go, and a daemon runs for years."""


@dataclass(frozen=True, slots=True)
class _Settled:
    changes: int
    at: float


class OldHeads(RadosPart):
    """See the module. `settle` costs nothing while what it saw last holds, and nothing where all OSDs leak."""

    def __init__(self, connection: ClusterConnection, mends: RadosMends, *, may_write: bool) -> None:
        """`may_write` is False where the operator wants no mends."""
        super().__init__(connection)
        self._osds, self._mends, self._may_write = connection.osds, mends, may_write
        self._settled: dict[Shard, _Settled] = {}

    async def settle(self, shard: Shard, head: QueueHead | None = None) -> None:
        """Call before a removal, an abort, or a commit that does not follow its reservation.

        With the queue's `head`, on acquisition, what was seen before does not count. Raises StoreError: then nothing
        that was to follow may be done either.
        """
        now = asyncio.get_running_loop().time()
        known, changes, are_mixed = self._settled.get(shard), self._osds.changes, self._osds.releases.are_mixed
        if head is None and known and known.changes == changes and not (are_mixed and now - known.at >= _MIXED_S):
            return
        is_counted = head is not None and head.urgent_version >= COUNTED_VERSION
        if self._osds.releases.may_be_fixed and not is_counted:
            await self._have_it_counted(shard)
        self._settled.pop(shard, None)
        self._settled[shard] = _Settled(changes, now)
        if len(self._settled) > MOST_SETTLED:  # of the others, the one that was looked at longest ago
            del self._settled[next(iter(self._settled))]

    async def _have_it_counted(self, shard: Shard) -> None:
        """Reserve and abort where the head is old. An OSD that leaks leaves it as old as it was, 10 bytes fuller."""
        for _ in range(_TRIES):
            head, reservations, version = await self._look(shard)
            if head.urgent_version >= COUNTED_VERSION:
                return
            if any(each.id == head.next_id for each in reservations):  # librados would repeat it until that one ends
                await self._write(shard)
                return
            try:
                reserving = WriteOp().assert_exists().assert_version(version)
                reserving.call(QUEUE_CLASS, "2pc_queue_reserve", encode_reserve(1, 1))
                await self._send(reserving, shard, f"reserving in {shard}", RESERVED)
            except ChangedError:
                continue
            except QueueFull:
                await self._write(shard)
            else:
                aborting = WriteOp().assert_exists().call(QUEUE_CLASS, "2pc_queue_abort", encode_abort(head.next_id))
                await self._send(aborting, shard, f"aborting in {shard}", QUEUE)
            return

    async def _write(self, shard: Shard) -> None:
        """Write the sum, as where a leak is mended; a cluster that is full may refuse that, and removals make room."""
        if self._may_write:
            with contextlib.suppress(StoreError):
                await self._mends.mend_unheld(shard)

    async def _look(self, shard: Shard) -> tuple[QueueHead, Sequence[QueueReservation], int]:
        what = f"looking at {shard}"
        operation = ReadOp().assert_exists()
        content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
        version = await self._send(operation, shard, what, QUEUE)
        head = decoded(decode_head, content.data, what)
        return head, decoded(lambda values: open_reservations(head, values), xattrs.values, what), version

    async def _send(self, operation: ObjectOperation, shard: Shard, what: str, refusals: Refusals) -> int:
        return await self._connection.run(operation, shard.queue, what, refusals, self._locator(shard))
