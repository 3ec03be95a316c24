"""Measures what waits: entries, bytes and oldest age of each topic whose shards this worker holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from remora.engine.catalogue import Catalogue
from remora.engine.ownership import Ownership
from remora.metrics import Telemetry
from remora.model.errors import CodecError, StoreError
from remora.model.shard import Shard, ShardStats
from remora.ports import Inspection

AT_ONCE = 8


@dataclass(slots=True)
class Backlog:
    """What waits in a topic's shards. `exact` only when every shard's count of entries is."""

    entries: int = 0
    exact: bool = True
    nbytes: int = 0
    oldest_age_s: float = 0.0

    def add(self, stats: ShardStats) -> None:
        """Add one shard."""
        self.entries += stats.entries
        self.exact = self.exact and stats.entries_exact
        self.nbytes += stats.used_bytes
        self.oldest_age_s = max(self.oldest_age_s, stats.oldest_age_s or 0.0)


class Survey:
    """Looks at the held shards every `interval_s`, a few at a time; a topic that is held no more is forgotten."""

    def __init__(
        self, store: Inspection, catalogue: Catalogue, ownership: Ownership, telemetry: Telemetry, interval_s: float
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._ownership = ownership
        self._telemetry = telemetry
        self._interval_s = interval_s
        self._shown: set[str] = set()

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """Look once. A shard that does not answer is left out of this reading; what is held is not forgotten."""
        gate = asyncio.Semaphore(AT_ONCE)
        shards = [each.shard for each in self._ownership.tenures]
        async with asyncio.TaskGroup() as tasks:
            looks = [tasks.create_task(self._stats(shard, gate), name="survey") for shard in shards]
        backlogs: dict[str, Backlog] = {}
        for stats in filter(None, (each.result() for each in looks)):
            backlogs.setdefault(self._label(stats.shard), Backlog()).add(stats)
        for topic, backlog in backlogs.items():
            self._telemetry.backlog(topic, backlog.entries, backlog.exact, backlog.nbytes, backlog.oldest_age_s)
        held = {self._label(shard) for shard in shards}
        for topic in self._shown - held:
            self._telemetry.forget_topic(topic)
        self._shown = held

    async def _stats(self, shard: Shard, gate: asyncio.Semaphore) -> ShardStats | None:
        async with gate:
            try:
                return await self._store.stats(shard)
            except (StoreError, CodecError):
                return None

    def _label(self, shard: Shard) -> str:
        topic = self._catalogue.topic(shard)
        return topic.label if topic is not None else shard.queue
