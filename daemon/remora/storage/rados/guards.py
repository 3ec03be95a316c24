"""Keeps remoras that know nothing of runs from queues that have some: of radosgw's queues by their names among the
released ones, of remora's own topics by a state in the registry that they cannot read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

from msgspec.structs import replace

from remora.model.errors import StoreError, StoreUnavailable
from remora.model.shard import Origin, Shard
from remora.model.topic import own_topic_name
from remora.storage.rados.connection import ClusterConnection
from remora.storage.rados.part import RadosPart
from remora.storage.rados.refusals import MismatchError
from remora.storage.rados.registry import Registry, TopicRecord, as_topic
from remora.storage.rados.releases import Guard, RadosReleases
from remora.storage.rados.runs import Runs, has_runs

_log = logging.getLogger(__name__)

_TRIES = 20
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
            try:
                await runs.sweep(asyncio.get_running_loop().time())
                await self.lift_stale()
            except StoreError as exc:
                _log.debug("cannot sweep spilled entries and their guards: %s", exc)

    async def lift_stale(self) -> None:
        """Lift what was left by a worker that has stopped where nothing was moved; what this process set stays."""
        await self._releases.lift_stale(self._since.keys())
        for topic in (await self._registry.known()).topics.values():
            if topic.first_shard not in self._since:
                await self.lift(topic.first_shard)
