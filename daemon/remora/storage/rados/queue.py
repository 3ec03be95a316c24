"""The committed entries of held queues. The lock and the incarnation are checked in each operation itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from remora.codec.queue_ops import decode_listing, encode_expire, encode_list, encode_remove
from remora.model.entry import Time
from remora.model.errors import OwnershipLost, ShardGone, StoreError
from remora.model.ledger import Tally
from remora.model.position import Position
from remora.model.record import Listing
from remora.model.shard import Hold
from remora.storage.librados import Operation
from remora.storage.rados.attempts import Attempts
from remora.storage.rados.connection import Connection
from remora.storage.rados.face import QUEUE_CLASS, Face, decoded, held_read, held_write
from remora.storage.rados.refusals import HELD

_AT_ONCE = 32

_START = Position(0, 0)


@dataclass(slots=True)
class _Ledger:
    """What this process knows of a hold: how far it listed and removed, and if a removal's outcome is unknown."""

    listed: Position
    removed: Position = _START
    doubtful: bool = False


class Queue(Face):
    """Lists, removes and frees room in held queues."""

    def __init__(self, connection: Connection, attempts: Attempts) -> None:
        super().__init__(connection)
        self._attempts = attempts
        self._ledgers: dict[Hold, _Ledger] = {}

    async def read(self, hold: Hold, start: bytes, limit: int) -> Listing:
        """Up to `limit` entries from position `start` on; from the oldest one when `start` is empty."""
        what = f"listing {hold.shard}"
        operation = held_read(hold)
        reply = operation.call(QUEUE_CLASS, "2pc_queue_list_entries", encode_list(limit, start))
        await self._run(operation, hold, what)
        listing = decoded(decode_listing, reply.data, what)
        self._note_listed(hold, Position.parse(listing.positions[-1].decode("ascii")))
        return listing

    async def remove(self, hold: Hold, upto: bytes, count: int, tally: Tally) -> None:
        """Remove the oldest `count` entries, all those before position `upto`.

        The OSD does not compare a position with the queue's tail: one beyond it would damage the queue for
        good. So nothing is removed that this process has not listed under this very hold.
        """
        if tally.total != count:
            raise ValueError(f"{hold.shard}: a tally of {tally.total} for the removal of {count} entries")
        ledger, end = self._ledgers.get(hold), Position.parse(upto.decode("ascii"))
        if ledger is None:
            raise OwnershipLost(f"{hold.shard}: nothing was listed under this hold, or it was lost since")
        if end > ledger.listed:
            raise ValueError(f"{hold.shard}: nothing was listed up to {end}, so nothing may be removed up to there")
        # The OSD subtracts the count from its number of entries even when it removes nothing. What may have been
        # removed already is therefore passed without a count: then the OSD lists what is left, and counts.
        exact = 0 if ledger.doubtful or end <= ledger.removed else count
        operation = held_write(hold)
        operation.call(QUEUE_CLASS, "2pc_queue_remove_entries", encode_remove(upto, exact))
        self._attempts.forget(operation, hold, end)
        ledger.doubtful = True
        await self._run(operation, hold, f"removing from {hold.shard}")
        ledger.doubtful = False
        ledger.removed = max(ledger.removed, end)
        self._attempts.forgotten(hold, end)

    async def expire_reservations(self, hold: Hold, older_than_s: float) -> None:
        """Free the room of reservations older than this, by this host's clock against the OSD's."""
        stale = time.time_ns() - int(older_than_s * 1e9)
        operation = held_write(hold)
        operation.call(QUEUE_CLASS, "2pc_queue_expire_reservations", encode_expire(Time(*divmod(stale, 10**9))))
        await self._run(operation, hold, f"expiring reservations of {hold.shard}")

    async def expire_all(self, holds: Sequence[Hold], older_than_s: float) -> Sequence[StoreError | None]:
        """Expire in several queues, a bounded number at a time."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(hold: Hold) -> StoreError | None:
            try:
                async with gate:
                    await self.expire_reservations(hold, older_than_s)
            except StoreError as exc:
                return exc
            return None

        return await asyncio.gather(*map(one, holds))

    async def _run(self, operation: Operation, hold: Hold, what: str) -> None:
        try:
            await self._connection.run(operation, hold.shard.queue, what, HELD, self._place(hold.shard))
        except (OwnershipLost, ShardGone):
            self._ledgers.pop(hold, None)
            self._attempts.let_go(hold)
            raise

    def _note_listed(self, hold: Hold, end: Position) -> None:
        ledger = self._ledgers.setdefault(hold, _Ledger(end))
        ledger.listed = max(ledger.listed, end)
