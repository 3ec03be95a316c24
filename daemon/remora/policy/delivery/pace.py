"""How fast: a budget of things per second, and when queues and the catalogue are looked into, and entries removed."""

from __future__ import annotations

from math import inf

LEAST_PER_SECOND = 500.0
MOST_PER_SECOND = 8000.0
"""Bounds of a worker's budget, in batches."""

UNDER_WAY = 20.0
"""This many batches, on average, are between their sending and their acknowledgement."""

BURST_S = 0.05
LONGEST_S = 0.15

GAP_S = 0.01
"""A queue whose store tells of new entries is read again after this time at the earliest, once a page has reached its
end. Read at once, a busy queue of single events makes twice as many pages, and a page costs as much as several entries.
A queue that got nothing for as long is read at once."""

_WEIGHT = 1 / 32

CHEAP_POLL_S = 0.0001
"""A look into a queue that costs more is answered by a server that many share; an OSD takes milliseconds for it."""

READ_EVERY_S, READS_AT_ONCE = 0.5, 4
"""In the long run a worker reads once in this time, and so many times at once: on RADOS one change of shards rings that
often. By default a worker that is told of changes all the time reads four times as often as one that waits its turn."""


class CellRate:
    """`_due` is when all that was charged would be over at the budget's rate; what was not used is not saved up."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due = 0.0

    def charge(self, cost_s: float, now: float, most_s: float = inf) -> float:
        """Charge one thing that takes `cost_s` at the budget's rate; returns how many seconds the budget is overdrawn.

        It is never overdrawn by more than `most_s`.
        """
        self._due = min(max(self._due, now) + cost_s, now + most_s)
        return self._due - now

    def overdrawn_s(self, now: float) -> float:
        """How many seconds the budget is overdrawn, with nothing charged."""
        return max(0.0, self._due - now)


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

    def pause_s(self, batches: int, now: float, *, is_told: bool = False) -> float:
        """Seconds to wait after a short listing that made `batches` batches at this time; `is_told` where the store
        tells of what comes behind it."""
        overdrawn_s = self._budget.charge(batches / self.per_second, now)
        return min(LONGEST_S, max(GAP_S if is_told else 0.0, overdrawn_s - BURST_S))


READS_PER_SECOND = 400.0
"""Reads of empty queues that one worker makes at most; a read costs an OSD about 0.3 ms."""

RUNG_PER_SECOND, RUNG_AT_ONCE = 200.0, 40
"""Rings may ask for so many of these reads: a ring is for several queues, and most of them got nothing."""

PASSIVATE_AFTER_S = 10.0
"""For how long a queue must have been empty before nothing runs for it any more."""

ACTIVE_AT_EASE = 200
"""This many shards may stay active for the whole of that time; when more are, each is passivated sooner."""


def idle_delay(idle_s: float, least_s: float, most_s: float) -> float:
    """Seconds until the next look into a queue that has been empty for `idle_s`.

    A queue that was busy a moment ago is looked at often, one that has been quiet for long seldom: the wait is
    a fortieth of the quiet time, between `least_s` and `most_s`.
    """
    return min(most_s, max(least_s, idle_s / 40))


class Looks:
    """The reads of empty queues that one worker makes: a budget, which those share that want to look.

    Where many do, each waits longer than `idle_delay` says, but never longer than `most_s`. Queues that have been quiet
    for long want little of it, and so take little from those that were busy a moment ago.
    """

    def __init__(self) -> None:
        self._budget, self._rung = CellRate(), CellRate()

    def wait_s(self, idle_s: float, now: float, least_s: float, most_s: float) -> float:
        """Seconds until the next look into a queue; the looks of the worker's others were asked for before."""
        overdrawn_s = self._budget.charge(1 / READS_PER_SECOND, now, most_s)
        return max(idle_delay(idle_s, least_s, most_s), overdrawn_s)

    def rung_s(self, now: float) -> float:
        """Seconds until a queue is looked into since its bell was rung, unless its own look comes before: mostly 0."""
        overdrawn_s = self._rung.charge(1 / RUNG_PER_SECOND, now, 1.0)
        return max(0.0, overdrawn_s - RUNG_AT_ONCE / RUNG_PER_SECOND)


def brought_forward_s(pause_s: float, early_s: float, waited_s: float) -> float:
    """By how many seconds news brought a look forward.

    It was due after a pause, and after what an earlier look was early by. One pause is the most, or rings that come for
    nothing would put off looks for ever.
    """
    return min(pause_s, max(0.0, pause_s + early_s - waited_s))


def passivate_after(active: int) -> float:
    """Seconds without entries after which a shard is passivated, where the store notifies; `active` includes it.

    To stay active spares opening the way for the next entry, and costs a few tasks and 20 KB; when thousands of
    shards got an entry each, most of them must not wait side by side for a second one.
    """
    return PASSIVATE_AFTER_S * min(1.0, ACTIVE_AT_EASE / max(1, active)) ** 2


class EarlyReadings:
    """The readings that changes ask for: a budget of one worker's."""

    def __init__(self) -> None:
        self._budget = CellRate()

    def wait_s(self, now: float) -> float:
        """Seconds until the reading that a change asks for now: mostly 0. What changes until then is read with it."""
        overdrawn_s = self._budget.charge(READ_EVERY_S, now, (READS_AT_ONCE + 1) * READ_EVERY_S)
        return max(0.0, overdrawn_s - READS_AT_ONCE * READ_EVERY_S)


PART_WAIT_S = (0.25, 1.0)
_REMOVALS = 50


def part_wait_s(removal_s: float) -> float:
    """How long the part of a page that is done waits for the rest, where the last removal took `removal_s`.

    Removals are few where entries flow, and what a crash repeats is little where a receiver takes its time. A queue's
    removals take a fiftieth of the time at most, unless they take longer than 20 ms.
    """
    least, most = PART_WAIT_S
    return min(most, max(least, _REMOVALS * removal_s))
