"""Notice of new entries, as far as doorbells were rung (`doorbells.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from remora.model.shard import Shard
from remora.storage.bell import Bell

_WAIT_S = 3600.0


class RadosArrivals:
    """Waits for rings. Neither radosgw nor older remoras ring, so the queues have to be polled as well."""

    notifies = False

    def __init__(self) -> None:
        self._bell = Bell()
        self.tell = self._bell.ring

    async def wait(self) -> Sequence[Shard]:
        """Wait for rings, and answer which held queues may have got entries."""
        while not (found := self._bell.take()):
            await self._bell.wait(_WAIT_S)
        return found
