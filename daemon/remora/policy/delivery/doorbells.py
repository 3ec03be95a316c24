"""Doorbells of a store that cannot tell of arrivals by itself: which one a queue has, and when a commit rings it.

A ring only makes a reader look sooner: readers look by themselves, too, so a ring that is left out costs no entry.
"""

from __future__ import annotations

from zlib import crc32

from remora.policy.delivery.pace import CellRate

BELLS = 16
"""A ring says which bell, and not which queue: whoever hears it looks into its empty queues of that bell. More bells
mean fewer such looks, and more watches that each worker has to keep alive."""

EVERY_S, AT_ONCE = 0.2, 3
"""A queue that gets more commits than one in this time is looked at often anyway: but for so many they do not ring."""

MOST_KNOWN = 10_000
"""Of so many queues it is remembered how often they got commits; then all count as quiet."""

NOTIFY_EVERY_S, NOTIFIES_AT_ONCE = 0.02, BELLS
"""What a process asks of the OSDs for rings at most: one notification in this time, and so many at once. A cluster that
cannot keep up with commits has queues that seem quiet, and must not have to ring for each."""

PAUSE_S = 0.01
"""Between two rings of one bell by one process. What is committed in it is rung for at its end."""


def bell_of(queue: str) -> int:
    """The number of a queue's bell: the same in each process and release, or nobody would hear it."""
    return crc32(queue.encode(errors="surrogateescape")) % BELLS


class RingPace:
    """Tells which commits of this process ring, and which rings notify."""

    def __init__(self) -> None:
        self._rates: dict[str, CellRate] = {}
        self._notified = CellRate()

    def rings(self, queue: str, now: float) -> bool:
        """Entries were committed to a queue: returns whether its bell is rung, which it is not for a busy queue."""
        if len(self._rates) >= MOST_KNOWN:
            self._rates.clear()
        rate, most_s = self._rates.setdefault(queue, CellRate()), (AT_ONCE + 1) * EVERY_S
        overdrawn_s = rate.charge(EVERY_S, now, most_s)
        return overdrawn_s < most_s - EVERY_S / 2

    def notifies(self, now: float) -> bool:
        """A bell is to be rung: returns whether who watches it is notified, which is left out while many are."""
        if self._notified.overdrawn_s(now) > (NOTIFIES_AT_ONCE - 0.5) * NOTIFY_EVERY_S:
            return False
        self._notified.charge(NOTIFY_EVERY_S, now)
        return True


def pause_s(since_ring_s: float, unanswered: int) -> float:
    """Seconds until a bell may be rung again.

    Each ring that is `unanswered` makes the pause longer: a watcher that has died, or is frozen, is waited for.
    """
    return max(0.0, PAUSE_S * (1 + unanswered) - since_ring_s)
