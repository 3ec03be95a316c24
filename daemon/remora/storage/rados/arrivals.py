"""Notice of new entries, which no OSD gives."""

from __future__ import annotations

from collections.abc import Sequence

from remora.model.shard import Shard


class NoArrivals:
    """The queues have to be polled."""

    notifies = False

    async def wait(self) -> Sequence[Shard]:
        """Never called; see `notifies`."""
        raise NotImplementedError
