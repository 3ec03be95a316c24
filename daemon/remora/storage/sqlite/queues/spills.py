"""Mends of queues and moves of entries, in a store that needs neither: it keeps no room for nobody, and what a queue
takes is an option of its topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from remora.model.errors import StoreMisconfigured
from remora.model.shard import LockToken, Mend, Shard
from remora.model.spill import NO_SPILL, SpilledRun, SpillLook, SpillUsage
from remora.storage.sqlite.queues.inspection import SqliteInspection


class NoMends:
    """Looks only: nothing ever has to be mended."""

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


_REFUSED = "queues of the embedded store do not spill: their room is an option of their topic"


class NoSpills:
    """Nothing is ever spilled."""

    may_spill = False

    def __init__(self, inspection: SqliteInspection) -> None:
        self._inspection = inspection

    async def look(self, token: LockToken) -> SpillLook:
        """The queue's room."""
        return SpillLook((await self._inspection.stats(token.shard)).room, NO_SPILL)

    async def guard(self, token: LockToken) -> bool:
        """Never."""
        return False

    async def unguard(self, token: LockToken) -> None:
        """Nothing."""

    async def move(self, token: LockToken) -> int:
        """None."""
        return 0

    async def usage(self) -> SpillUsage:
        """Nothing."""
        return SpillUsage({})

    async def runs(self, shard: Shard) -> Sequence[SpilledRun]:
        """None."""
        return ()

    async def entries(self, shard: Shard) -> AsyncIterator[tuple[str, bytes]]:
        """None."""
        nothing: tuple[tuple[str, bytes], ...] = ()
        for each in nothing:
            yield each

    async def exported(self, shard: Shard, upto: str) -> None:
        """Raises StoreMisconfigured."""
        raise StoreMisconfigured(_REFUSED)

    async def drop(self, token: LockToken) -> int:
        """Raises StoreMisconfigured."""
        raise StoreMisconfigured(_REFUSED)
