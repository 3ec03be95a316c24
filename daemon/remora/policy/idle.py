"""How often to look into a queue that was empty."""

from __future__ import annotations

READS_PER_SECOND = 400.0
"""Reads of empty queues that one worker makes at most; a read costs an OSD about 0.3 ms."""


def idle_delay(idle_s: float, owned: int, least_s: float, most_s: float) -> float:
    """Seconds until the next look into a queue that has been empty for `idle_s`.

    A queue that was busy a moment ago is looked at often, one that has been quiet for long seldom: the wait is
    a tenth of the quiet time, between `least_s` and `most_s`. Many owned queues share a budget of reads, which
    may stretch the wait beyond `least_s` but never beyond `most_s`.
    """
    return min(most_s, max(least_s, idle_s / 10, owned / READS_PER_SECOND))
