"""The balance of each queue: what its ring says was committed, against what its state says has left it.

The ring counts bytes; the state books bytes and entries. What a radosgw removed is known in bytes, so its entries are
estimated. Everything else is exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from remora.bounded import each_of
from remora.codec.lock_ops import decode_lock_info, encode_get_info
from remora.codec.queue_ops import ENTRY_OVERHEAD, HEAD_SIZE, QueueHead, decode_head, open_reservations, room_of
from remora.model.errors import StoreError
from remora.model.ledger import Balance, Tally
from remora.model.member import WORKER_COOKIE
from remora.model.position import Position
from remora.model.shard import LockToken, Shard
from remora.storage.librados import ReadOp
from remora.storage.rados.cluster.part import LOCK_CLASS, RadosPart, decoded, held_read, lock_holder, lock_name
from remora.storage.rados.cluster.refusals import HELD, QUEUE, FrontMovedError
from remora.storage.rados.cluster.state import StoredState, stored_state
from remora.storage.rados.queues.inspection import UnlockedScan
from remora.storage.rados.queues.own_queues import is_leaving

_AT_ONCE = 8
_TRIES = 5


class RadosLedger(RadosPart):
    """Reads the balances of queues."""

    async def balance(self, shard: Shard) -> Balance:
        """One shard's balance. While no worker holds its lock, unbooked removals count as removed elsewhere."""
        what = f"looking at the ledger of {shard}"
        for _ in range(_TRIES):
            operation = ReadOp().assert_exists()
            content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
            lock = operation.call(LOCK_CLASS, "get_info", encode_get_info(lock_name(shard)))
            await self._connection.run(operation, shard.queue, what, QUEUE, self._locator(shard))
            self._connection.traffic.looked(len(content.data))
            stored = stored_state(decoded(decode_head, content.data, what), xattrs.values, what)
            holder = lock_holder(decoded(decode_lock_info, lock.data, what))
            if holder is None or not holder.lease_left_s or not holder.cookie.startswith(WORKER_COOKIE):
                stored = stored._replace(state=stored.state.settled(stored.head))
            with contextlib.suppress(FrontMovedError):  # its owner removes: look again
                return _balance(shard, stored, await self._count(shard, stored.head), is_leaving(xattrs.values))
        return _balance(shard, stored, _estimated(stored), is_leaving(xattrs.values))

    async def balances(self, tokens: Sequence[LockToken]) -> Sequence[Balance]:
        """The balances of held shards, eight at a time; no entry is read."""
        found = await each_of(tokens, self._held, StoreError, at_once=_AT_ONCE)
        return [each for each in found if not isinstance(each, StoreError)]

    async def _held(self, token: LockToken) -> Balance:
        what = f"looking at the ledger of {token.shard}"
        operation = held_read(token)
        content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
        await self._connection.run(operation, token.shard.queue, what, HELD, self._locator(token.shard))
        self._connection.traffic.looked(len(content.data))
        stored = stored_state(decoded(decode_head, content.data, what), xattrs.values, what)
        reservations = decoded(lambda values: open_reservations(stored.head, values), xattrs.values, what)
        balance = _balance(token.shard, stored, _estimated(stored), is_leaving(xattrs.values))
        return replace(balance, room=room_of(stored.head, reservations))

    async def _count(self, shard: Shard, head: QueueHead) -> int:
        """The number of entries between a queue's front and tail. Raises FrontMovedError when some leave meanwhile."""
        scan = UnlockedScan(self._connection, shard, self._locator(shard))
        position, count = head.front, 0
        while position < head.tail:
            listing = await scan.page(head, position)
            positions = [Position.parse(each.decode("ascii")) for each in listing.positions]
            count += sum(each < head.tail for each in positions[:-1])
            if positions[-1] == position:
                raise StoreError(f"counting {shard}: nothing stands at {position}, before its end at {head.tail}")
            position = positions[-1]
        return count


def _estimated(stored: StoredState) -> int:
    """The number of pending entries: the head's count, else an estimate from the bytes."""
    head, counted = stored.head, stored.head.committed_entries
    if counted and counted <= head.used_bytes // ENTRY_OVERHEAD:
        return counted
    return stored.state.entries_in(head.used_bytes, head)


def _balance(shard: Shard, stored: StoredState, pending: int, leaving: bool) -> Balance:
    """The balance with so many entries in the ring; what is unaccounted is known in bytes.

    So the committed entries follow from the others.
    """
    state, head = stored.state, stored.head
    removed, spilled = state.removed, state.spill.entries
    pending += spilled
    unaccounted = state.entries_in(state.unaccounted_bytes(head), head)
    if leaving:
        removed, pending, spilled = removed + Tally(dropped=pending), 0, 0
    return Balance(shard, removed.total + pending + unaccounted, pending, removed, spilled=spilled)
