"""How often to look into a queue that was empty, and when to stop looking."""

from __future__ import annotations

READS_PER_SECOND = 400.0
"""Reads of empty queues that one worker makes at most; a read costs an OSD about 0.3 ms."""

REST_AFTER_S = 10.0
"""For how long a queue must have been empty before nothing runs for it any more."""

AWAKE_AT_EASE = 200
"""So many shards may stay awake for the whole of that time; what more there are rests the sooner."""


def idle_delay(idle_s: float, owned: int, least_s: float, most_s: float) -> float:
    """Seconds until the next look into a queue that has been empty for `idle_s`.

    A queue that was busy a moment ago is looked at often, one that has been quiet for long seldom: the wait is
    a tenth of the quiet time, between `least_s` and `most_s`. Many owned queues share a budget of reads, which
    may stretch the wait beyond `least_s` but never beyond `most_s`.
    """
    return min(most_s, max(least_s, idle_s / 10, owned / READS_PER_SECOND))


def rest_after(awake: int) -> float:
    """Seconds of quiet after which a shard goes dormant, where the store tells of arrivals; `awake` includes it.

    To stay awake spares opening the way for the next entry, and costs a few tasks and 20 KB; when thousands of
    shards got an entry each, most of them must not wait side by side for a second one.
    """
    return REST_AFTER_S * min(1.0, AWAKE_AT_EASE / max(1, awake)) ** 2
