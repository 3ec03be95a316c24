"""A log's own object: its projection, the lock of the sequencer that serves it, and the bound of a counter.

Object `remora.log.<name>` in remora's namespace of the log's pool. Its projection is replaced only by comparison with
the very bytes that were read, so of two servers that begin an epoch at once one gets it.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from remora.codec.lock_ops import (
    LockFlags,
    decode_lock_info,
    encode_assert_locked,
    encode_break,
    encode_get_info,
    encode_lock,
    encode_unlock,
)
from remora.model.entry import Time
from remora.model.errors import OwnershipLost, StoreError
from remora.model.log import LogKind, LogLock, LogName, LogRefused, LogUnknown, Projection
from remora.model.shard import LockHolder
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import LOCK_CLASS, RadosPart, decoded, lock_holder
from remora.storage.rados.cluster.placement import Locator
from remora.storage.rados.cluster.refusals import FULL, ExistsError, MismatchError, Refusals

OBJECT = "remora.log."
_PROJECTION, _BOUND, _LOCK = "remora.projection", "remora.bound", "remora.sequencer"
_VERSION = 1

_LOG: Refusals = MappingProxyType(
    {
        **FULL,
        errno.ENOENT: (LogUnknown, "there is no such log; `remora log create` makes one"),
        errno.EEXIST: (ExistsError, "there is one already"),
        errno.ECANCELED: (MismatchError, "it has changed since it was read"),
        errno.EBUSY: (OwnershipLost, "its lock is not held any more"),
    }
)

_HOLDER_GONE: Refusals = MappingProxyType({**_LOG, errno.ENOENT: (MismatchError, "its lock has changed hands")})


class _StoredProjection(msgspec.Struct, frozen=True, omit_defaults=True):
    """A projection as it is stored, in JSON. A newer version may add fields, but never change these."""

    version: int
    id: str
    kind: LogKind
    width: int
    epoch: int
    owner: str
    address: str
    removing: bool = False


class LogObject(NamedTuple):
    """A log's object as it was read. One that is `removing` loses its stripes and is no log any more."""

    projection: Projection
    raw: bytes
    bound: int
    raw_bound: bytes
    removing: bool


_decoder = msgspec.json.Decoder(_StoredProjection)


