"""The exclusive lock of each queue: radosgw's own, so that a radosgw and remora never own a queue at the same time."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Protocol

from remora.bounded import each_of
from remora.codec.lock_ops import (
    LockFlags,
    encode_break,
    encode_lock,
    encode_unlock,
)
from remora.codec.queue_ops import HEAD_SIZE, decode_head
from remora.codec.queue_state import encode_state
from remora.model.entry import Time
from remora.model.errors import OwnershipLost, ShardGone, StoreError, StoreUnavailable
from remora.model.shard import LockHolder, LockToken, Shard
from remora.ports.spill import OnSeam
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import (
    INCARNATION,
    LOCK_CLASS,
    RadosPart,
    check_locked,
    decoded,
    held_read,
    held_write,
    holder_of,
    lock_name,
)
from remora.storage.rados.cluster.refusals import HELD, Refusals
from remora.storage.rados.cluster.state import STATE, stored_state
from remora.storage.rados.queues.catalog import RadosCatalog
from remora.storage.rados.queues.doorbells import Doorbells
from remora.storage.rados.queues.old_heads import OldHeads

# Unlocking and breaking answer ENOENT both for "no such holder" and for "no such queue".
_NOT_THERE: Refusals = MappingProxyType(
    {
        errno.ENOENT: (ShardGone, "there is no such lock or queue"),
        errno.ECANCELED: (ShardGone, "the queue is another one than was locked"),
    }
)

_MARKED: Refusals = MappingProxyType(
    {
        **HELD,
        errno.ECANCELED: (StoreUnavailable, "its incarnation or its ledger has just changed"),
    }
)

_TRIES = 3

_RENEWED_AT_ONCE = 512
"""Where the OSDs of a lock are away its renewal takes `rados.op_timeout`, and those behind it wait. With so many side
by side, 1,000 of them hold up the others for two of these times, and a lease lasts for several."""


class HeldQueues(Protocol):
    """Who keeps something of queues while their locks are held."""

    def taken(self, token: LockToken) -> None:
        """The lock was acquired."""
        ...

    def let_go(self, token: LockToken) -> None:
        """The lock is not held any more."""
        ...


class RadosLocks(RadosPart):
    """Takes, extends and releases locks of queues.

    Every call begins with assert_exists: locking a missing object would create an empty one, which makes the queue's
    topic unusable for radosgw.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        catalog: RadosCatalog,
        old_heads: OldHeads,
        doorbells: Doorbells,
        queue: HeldQueues,
        on_seam: OnSeam,
    ) -> None:
        """The locks tell `queue` of each one that they acquire, before anything uses it, and of each one that they lose
        or release. They call `on_seam` with those that have a seam, see `ports.spill`.
        """
        super().__init__(connection)
        self._catalog, self._old_heads, self._queue, self._on_seam = catalog, old_heads, queue, on_seam
        self._doorbells = doorbells

    async def acquire(self, shard: Shard, cookie: str, lease_s: float) -> LockToken | LockHolder:
        """Take the lock, or extend one that this client holds already; else return its holder."""
        holder: LockHolder | None = None
        for _ in range(_TRIES):  # it may be released or broken between two calls
            try:
                request = encode_lock(lock_name(shard), cookie, _duration(lease_s), LockFlags.MAY_RENEW)
                operation = WriteOp().assert_exists().call(LOCK_CLASS, "lock", request)
                await self._run(operation, shard, f"locking {shard}", HELD)
                token = LockToken(shard, cookie, await self._incarnation(shard, cookie))
                self._queue.taken(token)
                self._doorbells.hold(shard)
                return token
            except OwnershipLost:
                holder = await self.holder(shard)
            if holder is not None and holder.lease_left_s > 0:
                break
        if holder is None:
            raise StoreUnavailable(f"locking {shard}: the lock keeps changing hands")
        return holder

    async def _renew(self, token: LockToken, lease_s: float) -> None:
        """Extend a lock that is still held.

        The flag must-renew alone would do, but answers ENOENT both for a lock that is not held and for a queue that
        does not exist; the check before it answers EBUSY. A lock that ends between the two is answered with ENOENT all
        the same, though its queue is there: another look tells.
        """
        what = f"renewing the lock of {token.shard}"
        request = encode_lock(lock_name(token.shard), token.cookie, _duration(lease_s), LockFlags.MUST_RENEW)
        try:
            await self._run(held_write(token).call(LOCK_CLASS, "lock", request), token.shard, what, HELD)
        except ShardGone as exc:
            await self._run(held_read(token), token.shard, what, HELD)
            raise StoreUnavailable(f"{what}: the lock was not held for a moment") from exc

    async def renew_all(self, tokens: Sequence[LockToken], lease_s: float) -> Sequence[StoreError | None]:
        """Extend several locks side by side; returns an error for each that was not extended."""

        async def one(token: LockToken) -> None:
            try:
                await self._renew(token, lease_s)
            except (OwnershipLost, ShardGone):
                self._let_go(token)
                raise

        return await each_of(tokens, one, StoreError, at_once=_RENEWED_AT_ONCE)

    async def release(self, token: LockToken) -> None:
        """Release the lock; no error when it is not held any more."""
        self._let_go(token)
        request = encode_unlock(lock_name(token.shard), token.cookie)
        operation = WriteOp().assert_exists().assert_xattr(INCARNATION, token.incarnation)
        operation.call(LOCK_CLASS, "unlock", request)
        with suppress(ShardGone):
            await self._run(operation, token.shard, f"unlocking {token.shard}", _NOT_THERE)

    def _let_go(self, token: LockToken) -> None:
        self._doorbells.let_go(token.shard)
        self._queue.let_go(token)

    async def evict(self, shard: Shard, holder: LockHolder) -> None:
        """Break the lock of exactly this holder; no error when it is gone."""
        request = encode_break(lock_name(shard), holder.entity, holder.cookie)
        operation = WriteOp().assert_exists().call(LOCK_CLASS, "break_lock", request)
        with suppress(ShardGone):
            await self._run(operation, shard, f"breaking the lock of {shard}", _NOT_THERE)

    async def evict_all(self, is_dead: Callable[[str], bool]) -> Sequence[Shard]:
        """Break every lock whose holder's cookie is dead, among all registered queues; returns the shards."""

        async def one(shard: Shard) -> bool:
            holder = await self.holder(shard)
            if holder is None or not is_dead(holder.cookie):
                return False
            await self.evict(shard, holder)
            return True

        shards = await self._catalog.shards()
        freed = await each_of(shards, one, StoreError)
        return [shard for shard, was_freed in zip(shards, freed, strict=True) if was_freed is True]

    async def holder(self, shard: Shard) -> LockHolder | None:
        """The holder of the lock, also one whose lease has run out; None when there is none. Raises ShardGone."""
        return await holder_of(self._connection, shard, self._locator(shard))

    async def _incarnation(self, shard: Shard, cookie: str) -> str:
        """The queue's incarnation; set now, under the lock, when it has none.

        The same operation begins the queue's ledger where it has none, and books what others removed.
        """
        what, check = f"taking {shard}", check_locked(shard, cookie)
        operation = ReadOp().assert_exists().check(*check)
        content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
        await self._run(operation, shard, what, HELD)
        known = xattrs.values.get(INCARNATION, b"").decode("ascii", "replace")
        stored = stored_state(decoded(decode_head, content.data, what), xattrs.values, what)
        await self._old_heads.settle(shard, stored.head)
        has_seam = stored.state.spill.entries > 0 and stored.state.unaccounted_bytes(stored.head) > 0
        incarnation, value = known or secrets.token_hex(8), encode_state(stored.state.settled(stored.head))
        if known and value == stored.value:
            return known
        marking = (
            WriteOp().assert_exists().call(*check).assert_xattr(INCARNATION, known).assert_xattr(STATE, stored.value)
        )
        marking.set_xattr(INCARNATION, incarnation).set_xattr(STATE, value)
        await self._run(marking, shard, what, _MARKED)
        if has_seam:
            self._on_seam(shard, stored.state.spill.entries)
        return incarnation

    async def _run(self, operation: ReadOp | WriteOp, shard: Shard, what: str, refusals: Refusals) -> None:
        await self._connection.run(operation, shard.queue, what, refusals, self._locator(shard))


def _duration(lease_s: float) -> Time:
    return Time(int(lease_s), int(lease_s % 1 * 1e9))
