"""Shared logs in RADOS: a log's object (`projection.py`) and its stripes (`stripes.py`) under one contract.

A lock keeps servers from taking a log from each other; nothing else rests on it. What makes an epoch safe is the seal:
once every stripe has it, no write of an earlier one lands any more, and what the stripes say of their ends counts.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from remora.bounded import each_of
from remora.codec.lock_ops import LockFlags
from remora.config.stores import RadosSettings
from remora.model.errors import OwnershipLost, StoreError, StoreUnavailable
from remora.model.log import (
    MOST_POSITION,
    MOST_WIDTH,
    Cell,
    Figures,
    LogKind,
    LogLock,
    LogLocked,
    LogName,
    LogRefused,
    LogUnknown,
    Projection,
    Registered,
    StaleEpoch,
    check_entry,
    name_problem,
)
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.refusals import ExistsError, MismatchError, MissingError
from remora.storage.rados.logs.projection import LogObject, LogProjections
from remora.storage.rados.logs.stripes import LogStripes, SealedAboveError, Stripes

T = TypeVar("T")

ADVISED_KEYS = 100_000
"""Half of what a stripe may hold before its OSD warns of a large omap object."""

_TRIES = 8
_MOST_KNOWN = 4096
_REMOVAL_S = 60.0


class RadosLogs:
    """See `ports.log`. Positions end at 2^63 - 1, as in the embedded store."""

    def __init__(
        self, connection: ClusterConnection, pools: Sequence[str] = (), is_dead: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`pools` are those that logs may lie in; `is_dead`: whether an owner's process, on this host, has ended."""
        self._projections = LogProjections(connection, pools)
        self._stripes = LogStripes(connection)
        self._is_dead = is_dead
        self._known: dict[LogName, Stripes] = {}

    # ------------------------------------------------------------------------------------ logs

    async def create(self, log: LogName, kind: LogKind, width: int) -> Projection:
        """Make a log, with epoch 0; its stripes are made when it is registered first."""
        if problem := name_problem(log):
            raise LogRefused(problem)
        if not 1 <= width <= MOST_WIDTH:
            raise LogRefused(f"the width of a log is 1 to {MOST_WIDTH}, not {width}")
        made = Projection(secrets.token_hex(8), kind, width)
        try:
            await self._projections.create(log, made)
        except ExistsError:
            found = await self._projections.read_any(log)
            state = "that is being removed: `remora log rm` ends that" if found.removing else "already"
            raise LogRefused(f"there is a log {log} {state}") from None
        return made

    async def remove(self, log: LogName) -> None:
        """Delete a log with all it holds; an interrupted removal is repeated.

        The object goes last: a log whose stripes are missing, but not its projection, would begin at 1 again.
        """
        owner = f"removal {secrets.token_hex(8)}"
        await self._locked(log, owner, _REMOVAL_S)
        found, lock = await self._projections.read_any(log), LogLock(log, owner, "")
        if not found.removing:
            try:
                await self._projections.mark_removing(lock, found)
            except MismatchError:
                raise LogLocked(f"{log} was just sealed: try again") from None
        if found.projection.kind is LogKind.LOG:
            await self._stripes.remove(self._stripes_of(log, found.projection))
        await self._projections.remove(lock)
        self._known.pop(log, None)

    async def all(self) -> Sequence[tuple[LogName, Projection]]:
        """Every log, by name."""
        found: list[tuple[LogName, Projection]] = []
        for pool in self._projections.pools:
            for name in await self._projections.names(pool):
                log = LogName(pool.encode(), name.encode(errors="surrogateescape"))
                with suppress(LogUnknown):  # removed meanwhile
                    found.append((log, await self.projection(log)))
        return sorted(found, key=lambda each: each[0])

    async def projection(self, log: LogName) -> Projection:
        """A log as it is now."""
        return (await self._projections.read(log)).projection

    # ----------------------------------------------------------------------------------- locks

    async def acquire(self, log: LogName, owner: str, lease_s: float) -> LogLock:
        """Take a log's lock, or extend one's own; that of a process which has ended on this host is broken."""
        await self._locked(log, owner, lease_s)
        lock = LogLock(log, owner, "")
        try:
            return replace(lock, id=(await self._projections.read_held(lock)).projection.id)
        except LogUnknown:  # it is being removed, which needs the lock
            await self.release(lock)
            raise

    async def _locked(self, log: LogName, owner: str, lease_s: float) -> None:
        for _ in range(_TRIES):  # it may be given back between two calls
            with suppress(OwnershipLost):
                await self._projections.lock(log, owner, lease_s)
                return
            found, holder = await self._projections.read_with_holder(log)
            if holder is None:
                continue
            if not self._is_dead(holder.cookie):
                raise LogLocked(f"another sequencer serves {log} at {found.projection.address}: stop it first")
            with suppress(MismatchError):
                await self._projections.break_lock(log, holder)
        raise StoreUnavailable(f"locking {log}: its lock keeps changing hands")

    async def renew_all(self, locks: Sequence[LogLock], lease_s: float) -> Sequence[StoreError | None]:
        """Extend several locks, 32 at a time."""

        async def one(lock: LogLock) -> None:
            await self._projections.lock(lock.log, lock.owner, lease_s, LockFlags.MUST_RENEW)

        return await each_of(locks, one, StoreError)

    def place(self, log: LogName) -> LogName:
        """Each log is an object of its own, and one whose OSDs are away answers nobody."""
        return log

    async def release(self, lock: LogLock) -> None:
        """Give a lock back."""
        with suppress(MismatchError, LogUnknown):
            await self._projections.unlock(lock)

    # ---------------------------------------------------------------------------------- epochs

    async def register(self, lock: LogLock, address: str, reach: int) -> Registered:
        """Begin a new epoch: swap the projection, seal every stripe, then ask each for its end."""
        above = 0
        for _ in range(_TRIES):
            found = await self._projections.read_held(lock)
            old = found.projection
            epoch = max(old.epoch, above) + 1
            new = replace(old, epoch=epoch, owner=lock.owner, address=address)
            bound = min(MOST_POSITION, found.bound + reach) if old.kind is LogKind.COUNTER else None
            if not await self._begins(lock, found, new, bound):
                continue
            if bound is not None:
                return Registered(epoch, found.bound, bound)
            stripes = self._stripes_of(lock.log, new)
            try:
                await self._stripes.seal_all(stripes, epoch)
            except SealedAboveError as exc:  # the projection is older than its stripes, as one from a backup is
                above = exc.epoch
                continue
            return Registered(epoch, await self._stripes.last(stripes, epoch), MOST_POSITION)
        raise StoreUnavailable(f"registering {lock.log}: its projection keeps changing")

    async def _begins(self, lock: LogLock, old: LogObject, new: Projection, bound: int | None) -> bool:
        """Whether the new epoch is this server's; the projection tells where the answer to the swap was lost."""
        try:
            await self._projections.swap_held(lock, old, new, bound)
        except MismatchError:
            return False
        except StoreUnavailable:
            found = await self._projections.read_held(lock)
            if (found.projection.epoch, found.projection.owner) != (new.epoch, new.owner):
                raise
        return True

    async def raise_bound(self, lock: LogLock, epoch: int, bound: int) -> None:
        """Let a counter hand out more."""
        await self._set_bound(lock, epoch, lambda old: max(old, min(bound, MOST_POSITION)))

    async def settle(self, lock: LogLock, epoch: int, position: int) -> None:
        """Leave no hole behind the last position that was handed out."""
        await self._set_bound(lock, epoch, lambda _: position)

    async def _set_bound(self, lock: LogLock, epoch: int, bound: Callable[[int], int]) -> None:
        for _ in range(_TRIES):
            found = await self._projections.read_held(lock)
            if (found.projection.epoch, found.projection.owner) != (epoch, lock.owner):
                raise StaleEpoch(f"{lock.log} has epoch {found.projection.epoch} by now, not {epoch}")
            if found.projection.kind is not LogKind.COUNTER:
                return
            with suppress(MismatchError):
                await self._projections.set_bound(lock, found, bound(found.bound))
                return
        raise StoreUnavailable(f"moving the bound of {lock.log}: it keeps changing")

    async def seal(self, log: LogName) -> int:
        """Begin a new epoch that no server has, and break the lock of the one that serves the log."""
        above = 0
        for _ in range(_TRIES):
            found, holder = await self._projections.read_with_holder(log)
            if found.removing:
                raise LogUnknown(f"log {log} is being removed")
            epoch = max(found.projection.epoch, above) + 1
            new = replace(found.projection, epoch=epoch, owner="", address="")
            try:
                await self._projections.swap_unlocked(log, found, new, holder)
            except MismatchError:
                continue
            if new.kind is LogKind.LOG:
                try:
                    await self._stripes.seal_all(self._stripes_of(log, new), epoch)
                except SealedAboveError as exc:
                    above = exc.epoch
                    if (await self.projection(log)).epoch >= above:  # another server has registered the log meanwhile
                        return epoch
                    continue
            return epoch
        raise StoreUnavailable(f"sealing {log}: its projection keeps changing")

    # --------------------------------------------------------------------------------- entries

    async def append(self, log: LogName, epoch: int, position: int, data: bytes) -> None:
        """Write a position once."""
        check_entry(data)
        await self._put(log, epoch, position, data)

    async def fill(self, log: LogName, epoch: int, position: int) -> None:
        """Write a position off."""
        await self._put(log, epoch, position, None)

    async def _put(self, log: LogName, epoch: int, position: int, data: bytes | None) -> None:
        stripes = await self._stripes_now(log)
        if not epoch:
            raise StaleEpoch(f"stale epoch: no write of {log} has epoch 0")
        if not 0 < position <= MOST_POSITION:
            raise LogRefused(f"positions of a log are 1 to {MOST_POSITION}, not {position}")
        try:
            await self._stripes.put(stripes, epoch, position, data)
        except MissingError as exc:
            # Not tried again in a log that was made anew: the token is of the old one, though its epoch may look right.
            self._known.pop(log, None)
            await self._stripes_now(log)
            raise StaleEpoch(f"stale epoch: {log} was never served, or it was made again") from exc

    async def read(self, log: LogName, position: int) -> tuple[Cell, bytes]:
        """What stands at a position, and its data."""

        async def look(stripes: Stripes) -> tuple[Cell, bytes]:
            return await self._stripes.get(stripes, position)

        try:
            return await self._again(log, look)
        except MissingError:
            return Cell.UNWRITTEN, b""

    async def trim(self, log: LogName, upto: int) -> None:
        """Delete all positions up to this one."""
        upto = max(0, min(upto, MOST_POSITION))  # the key of a position below 0 would be smaller than all others
        try:
            await self._again(log, lambda stripes: self._stripes.trim(stripes, upto))
        except MissingError as exc:
            raise LogRefused(f"{log} was never served: there is nothing to trim") from exc

    async def figures(self, log: LogName) -> Figures:
        """What a log holds; of a log that was never served, nothing."""
        found = await self._projections.read(log)
        if found.projection.kind is not LogKind.LOG:
            return Figures(found.bound, 0, 0)
        stripes = self._stripes_of(log, found.projection)
        try:
            ends = await self._stripes.ends(stripes)
            keys = await self._stripes.keys(stripes)
        except MissingError:
            return Figures(0, 0, 0, ADVISED_KEYS)
        return Figures(max(map(max, ends)), min(each.trimmed for each in ends), keys, ADVISED_KEYS)

    # ----------------------------------------------------------------------------------- shared

    async def _again(self, log: LogName, work: Callable[[Stripes], Awaitable[T]]) -> T:
        """Do something with a log's stripes, and once more where it was removed and made again. Raises MissingError."""
        stripes = await self._stripes_now(log)
        try:
            return await work(stripes)
        except MissingError:
            self._known.pop(log, None)
            if (now := await self._stripes_now(log)) == stripes:
                raise
            return await work(now)

    async def _stripes_now(self, log: LogName) -> Stripes:
        """The stripes of a log, which are known once its projection was read. Raises LogUnknown and LogRefused."""
        if log not in self._known:
            projection = await self.projection(log)
            if projection.kind is not LogKind.LOG:
                raise LogRefused(f"{log} is a counter: it holds no entries")
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[log] = self._stripes_of(log, projection)
        return self._known[log]

    def _stripes_of(self, log: LogName, projection: Projection) -> Stripes:
        return Stripes.of(log, self._projections.locator(log), projection)


class RadosLogStore:
    """Logs on one client instance, for a sequencer, and for commands about logs.

    Entering it does not wait for the cluster. It is no part of `RadosStore`: that one also
    recovers what ingest left behind, which is the daemon's work.

    `on_state` is called with whether the cluster is reached, and a sentence, whenever that changes.
    """

    def __init__(
        self,
        settings: RadosSettings,
        on_state: Callable[[bool, str], None] = lambda _connected, _text: None,
        *,
        pools: Sequence[str] = (),
        is_dead: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`pools` and `is_dead`: see `Logs`."""
        self._connection = ClusterConnection(settings, on_state, topics=False)
        self.logs = RadosLogs(self._connection, pools, is_dead)

    @property
    def connected(self) -> bool:
        """Whether there is a session with the cluster."""
        return self._connection.connected

    @property
    def default_pool(self) -> str:
        """The queues' pool. Raises StoreUnavailable or StoreMisconfigured while there is no session."""
        return self._connection.session.placement.own.pool

    async def __aenter__(self) -> RadosLogStore:
        """Open without waiting for the cluster. Raises StoreMisconfigured for what can never work."""
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._connection.__aexit__(*exc_info)
