"""Inspects queues without their lock, while other clients list and remove.

An OSD that lists from a position which the queue no longer has may never answer: once the ring has wrapped around it
reads beyond the ring's end, in a loop, until it is killed (`queue_list_entries` in Ceph's cls_queue_src.cc takes the
tail minus the position as an unsigned length). So each listing compares, in the same operation, the front that the
position was checked against.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

from remora.bounded import each_of
from remora.codec.lock_ops import decode_lock_info, encode_get_info
from remora.codec.queue_ops import (
    ENTRY_OVERHEAD,
    FRONT_AT,
    HEAD_SIZE,
    QueueHead,
    decode_head,
    decode_listing,
    encode_front,
    encode_list,
    open_reservations,
    room_of,
)
from remora.codec.queue_state import spill_in
from remora.codec.rendering_plain import age_s
from remora.model.errors import CodecError, StoreDamaged, StoreError, StoreUnavailable
from remora.model.position import Position
from remora.model.record import Page
from remora.model.shard import Shard, ShardStats
from remora.storage.librados import ReadOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import LOCK_CLASS, QUEUE_CLASS, RadosPart, decoded, lock_holder, lock_name
from remora.storage.rados.cluster.placement import Locator
from remora.storage.rados.cluster.refusals import QUEUE, UNLOCKED, FrontMovedError
from remora.storage.rados.cluster.state import SPILL
from remora.storage.rados.queues.runs import Runs, SpilledView, oldest_spilled, spilled_view

PAGE = 1024


class UnlockedScan:
    """A scan of one queue by a client that does not hold its lock."""

    def __init__(self, connection: ClusterConnection, shard: Shard, locator: Locator) -> None:
        self._connection = connection
        self._shard = shard
        self._locator = locator

    async def head(self) -> QueueHead:
        """The queue's head as it is now."""
        what = f"looking at {self._shard}"
        operation = ReadOp().assert_exists()
        content = operation.read(0, HEAD_SIZE)
        await self._connection.run(operation, self._shard.queue, what, QUEUE, self._locator)
        return decoded(decode_head, content.data, what)

    async def page(self, head: QueueHead, start: Position) -> Page:
        """Up to 1,024 entries from `start` on, a position between this head's front and tail.

        Raises FrontMovedError when the queue's front has moved since that head was read.
        """
        what = f"listing {self._shard}"
        operation = ReadOp().assert_exists().assert_data(FRONT_AT, encode_front(head.front))
        request = encode_list(PAGE, str(start).encode())
        reply = operation.call(QUEUE_CLASS, "2pc_queue_list_entries", request)
        await self._connection.run(operation, self._shard.queue, what, UNLOCKED, self._locator)
        await self._connection.traffic.walked(len(reply.data))
        return decoded(decode_listing, reply.data, what)


_SAMPLE = 16
_MOST_MOVES = 100
"""A listing is given up after the front moved this often in a row."""

_AT_ONCE = 8
_TRIES = 3


class RadosInspection(RadosPart):
    """Reads the figures and contents of a queue: of runs first, and then of its ring."""

    def __init__(self, connection: ClusterConnection, runs: Runs) -> None:
        super().__init__(connection)
        self._runs = runs

    async def stats(self, shard: Shard, *, exact: bool = False) -> ShardStats:
        """Figures of one queue, all of one moment; with `exact` its entries are listed and counted afterwards.

        The head has the number of entries where the OSD counts them (from Squid on). Elsewhere it is estimated from the
        bytes and the size of the oldest entries.
        """
        what = f"looking at {shard}"
        operation = ReadOp().assert_exists()
        content = operation.read(0, HEAD_SIZE)
        holder = operation.call(LOCK_CLASS, "get_info", encode_get_info(lock_name(shard)))
        sample = operation.call(QUEUE_CLASS, "2pc_queue_list_entries", encode_list(_SAMPLE))
        xattrs = operation.xattrs()
        await self._connection.run(operation, shard.queue, what, QUEUE, self._locator(shard))
        self._connection.traffic.looked(len(content.data) + len(sample.data))
        head = decoded(decode_head, content.data, what)
        oldest = decoded(decode_listing, sample.data, what)
        reservations = decoded(lambda xattrs: open_reservations(head, xattrs), xattrs.values, what)
        spill = decoded(spill_in, xattrs.values.get(SPILL, b""), what)
        entries, is_exact = _entries(head, oldest)
        entries += spill.entries
        if exact and not is_exact:
            entries, is_exact = await self._count(shard), True
        first = oldest.entries[0] if oldest.entries else None
        if spill.entries:
            first = await oldest_spilled(await self._view(shard)) or first
        return ShardStats(
            shard=shard,
            entries=entries,
            entries_exact=is_exact,
            used_bytes=head.used_bytes,
            capacity_bytes=head.capacity_bytes,
            reservations=len(reservations),
            reserved_bytes=sum(each.size for each in reservations),
            oldest_age_s=age_s(first, time.time_ns()) if first is not None else None,
            holder=lock_holder(decoded(decode_lock_info, holder.data, what)),
            leaked_bytes=room_of(head, reservations).leaked_bytes,
            spilled_entries=spill.entries,
            spilled_bytes=spill.nbytes,
        )

    async def backlog(self, shards: Sequence[Shard]) -> Sequence[ShardStats]:
        """Figures of many queues, eight at a time, without queues that are empty or do not answer."""
        found = await each_of(shards, self.stats, (StoreError, CodecError), at_once=_AT_ONCE)
        return [each for each in found if isinstance(each, ShardStats) and (each.entries or each.reservations)]

    async def dump(self, shard: Shard) -> AsyncIterator[tuple[str, bytes]]:
        """Position and raw bytes of each pending entry, oldest first, none twice.

        Entries that the queue's owner removes meanwhile are left out.
        """
        scan = UnlockedScan(self._connection, shard, self._locator(shard))
        view, start, moved, truncated = await self._view(shard), Position(0, 0), 0, True
        while truncated:
            try:
                async for place, entry in view.entries(start):
                    yield place, entry
                    behind = Position.parse(place)
                    start = behind._replace(offset=behind.offset + 1)
                start = max(start, view.stored.head.front)
                listing = await scan.page(view.stored.head, start)
            except (FrontMovedError, StoreDamaged) as exc:
                moved += 1
                if moved > _MOST_MOVES or (isinstance(exc, StoreDamaged) and moved > _TRIES):
                    raise exc if isinstance(exc, StoreDamaged) else StoreUnavailable(f"{exc}, again and again") from exc
                view = await self._view(shard)
                continue
            moved = 0
            for position, entry in zip(listing.positions, listing.entries, strict=False):  # one position is left over
                yield position.decode("ascii"), entry
            start, truncated = Position.parse(listing.positions[-1].decode("ascii")), listing.truncated

    async def _view(self, shard: Shard) -> SpilledView:
        return await spilled_view(self._connection, shard, self._locator(shard), self._runs)

    async def _count(self, shard: Shard) -> int:
        count = 0
        async for _ in self.dump(shard):
            count += 1
        return count


def _entries(head: QueueHead, oldest: Page) -> tuple[int, bool]:
    """The number of entries, and whether it is exact."""
    if not oldest.truncated:
        return len(oldest.entries), True
    counted = head.committed_entries
    if counted is not None and len(oldest.entries) < counted <= head.used_bytes // ENTRY_OVERHEAD:
        return counted, True
    mean = oldest.nbytes / len(oldest.entries) + ENTRY_OVERHEAD
    return max(len(oldest.entries) + 1, round(head.used_bytes / mean)), False
