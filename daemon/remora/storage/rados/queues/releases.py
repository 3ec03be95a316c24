"""Queues that an operator has released to radosgw: a key each in the omap of object `remora.released`.

It lies in remora's namespace, which no radosgw reads. The key is the queue's name in the registry, so a queue that is
deleted and made anew under its name stays released.

Remoras that know nothing of runs must not take a queue that has some, nor one that is about to. They read names only,
whatever stands under them. So such a queue is named here, too, under a value that newer ones do not take for a release;
queues of remora's own topics are kept from them by a state in the registry that they cannot read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Container, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

from msgspec.structs import replace

from remora.model.errors import ShardGone, StoreError, StoreMisconfigured, StoreUnavailable
from remora.model.member import is_workers
from remora.model.shard import Origin, Shard
from remora.model.topic import own_topic_name
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart, all_values, holder_of
from remora.storage.rados.cluster.refusals import OWN, MismatchError, MissingError
from remora.storage.rados.queues.runs import Runs, has_runs
from remora.storage.rados.topics.registry import Registry, TopicRecord, as_topic

_log = logging.getLogger(__name__)

_OBJECT = "remora.released"

_RELEASED, _GUARDED, _LEAVING = b"1", b"spilling", b"releasing"
_TRIES = 20

Guard = Literal["", "new", "stands"]
"""What keeps older remoras from a queue: nothing, since it is released; a guard that was set just now; or before."""


class RadosReleases(RadosPart):
    """Reads and changes the released queues, and those that are guarded."""

    def __init__(self, connection: ClusterConnection) -> None:
        super().__init__(connection)
        self._known: frozenset[Shard] | None = None
        self._remarked = ""

    async def released(self) -> frozenset[Shard]:
        """The released queues; as last read while they cannot be read.

        One that was released while entries of it were spilled is among them when these are delivered.

        Raises StoreError when they were never read: taking one of them would break the release. A user without
        permission to read them cannot have released any, and gets none.
        """
        try:
            names = await all_values(self._connection, _OBJECT, self._own)
            found = frozenset([Shard(each) for each, value in names.items() if await self._is_left(each, value)])
        except StoreError as exc:
            if self._known is None and not isinstance(exc, StoreMisconfigured):
                raise
            reason = str(exc)
            if reason != self._remarked:
                self._remarked = reason
                _log.warning("cannot read which queues are released: %s", reason)
            return self._known or frozenset()
        self._remarked = ""
        if found != self._known:
            self._known = found
        return self._known

    async def _is_left(self, queue: str, value: bytes) -> bool:
        """Whether a queue of this value is radosgw's; one with runs is not, whoever released it.

        One that is read as released for the first time is looked at, too: the first run may have come just after
        another worker saw none, and older remoras release without a look.
        """
        if value.startswith(_GUARDED):
            return False
        if value.startswith(_LEAVING):
            with suppress(StoreError):
                return not await self._has_runs(queue) and await self._replace(queue, value, _RELEASED)
            return False  # whoever may be delivering its runs goes on
        if self._known is not None and Shard(queue) in self._known:
            return True
        with suppress(StoreError):  # what cannot be looked at stays as the operator wants it
            if await self._has_runs(queue):
                await self._swap(queue, value, _LEAVING)
                return False
        return True

    async def set_released(self, shards: Sequence[Shard], *, released: bool) -> None:
        """Release queues to radosgw, or take them back. Raises ValueError for queues of remora's own.

        A queue with spilled entries stays with its worker until they are delivered.
        """
        if own := [each.queue for each in shards if each.origin is not Origin.RADOSGW]:
            raise ValueError(f"no radosgw comes to queues of remora's own: {', '.join(own)}")
        for each in shards:
            await self._set(each.queue, released=released)

    async def _set(self, queue: str, *, released: bool) -> None:
        for _ in range(_TRIES):
            value, has_runs = await self._value(queue), await self._has_runs(queue)
            guarded = has_runs or (released and value.startswith(_GUARDED))
            new = (_LEAVING if guarded else _RELEASED) if released else (_named(_GUARDED) if has_runs else b"")
            if await self._swap(queue, value, new):
                return
        raise StoreUnavailable(f"releasing {queue}: other clients keep changing what is released")

    async def guard(self, queue: str) -> Guard:
        """Keep older remoras from a queue before entries of it are moved to runs, unless it is released."""
        for _ in range(_TRIES):
            value = await self._value(queue)
            if value.startswith(_GUARDED):
                return "stands"
            if value:
                return "stands" if value.startswith(_LEAVING) and await self._has_runs(queue) else ""
            if await self._swap(queue, b"", _named(_GUARDED)):
                return "new"
        raise StoreUnavailable(f"guarding {queue}: other clients keep changing what is released")

    async def guard_again(self, queue: str) -> None:
        """Undo a release that came between a look at it and the first run."""
        for _ in range(_TRIES):
            value = await self._value(queue)
            if value.startswith((_GUARDED, _LEAVING)):
                return
            if await self._swap(queue, value, _LEAVING if value else _named(_GUARDED)):
                return

    async def lift(self, queue: str) -> None:
        """A queue has no runs any more: older remoras may take it."""
        value = await self._value(queue)
        if value.startswith(_GUARDED):
            await self._replace(queue, value, b"")

    async def lift_stale(self, ours: Container[Shard] = ()) -> None:
        """Lift guards of queues in which nothing is spilled, but `ours`: who set them has stopped, or sets them again.

        One that another worker holds is left to that worker, which may be about to move entries.
        """
        for queue, value in (await all_values(self._connection, _OBJECT, self._own)).items():
            if not value.startswith(_GUARDED) or Shard(queue) in ours:
                continue
            await _lift_alone(queue, self._lift_stale(queue, value))

    async def _lift_stale(self, queue: str, value: bytes) -> None:
        shard, holder = Shard(queue), None
        with suppress(ShardGone):
            holder = await holder_of(self._connection, shard, self._locator(shard))
        if holder and is_workers(holder.cookie) and holder.entity != self._connection.session.entity:
            return
        if not await self._has_runs(queue):
            await self._replace(queue, value, b"")

    async def _replace(self, queue: str, value: bytes, new: bytes) -> bool:
        """End a guard or a wait for runs since a queue has none; False where one has come meanwhile, or another value.

        Who moves entries looks at the value after the first run, and this looks for runs after the value: so one of
        both sees the other, in whichever order they come.
        """
        if not await self._swap(queue, value, new):
            return False
        if not await self._has_runs(queue):
            return True
        await self.guard_again(queue)
        return False

    async def _has_runs(self, queue: str) -> bool:
        return await has_runs(self._connection, Shard(queue), self._locator(Shard(queue)))

    async def _value(self, queue: str) -> bytes:
        operation = ReadOp().assert_exists()
        found = operation.omap_values([queue])
        try:
            await self._connection.run(operation, _OBJECT, f"reading {_OBJECT}", locator=self._own)
        except MissingError:
            return b""
        return found.values.get(queue, b"")

    async def _swap(self, queue: str, old: bytes, new: bytes) -> bool:
        """Put one value in the place of another, both empty for none; False where there is another one by now."""
        operation = WriteOp().create(exclusive=False).assert_omap(queue, old)
        operation = operation.set_omap({queue: new}) if new else operation.remove_omap([queue])
        try:
            await self._connection.run(operation, _OBJECT, f"writing to {_OBJECT}", OWN, self._own)
        except MismatchError:
            return False
        return True


def _named(value: bytes) -> bytes:
    """A value of its own, so that a change that comes late does not meet a later one."""
    return value + b" " + secrets.token_hex(8).encode()


_SWEEP_EVERY_S = 600.0


class Guards(RadosPart):
    """Sets and lifts guards."""

    def __init__(
        self, connection: ClusterConnection, releases: RadosReleases, registry: Registry, wait_s: float
    ) -> None:
        """What an older worker may have read before a guard was set it has read again after `wait_s`."""
        super().__init__(connection)
        self._releases, self._registry, self._wait_s = releases, registry, wait_s
        self._since: dict[Shard, float] = {}

    async def set(self, shard: Shard) -> bool:
        """Guard a queue; returns whether older workers have read of it, so that entries may be moved."""
        now = asyncio.get_running_loop().time()
        guard = await self._set(shard)
        if guard != "stands":  # others lift one that no run needs, and older workers may have read of that
            self._since.pop(shard, None)
        return bool(guard) and now - self._since.setdefault(shard, now) >= self._wait_s

    async def _set(self, shard: Shard) -> Guard:
        if shard.origin is Origin.RADOSGW:
            return await self._releases.guard(shard.queue)
        name = own_topic_name(shard.queue)
        return await self._guard_topic(name, await self._registry.find(name))

    async def _guard_topic(self, name: str, found: TopicRecord | None) -> Guard:
        for _ in range(_TRIES):
            if found is None or not found.stored.is_ready:
                return ""
            if found.stored.state in ("spilling", "resharded"):
                return "stands"
            with contextlib.suppress(MismatchError):
                await self._registry.swap(name, found, replace(found.stored, state="spilling"))
                return "new"
            found = await self._registry.find(name)
        raise StoreUnavailable(f"guarding topic {name}: other processes keep changing it")

    async def confirm(self, shard: Shard) -> None:
        """There are runs now: undo what came between the guard and the first of them."""
        if shard.origin is Origin.RADOSGW:
            await self._releases.guard_again(shard.queue)
        else:
            await self._set(shard)

    async def lift(self, shard: Shard) -> None:
        """A queue has no runs any more: older remoras may have it, unless other queues of its topic have some."""
        self._since.pop(shard, None)
        if shard.origin is Origin.RADOSGW:
            await self._releases.lift(shard.queue)
            return
        name = own_topic_name(shard.queue)
        found = await self._registry.find(name)
        if found is None or found.stored.state != "spilling":
            return
        if any(each.origin is Origin.REMORA and own_topic_name(each.queue) == name for each in self._since):
            return
        if await self._has_runs(name, found):
            return
        with contextlib.suppress(MismatchError):
            await self._registry.swap(name, found, replace(found.stored, state="ready"))
            if await self._has_runs(name, found):  # the first came between; its mover saw the guard still
                await self._guard_topic(name, await self._registry.find(name))

    def let_go(self, shard: Shard) -> None:
        """The lock of a queue is not held any more: its guard is its next owner's."""
        self._since.pop(shard, None)

    async def _has_runs(self, name: str, found: TopicRecord) -> bool:
        """Whether any queue of a topic has runs."""
        for each in as_topic(name, found.stored).all_shards():
            if await has_runs(self._connection, each, self._locator(each)):
                return True
        return False

    async def run(self, runs: Runs) -> None:
        """Now and then delete runs that no queue names, and lift guards that nobody needs, until cancelled."""
        while True:
            await asyncio.sleep(random.uniform(0.5, 1.5) * _SWEEP_EVERY_S)  # noqa: S311 - keeps daemons out of step
            for sweep in (partial(runs.sweep, asyncio.get_running_loop().time()), self.lift_stale):
                try:
                    await sweep()
                except StoreError as exc:
                    _log.debug("cannot sweep spilled entries and their guards: %s", exc)

    async def lift_stale(self) -> None:
        """Lift what was left by a worker that has stopped where nothing was moved; what this process set stays."""
        await self._releases.lift_stale(self._since.keys())
        for topic in (await self._registry.known()).topics.values():
            if topic.first_shard not in self._since:
                await _lift_alone(topic.first_shard.queue, self.lift(topic.first_shard))


async def _lift_alone(queue: str, lifting: Awaitable[object]) -> None:
    """Lift a queue's guard, which stays for what is wrong with that queue, such as runs that cannot be read. Raises
    StoreUnavailable."""
    try:
        await lifting
    except StoreUnavailable:
        raise
    except StoreError as exc:
        _log.debug("the guard of %s stays: %s", queue, exc)
