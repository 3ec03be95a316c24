"""The limits in which shards of held topics wait, and the news that a hold has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from weakref import WeakValueDictionary

from remora.model.shard import Shard
from remora.policy.admission.limits import HeldTopicLimit
from remora.policy.admission.line import AdmissionLimit


class HeldTopics:
    """One limit for each shard that asks."""

    def __init__(self, is_held: Callable[[Shard], bool], free: Callable[[Sequence[AdmissionLimit]], None]) -> None:
        """`is_held` tells whether a shard's topic is held now; `free` lets go on who waits in limits."""
        self._is_held = is_held
        self._free = free
        self._limits: WeakValueDictionary[Shard, HeldTopicLimit] = WeakValueDictionary()

    def limit(self, shard: Shard) -> HeldTopicLimit:
        """The limit that nothing of this shard passes while its topic is held."""
        found = self._limits.get(shard)
        if found is None:
            is_held = self._is_held
            found = self._limits[shard] = HeldTopicLimit(lambda: is_held(shard))
        return found

    async def run(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Let go on who may after each change of what is held, until cancelled."""
        while True:
            await changed()
            self._free(tuple(self._limits.values()))
