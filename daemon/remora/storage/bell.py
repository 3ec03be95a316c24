"""What a store tells its readers: which queues got entries, and that topics may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from remora.model.shard import Shard


class Bell:
    """Collects the queues that got entries, until a reader takes them."""

    def __init__(self) -> None:
        self._shards: dict[Shard, None] = {}
        self._rung = asyncio.Event()

    def ring(self, shards: Iterable[Shard]) -> None:
        """Queues that got entries just now."""
        self._shards.update(dict.fromkeys(shards))
        if self._shards:
            self._rung.set()

    def take(self) -> Sequence[Shard]:
        """What has been collected, each once; it is collected anew from now on."""
        taken, self._shards = tuple(self._shards), {}
        self._rung.clear()
        return taken

    async def wait(self, within_s: float) -> None:
        """Return when there is something to take, or after a time."""
        alarm = asyncio.get_running_loop().call_later(within_s, self._rung.set)
        try:
            await self._rung.wait()
        finally:
            alarm.cancel()


class CatalogueNews:
    """Tells the one reader of the catalogue that topics may have changed. News that nobody waits for is kept."""

    def __init__(self) -> None:
        self._told = asyncio.Event()

    def tell(self) -> None:
        """Some topic may have changed."""
        self._told.set()

    async def wait(self) -> None:
        """Return once news came since the last return."""
        await self._told.wait()
        self._told.clear()
