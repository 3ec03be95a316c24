"""When to look again into queues that get entries all the time."""

from __future__ import annotations

from remora.policy.gcra import CellRate

LEAST_PER_SECOND = 500.0
MOST_PER_SECOND = 8000.0
"""Bounds of a worker's budget, in batches."""

UNDER_WAY = 20.0
"""This many batches, on average, are between their sending and their acknowledgement."""

BURST_S = 0.05
LONGEST_S = 0.15

_WEIGHT = 1 / 32


CHEAP_POLL_S = 0.0001
"""A look into a queue that costs more is answered by a server that many share; an OSD takes milliseconds for it."""


def most_per_second(poll_cost_s: float) -> float:
    """The largest budget of batches where one look into a queue costs this much; about each batch takes a look."""
    return MOST_PER_SECOND if poll_cost_s <= CHEAP_POLL_S else LEAST_PER_SECOND


class Pace:
    """Spreads the small batches of one worker over time.

    A batch costs some tenth of a millisecond of this process, be it of one record or of a hundred, and each look into
    a queue costs the store as much. Where many queues get a few entries each, all the time, reading them at once would
    make nothing but small ones. So there is a budget of batches: as long as it lasts no shard waits; once it is used
    up, short listings are followed by a pause in which entries gather. Long listings never wait.

    The budget follows the time that acknowledgements take, which grows when this host or the broker has no processor
    time to spare: by Little's law, that time and the budget together say how many batches are under way.
    """

    def __init__(self, most_per_second: float = MOST_PER_SECOND) -> None:
        self._most = most_per_second
        self._budget = CellRate()
        self._ack_s = UNDER_WAY / most_per_second

    @property
    def per_second(self) -> float:
        """The budget as it is now."""
        return min(self._most, max(LEAST_PER_SECOND, UNDER_WAY / self._ack_s))

    def acknowledged(self, after_s: float) -> None:
        """A batch was acknowledged so long after it was given to the endpoint."""
        self._ack_s += (max(after_s, 1e-6) - self._ack_s) * _WEIGHT

    def pause_s(self, batches: int, now: float) -> float:
        """Seconds to wait after a short listing that made `batches` batches at this time."""
        overdrawn_s = self._budget.charge(batches / self.per_second, now)
        return min(LONGEST_S, max(0.0, overdrawn_s - BURST_S))
