"""The producing side of a queue, as a gateway uses it."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from remora.codec.queue_ops import (
    ENTRY_OVERHEAD,
    HEAD_SIZE,
    QueueHead,
    QueueReservation,
    decode_head,
    encode_abort,
    encode_commit,
    encode_reserve,
    open_reservations,
)
from remora.model.errors import QueueFull, ReservationIdTaken, ShardGone, StoreError, StoreFull, StoreUnavailable
from remora.model.shard import Shard
from remora.policy.ingest.reservations import Sightings
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import QUEUE_CLASS, KeyedLocks, RadosPart, decoded
from remora.storage.rados.cluster.refusals import PLAIN, QUEUE, RESERVED, ChangedError, Refusals
from remora.storage.rados.queues.old_heads import OldHeads

_TRIES = 50
_PAUSE_S = 0.005

_COMMITTED: Refusals = MappingProxyType(
    {
        **QUEUE,
        errno.EINVAL: (StoreError, "the payloads are larger than their reservation"),
    }
)

_ANY: Mapping[str, str] = MappingProxyType({})
_NONE_SEEN: Sightings[QueueReservation] = Sightings()


class RadosTwoPhase(RadosPart):
    """Reserves, commits and aborts."""

    def __init__(self, connection: ClusterConnection, old_heads: OldHeads, reservation_age_s: float) -> None:
        super().__init__(connection)
        self._old_heads, self._age_s = old_heads, reservation_age_s
        self._turns: KeyedLocks[Shard] = KeyedLocks()
        self._in_the_way: dict[Shard, Sightings[QueueReservation]] = {}

    async def reserve(self, shard: Shard, entries: int, nbytes: int) -> int:
        """Reserve room and return the reservation's id. Raises QueueFull, StoreFull and ShardGone."""
        return await self.reserve_where(shard, entries, nbytes, _ANY)

    async def reserve_where(self, shard: Shard, entries: int, nbytes: int, xattrs: Mapping[str, str]) -> int:
        """Reserve room in a queue with these attributes; raises MismatchError when it has others.

        Raises ReservationIdTaken where an open reservation has the next id, unless that has been seen for so long that
        it is given up.

        Librados' C interface discards the output of a writing class call, so the id is predicted: the head has the last
        id, and the reservation passes only while the object has the version at which the head was read.
        """
        async with self._turns.of(shard):
            for attempt in range(_TRIES):
                head, version = await self._head(shard)
                if in_the_way := await self._with_next_id(shard, head):
                    await self._free(shard, in_the_way)
                    continue
                try:
                    await self._reserve(shard, entries, nbytes, xattrs, version)
                except ChangedError:
                    await asyncio.sleep(random.uniform(0, attempt * _PAUSE_S))  # noqa: S311 - spreads load
                    continue
                self._in_the_way.pop(shard, None)
                return head.next_id
        raise StoreUnavailable(f"reserving in {shard}: other clients always came first")

    async def _with_next_id(self, shard: Shard, head: QueueHead) -> QueueReservation | None:
        """The open reservation with the id that the next one would have.

        The class refuses that one with EAGAIN, and librados repeats an operation with this answer until it times out.
        """
        found = head.reservations
        if head.has_xattrs:
            what, operation = f"looking at reservations of {shard}", ReadOp().assert_exists()
            xattrs = operation.xattrs()
            await self._run(operation, shard, what, QUEUE)
            found = decoded(lambda values: open_reservations(head, values), xattrs.values, what)
        return next((each for each in found if each.id == head.next_id), None)

    async def _free(self, shard: Shard, found: QueueReservation) -> None:
        """Give up a reservation that was seen for long enough; else raise ReservationIdTaken.

        As the holder of the queue does with all, and by the same rule: this process has seen it for that long.
        """
        now = asyncio.get_running_loop().time()
        seen = self._in_the_way[shard] = self._in_the_way.get(shard, _NONE_SEEN).after_look([found], now)
        if not seen.seen_for(self._age_s, now):
            raise ReservationIdTaken(
                f"reserving in {shard}: the next reservation would have the id {found.id}, which an open one of "
                f"{found.size} bytes has; it is given up when it has been seen for {self._age_s:g} s"
            )
        await self.abort(shard, found.id)

    async def commit(self, shard: Shard, reservation: int, payloads: Sequence[bytes]) -> None:
        """Append the payloads in order, all or none, and end the reservation."""
        await self._old_heads.settle(shard)
        what = f"committing to {shard}"
        operation = WriteOp().assert_exists()
        operation.call(QUEUE_CLASS, "2pc_queue_commit", encode_commit(reservation, payloads))
        try:
            await self._run(operation, shard, what, _COMMITTED)
        except ShardGone as exc:  # the same errno for an unknown reservation: only this tells them apart
            await self._run(ReadOp().assert_exists(), shard, what, QUEUE)
            raise StoreError(f"{what}: there is no reservation {reservation}; it may have expired") from exc

    async def abort(self, shard: Shard, reservation: int) -> None:
        """End the reservation; an unknown one is no error."""
        await self._old_heads.settle(shard)
        operation = WriteOp().assert_exists()
        operation.call(QUEUE_CLASS, "2pc_queue_abort", encode_abort(reservation))
        await self._run(operation, shard, f"aborting in {shard}", QUEUE)

    async def _reserve(self, shard: Shard, entries: int, nbytes: int, xattrs: Mapping[str, str], version: int) -> None:
        """Reserve in the queue while it has this version."""
        operation = WriteOp().assert_exists().assert_version(version)
        for name, value in xattrs.items():
            operation.assert_xattr(name, value)
        operation.call(QUEUE_CLASS, "2pc_queue_reserve", encode_reserve(nbytes, entries))
        try:
            await self._run(operation, shard, f"reserving in {shard}", RESERVED)
        except QueueFull as exc:
            head, _ = await self._head(shard)
            if head.free_bytes - head.reserved_size < nbytes + entries * ENTRY_OVERHEAD:
                raise
            raise StoreFull(f"reserving in {shard}: the cluster is full") from exc  # the same errno

    async def _head(self, shard: Shard) -> tuple[QueueHead, int]:
        """The head of a queue, and the object's version with it."""
        what = f"reading the head of {shard}"
        operation = ReadOp().assert_exists()
        content = operation.read(0, HEAD_SIZE)
        version = await self._run(operation, shard, what, QUEUE)
        return decoded(decode_head, content.data, what), version

    async def _run(self, operation: ReadOp | WriteOp, shard: Shard, what: str, refusals: Refusals = PLAIN) -> int:
        return await self._connection.run(operation, shard.queue, what, refusals, self._locator(shard))
