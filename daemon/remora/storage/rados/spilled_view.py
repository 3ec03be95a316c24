"""What is spilled of a queue, looked at without its lock while its owner moves and removes entries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from remora.model.errors import StoreDamaged
from remora.model.position import Position
from remora.model.shard import Shard
from remora.model.spill import SpilledRun
from remora.ports.credit import StoreTraffic
from remora.storage.librados import ReadOp
from remora.storage.rados.connection import ClusterConnection
from remora.storage.rados.part import INCARNATION
from remora.storage.rados.placement import Locator
from remora.storage.rados.refusals import QUEUE
from remora.storage.rados.runs import Runs, look_with_runs
from remora.storage.rados.state import StoredState


@dataclass(frozen=True, slots=True)
class SpilledView:
    """The runs of a queue at one moment, with its head and state."""

    stored: StoredState
    runs: Sequence[SpilledRun]
    incarnation: str
    reader: Runs
    traffic: StoreTraffic

    async def entries(self, after: Position) -> AsyncIterator[tuple[str, bytes]]:
        """Position and raw bytes of each spilled entry from a position on. Raises StoreDamaged also for a run that was
        delivered since.
        """
        start = max(after, self.stored.state.spill.front)
        for run in self.runs:
            if run.end <= start:
                continue
            page = await self.reader.read(run)
            first = bisect_left(page.positions, start, key=lambda each: Position.parse(each.decode("ascii")))
            for i in range(first, len(page.entries)):
                yield page.positions[i].decode("ascii"), page.entries[i]
            await self.traffic.walked(run.stored_bytes)


async def spilled_view(connection: ClusterConnection, shard: Shard, locator: Locator, reader: Runs) -> SpilledView:
    """Look at a queue. Raises ShardGone."""
    what = f"looking at {shard}"
    found = await look_with_runs(
        lambda: ReadOp().assert_exists(), lambda each: connection.run(each, shard.queue, what, QUEUE, locator), what
    )
    incarnation = found.xattrs.get(INCARNATION, b"").decode("ascii", "replace")
    return SpilledView(found.stored, found.runs, incarnation, reader, connection.traffic)


async def oldest_spilled(view: SpilledView) -> bytes | None:
    """The oldest entry of the runs; None where there is none, or it was delivered meanwhile."""
    try:
        async for _, raw in view.entries(Position(0, 0)):
            return raw
    except StoreDamaged:
        pass
    return None
