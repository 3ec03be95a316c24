"""What the shards of one destination share: bytes that they may hold, and the news that it works again."""

from __future__ import annotations

import asyncio

from remora.engine.allowance import Allowance

SPREAD_S = 0.5
"""Over this time shards come back that were told: not all in one moment."""

TOLD_EVERY_S = 5.0
"""News are told no more often, so that a shard which fails for a reason of its own keeps its back-off although others
of the same destination fail and recover."""


class Destination:
    """A hanging destination leaves room for the others, and one that is back is used by all its shards at once.

    Without the second, each shard would find out by itself at the end of its own pause, which grows with the outage.
    """

    def __init__(self, nbytes: int, within: Allowance) -> None:
        """All its shards together hold at most `nbytes`, and no more than they leave free `within` the worker."""
        self.allowance = Allowance(nbytes, within=within, leaves_room=True)
        self._works = asyncio.Event()
        self._told_at = -TOLD_EVERY_S

    def recovered(self) -> None:
        """A shard that failed before has delivered again."""
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            self._works.set()
            self._works = asyncio.Event()

    async def recovery(self, chance: float) -> None:
        """Wait until another shard has recovered; `chance`, in [0, 1), spreads those who wait."""
        await self._works.wait()
        await asyncio.sleep(chance * SPREAD_S)
