"""Has OSDs that leak no room mend the heads that OSDs with the leak have left, before anything of ours spoils them.

An OSD without the leak counts what is reserved anew when the first thing that it does to an old head is a reservation.
When that is a removal, an abort, or a commit in an older reservation, it keeps the leaked sum and marks the head as
counted: for good. So before we do one of these, we reserve a byte and abort it. A gateway's reservation does as well.
A queue that is full to its last bytes has no room for that: there the sum is written, as `mends.py` does it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from remora.codec.queue_ops import (
    HEAD_SIZE,
    QueueHead,
    QueueReservation,
    decode_head,
    encode_abort,
    encode_reserve,
    open_reservations,
)
from remora.model.errors import QueueFull, StoreError
from remora.model.shard import Shard
from remora.storage.librados import ObjectOperation, ReadOp, WriteOp
from remora.storage.rados.connection import ClusterConnection
from remora.storage.rados.mends import RadosMends
from remora.storage.rados.part import QUEUE_CLASS, RadosPart, decoded
from remora.storage.rados.refusals import QUEUE, RESERVED, ChangedError, Refusals

COUNTED_VERSION = 3
"""The form of a head in which nothing leaks."""

_TRIES = 20

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