class LogProjections(RadosPart):
    """Reads, locks and replaces projections; `pools` are those that logs may lie in, the queues' pool where empty."""

    def __init__(self, connection: ClusterConnection, pools: Sequence[str]) -> None:
        super().__init__(connection)
        self._pools = tuple(pools)

    def locator(self, log: LogName) -> Locator:
        """Where the objects of a log lie. Raises LogRefused for a pool that holds no logs, else as `_own`."""
        own = self._own
        pool = log.pool.decode(errors="replace")
        if pool not in (self._pools or (own.pool,)):
            raise LogRefused(f"pool {pool} holds no logs: sequencer.pools names those that do, else it is {own.pool}")
        return Locator(pool, own.namespace)

    @property
    def pools(self) -> Sequence[str]:
        """The pools that logs may lie in."""
        return self._pools or (self._own.pool,)

    # ---------------------------------------------------------------------------------- projections

    async def create(self, log: LogName, projection: Projection) -> None:
        """Make a log's object. Raises ExistsError where there is one."""
        operation = WriteOp().create(exclusive=True).set_xattr(_PROJECTION, _encoded(projection))
        await self._run(operation, log, "making")

    async def names(self, pool: str) -> list[str]:
        """The names of all logs of a pool, in no order."""
        oids = await self._connection.session.list_objects(Locator(pool, self._own.namespace), OBJECT)
        return [each.removeprefix(OBJECT) for each in oids]

    async def read(self, log: LogName) -> LogObject:
        """A log as it is now. Raises LogUnknown, also for one that is being removed."""
        return _existing(log, await self.read_any(log))

    async def read_any(self, log: LogName) -> LogObject:
        """A log as it is now, also one that is being removed. Raises LogUnknown."""
        operation = ReadOp().assert_exists()
        xattrs = operation.xattrs()
        await self._run(operation, log, "looking at")
        return _decoded(log, xattrs.values)

    async def read_held(self, lock: LogLock) -> LogObject:
        """A log whose lock is held. Raises LogUnknown, and OwnershipLost also where it is another log of this name."""
        operation = ReadOp().assert_exists().check(*_check(lock.owner))
        xattrs = operation.xattrs()
        await self._run(operation, lock.log, "looking at")
        found = _existing(lock.log, _decoded(lock.log, xattrs.values))
        if lock.id and lock.id != found.projection.id:
            raise OwnershipLost(f"{lock.log} was removed and made again since its lock was taken")
        return found

    async def swap_held(self, lock: LogLock, old: LogObject, new: Projection, bound: int | None) -> None:
        """Replace the projection, and set the bound where one is given, under the lock.

        Raises MismatchError when either has changed since it was read.
        """
        operation = self._held(lock, old).set_xattr(_PROJECTION, _encoded(new))
        if bound is not None:
            operation.assert_xattr(_BOUND, old.raw_bound).set_xattr(_BOUND, _number(bound))
        await self._run(operation, lock.log, "beginning an epoch of")

    async def swap_unlocked(self, log: LogName, old: LogObject, new: Projection, holder: LockHolder | None) -> None:
        """Replace the projection and break the lock of exactly this holder. Raises MismatchError as `swap_held`."""
        operation = WriteOp().assert_exists().assert_xattr(_PROJECTION, old.raw).set_xattr(_PROJECTION, _encoded(new))
        if holder is not None:
            operation.call(LOCK_CLASS, "break_lock", encode_break(_LOCK, holder.entity, holder.cookie))
        await self._run(operation, log, "sealing", _LOG if holder is None else _HOLDER_GONE)

    async def set_bound(self, lock: LogLock, old: LogObject, bound: int) -> None:
        """Move a counter's bound, under the lock. Raises MismatchError when it or the projection has changed."""
        operation = self._held(lock, old).assert_xattr(_BOUND, old.raw_bound).set_xattr(_BOUND, _number(bound))
        await self._run(operation, lock.log, "moving the bound of")

    async def mark_removing(self, lock: LogLock, old: LogObject) -> None:
        """Turn a log into one that is being removed, which no server registers any more."""
        await self._run(
            self._held(lock, old).set_xattr(_PROJECTION, _encoded(old.projection, removing=True)), lock.log, "removing"
        )

    async def remove(self, lock: LogLock) -> None:
        """Delete a log's object with its lock."""
        operation = WriteOp().assert_exists().call(*_check(lock.owner)).remove()
        await self._run(operation, lock.log, "removing")

    # ---------------------------------------------------------------------------------------- locks

    async def lock(self, log: LogName, owner: str, lease_s: float, flags: LockFlags = LockFlags.MAY_RENEW) -> None:
        """Take the lock or extend it. Raises OwnershipLost while another server has it."""
        operation = WriteOp().assert_exists()
        if flags is LockFlags.MUST_RENEW:
            operation.call(*_check(owner))  # answers EBUSY for a lock that is not held, as must-renew does not
        operation.call(LOCK_CLASS, "lock", encode_lock(_LOCK, owner, Time(int(lease_s), int(lease_s % 1 * 1e9)), flags))
        await self._run(operation, log, "locking")

    async def unlock(self, lock: LogLock) -> None:
        """Give the lock back. Raises MismatchError where it is not held."""
        operation = WriteOp().assert_exists().call(LOCK_CLASS, "unlock", encode_unlock(_LOCK, lock.owner))
        await self._run(operation, lock.log, "unlocking", _HOLDER_GONE)

    async def break_lock(self, log: LogName, holder: LockHolder) -> None:
        """Break the lock of exactly this holder. Raises MismatchError where it is another's by now."""
        request = encode_break(_LOCK, holder.entity, holder.cookie)
        operation = WriteOp().assert_exists().call(LOCK_CLASS, "break_lock", request)
        await self._run(operation, log, "breaking the lock of", _HOLDER_GONE)

    async def read_with_holder(self, log: LogName) -> tuple[LogObject, LockHolder | None]:
        """A log and who holds its lock, in one operation; None where it is free, or the lease has run out."""
        operation = ReadOp().assert_exists()
        xattrs = operation.xattrs()
        reply = operation.call(LOCK_CLASS, "get_info", encode_get_info(_LOCK))
        await self._run(operation, log, "looking at")
        holder = lock_holder(decoded(decode_lock_info, reply.data, f"looking at the lock of {log}"))
        return _decoded(log, xattrs.values), holder if holder is not None and holder.lease_left_s > 0 else None

    def _held(self, lock: LogLock, old: LogObject) -> WriteOp:
        """A write that passes only under the lock, and while the projection is the one that was read."""
        return WriteOp().assert_exists().call(*_check(lock.owner)).assert_xattr(_PROJECTION, old.raw)

    async def _run(self, operation: ReadOp | WriteOp, log: LogName, doing: str, refusals: Refusals = _LOG) -> None:
        try:
            locator = self.locator(log)
            oid = OBJECT + log.name.decode()
        except (StoreError, UnicodeDecodeError) as exc:
            operation.end(answered=False)
            if isinstance(exc, StoreError):
                raise
            raise LogUnknown(f"there is no log {log}: its name is not UTF-8") from exc
        await self._connection.run(operation, oid, f"{doing} log {log}", refusals, locator)


def _check(owner: str) -> tuple[str, str, bytes]:
    """The class call that refuses an operation unless this client holds a log's lock as `owner`."""
    return LOCK_CLASS, "assert_locked", encode_assert_locked(_LOCK, owner)


def _number(value: int) -> str:
    return f"{value:016x}"


def _encoded(projection: Projection, *, removing: bool = False) -> bytes:
    each = projection
    return msgspec.json.encode(
        _StoredProjection(_VERSION, each.id, each.kind, each.width, each.epoch, each.owner, each.address, removing)
    )


def _decoded(log: LogName, xattrs: dict[str, bytes]) -> LogObject:
    raw, raw_bound = xattrs.get(_PROJECTION, b""), xattrs.get(_BOUND, b"")
    try:
        stored, bound = _decoder.decode(raw), int(raw_bound or b"0", 16)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise StoreError(f"the projection of {log} cannot be read: {exc}") from exc
    projection = Projection(stored.id, stored.kind, stored.width, stored.epoch, stored.owner, stored.address)
    return LogObject(projection, raw, bound, raw_bound, stored.removing)


def _existing(log: LogName, found: LogObject) -> LogObject:
    if found.removing:
        raise LogUnknown(f"log {log} is being removed; `remora log rm` ends that")
    return found
