"""When to look again into queues that get entries all the time."""

from __future__ import annotations

PARCELS_PER_SECOND = 500.0
BURST_S = 0.05
LONGEST_S = 0.15


class Pace:
    """Spreads the small parcels of one worker over time.

    A parcel costs a good part of a millisecond of this process and of the broker, be it of one record or of a hundred.
    Where many queues get a few entries each, all the time, reading them at once would make nothing but small ones. So
    there is a budget of parcels: as long as it lasts nobody waits, and once it is used up, short listings are followed
    by a pause in which entries gather. Long listings never wait.

    The generic cell rate algorithm: `_due` is when all parcels so far would have been sent at the rate of the budget.
    """

    def __init__(self) -> None:
        self._due = 0.0

    def pause_s(self, parcels: int, now: float) -> float:
        """Seconds to wait after a short listing that made so many parcels at this time."""
        self._due = max(self._due, now) + parcels / PARCELS_PER_SECOND
        return min(LONGEST_S, max(0.0, self._due - now - BURST_S))
