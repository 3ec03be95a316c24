"""When the catalogue is read before its turn: soon after a store tells that it has changed."""

from __future__ import annotations

from remora.policy.gcra import CellRate

EVERY_S, AT_ONCE = 0.5, 4
"""One reading in this time, in the long run, and so many at once: on RADOS a change of shards tells that often. A
worker that is told of changes all the time reads four times as often as one that is told of none, by default."""


class EarlyReadings:
    """The readings that changes ask for: a budget of one worker's."""

    def __init__(self) -> None:
        self._budget = CellRate()

    def wait_s(self, now: float) -> float:
        """Seconds until the reading that a change asks for now: mostly 0. What changes until then is read with it."""
        overdrawn_s = self._budget.charge(EVERY_S, now, (AT_ONCE + 1) * EVERY_S)
        return max(0.0, overdrawn_s - AT_ONCE * EVERY_S)
