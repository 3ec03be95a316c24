"""When the catalogue is read before its turn: soon after a store tells that it has changed."""

from __future__ import annotations

from remora.policy.gcra import CellRate

EVERY_S, AT_ONCE = 0.5, 4
"""A worker reads once in this time in the long run, and so many times at once: on RADOS one change of shards rings that
often. By default a worker that always hears of changes reads four times as often as one that hears of none."""


class EarlyReadings:
    """The readings that changes ask for: a budget of one worker's."""

    def __init__(self) -> None:
        self._budget = CellRate()

    def wait_s(self, now: float) -> float:
        """Seconds until the reading that a change asks for now: mostly 0. What changes until then is read with it."""
        overdrawn_s = self._budget.charge(EVERY_S, now, (AT_ONCE + 1) * EVERY_S)
        return max(0.0, overdrawn_s - AT_ONCE * EVERY_S)
