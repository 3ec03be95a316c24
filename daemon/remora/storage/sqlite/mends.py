"""Mends of queues that never need any: the embedded store keeps no room for nobody."""

from __future__ import annotations

from remora.model.shard import LockToken, Mend, Shard
from remora.storage.sqlite.inspection import SqliteInspection


class NoMends:
    """Looks only."""

    def __init__(self, inspection: SqliteInspection) -> None:
        self._inspection = inspection

    async def look(self, shard: Shard) -> Mend:
        """The queue's room; nothing of it is leaked."""
        return Mend((await self._inspection.stats(shard)).room)

    async def mend(self, token: LockToken) -> Mend:
        """As `look`."""
        return await self.look(token.shard)

    async def mend_unheld(self, shard: Shard, *, patient: bool = False) -> Mend:
        """As `look`."""
        return await self.look(shard)
