"""What the parts of the store share: addressing a queue, operations that check its lock, reading an omap, and locks of
this process by queue or topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from remora.codec.lock_ops import LockInfo, decode_lock_info, encode_assert_locked, encode_get_info
from remora.model.errors import CodecError, StoreError
from remora.model.shard import LockHolder, LockToken, Origin, Shard
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.placement import Locator
from remora.storage.rados.cluster.refusals import HELD, MissingError

R = TypeVar("R")
T = TypeVar("T")

QUEUE_CLASS, LOCK_CLASS = "2pc_queue", "lock"

INCARNATION = "remora.incarnation"
"""The xattr that distinguishes a queue from a later one of its name."""


class RadosPart:
    """The base of the store's parts, which share its connection."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection

    @property
    def _own(self) -> Locator:
        """Where remora's own objects lie. Raises StoreUnavailable or StoreMisconfigured while there is no session."""
        return self._connection.session.placement.own

    def _locator(self, shard: Shard) -> Locator:
        """Where the object of a queue lies. Raises as `_own`."""
        return self._connection.session.placement.notif if shard.origin is Origin.RADOSGW else self._own


def lock_name(shard: Shard) -> str:
    """The name of the lock that radosgw takes on a queue, too."""
    return f"{shard.queue}_lock"


async def holder_of(connection: ClusterConnection, shard: Shard, locator: Locator) -> LockHolder | None:
    """The holder of a queue's lock, also one whose lease has run out; None when there is none. Raises ShardGone."""
    what = f"looking at the lock of {shard}"
    operation = ReadOp().assert_exists()
    reply = operation.call(LOCK_CLASS, "get_info", encode_get_info(lock_name(shard)))
    await connection.run(operation, shard.queue, what, HELD, locator)
    return lock_holder(decoded(decode_lock_info, reply.data, what))


def lock_holder(info: LockInfo) -> LockHolder | None:
    """The one locker of an exclusive lock; None when it is free."""
    if not info.lockers:
        return None
    first = info.lockers[0]
    # By this host's clock, while the lease runs on the OSD's: wrong by as much as the two differ.
    until_ns = first.expiration.ns
    left_s = max(0.0, until_ns / 1e9 - time.time()) if until_ns else float("inf")
    return LockHolder(first.entity, first.cookie, left_s, first.address, first.description)


def check_locked(shard: Shard, cookie: str) -> tuple[str, str, bytes]:
    """The class call that refuses an operation unless this client holds the lock with this cookie."""
    return LOCK_CLASS, "assert_locked", encode_assert_locked(lock_name(shard), cookie)


def held_read(token: LockToken) -> ReadOp:
    """A read that passes only on the locked incarnation of the queue, while it is locked."""
    operation = ReadOp().assert_exists().assert_xattr(INCARNATION, token.incarnation)
    return operation.check(*check_locked(token.shard, token.cookie))


def held_write(token: LockToken) -> WriteOp:
    """A write that passes only on the locked incarnation of the queue, while it is locked."""
    operation = WriteOp().assert_exists().assert_xattr(INCARNATION, token.incarnation)
    return operation.call(*check_locked(token.shard, token.cookie))


def decoded(decode: Callable[[R], T], reply: R, what: str) -> T:
    """An OSD's answer, decoded. Raises StoreError when it is malformed."""
    try:
        return decode(reply)
    except CodecError as exc:
        raise StoreError(f"{what}: the answer cannot be read: {exc}") from exc


_PAGE = 1024


async def all_keys(connection: ClusterConnection, oid: str, locator: Locator) -> list[str]:
    """All keys in order; empty when there is no such object."""
    keys: list[str] = []
    more = True
    while more:
        operation = ReadOp().assert_exists()
        page = operation.omap_keys(keys[-1] if keys else "", _PAGE)
        try:
            await connection.run(operation, oid, f"reading the keys of {oid}", locator=locator)
        except MissingError:
            return keys
        keys += page.values
        more = page.more and bool(page.values)
    return keys


async def all_values(connection: ClusterConnection, oid: str, locator: Locator) -> dict[str, bytes]:
    """All keys with their values, in order; empty when there is no such object."""
    found: dict[str, bytes] = {}
    more = True
    while more:
        operation = ReadOp().assert_exists()
        page = operation.omap_page(next(reversed(found), ""), "", _PAGE)
        try:
            await connection.run(operation, oid, f"reading {oid}", locator=locator)
        except MissingError:
            return found
        found |= page.values
        more = page.more and bool(page.values)
    return found


K = TypeVar("K", bound=Hashable)


class KeyedLocks(Generic[K]):
    """Locks by key. Topics and queues come and go, and a daemon runs for years: what nobody uses is forgotten."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._locks)

    def of(self, key: K) -> asyncio.Lock:
        """The lock of this key, the same one for all who use it at a time; `async with` keeps it."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock
