"""The service level of a topic: which part of its events has to arrive how soon, and how fast its budget may burn."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

AGE_BOUNDS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 21600, 86400,
)  # fmt: skip
"""The buckets of `remora_event_age_seconds`: an objective has one of these bounds, since only these are counted."""

LEAST_DAYS, MOST_DAYS = 7, 90
"""Shorter windows leave no room for the slower alerts, longer ones are kept by few Prometheus servers."""

_FORM = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,6})?)% *< *([0-9.]+)(ms|s|m|h|d) +over +([0-9]{1,4})d")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Objective:
    """`percent` of a topic's events arrive within `bound_s` of their creation, over any `days` days."""

    percent: float
    bound_s: float
    days: int

    def __str__(self) -> str:
        return f"{self.percent:g}% < {duration_text(self.bound_s)} over {self.days}d"

    @property
    def budget(self) -> float:
        """The part of the events that may be late."""
        return (100 - self.percent) / 100

    def left(self, good: int, total: int) -> float:
        """What is left of the budget of these events: 1 for all of it, below 0 where more were late than may be."""
        return 1 - (total - good) / total / self.budget if total else 1.0


def parse_objective(text: str) -> Objective:
    """The objective of a text such as `99% < 5s over 28d`. Raises ValueError, with the nearest bounds there are."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError("expected a service level such as 99% < 5s over 28d")
    percent, number, unit, days = found.groups()
    try:
        bound_s = float(number) * _UNITS[unit]
    except ValueError:
        raise ValueError("expected a bound such as 250ms or 5s") from None
    if not float(percent) > 0:
        raise ValueError("expected a part of more than 0% and less than 100%")
    if not LEAST_DAYS <= int(days) <= MOST_DAYS:
        raise ValueError(f"expected a window of {LEAST_DAYS}d to {MOST_DAYS}d")
    for each in AGE_BOUNDS_S:
        if math.isclose(each, bound_s):
            return Objective(float(percent), each, int(days))
    at = bisect_left(AGE_BOUNDS_S, bound_s)
    near = " and ".join(map(duration_text, AGE_BOUNDS_S[max(0, at - 1) : at + 1]))
    raise ValueError(f"ages of events are not counted at {number}{unit}; the nearest bounds are {near}")


def duration_text(seconds: float) -> str:
    """A bound as the file of topics has it."""
    unit, unit_s = next(each for each in reversed(_UNITS.items()) if seconds >= each[1])
    return f"{seconds / unit_s:g}{unit}"


@dataclass(frozen=True, slots=True)
class BurnRate:
    """An alert: the part of late events is above `threshold` in a long and in a short window, Prometheus's durations.

    The long one says that it matters, the short one that it still goes on.
    """

    long: str
    short: str
    threshold: float
    severity: str


_BURNS = (
    # The part of the whole budget that is burnt in the long window when the alert fires.
    (0.02, 1, "1h", "5m", "critical"),
    (0.05, 6, "6h", "30m", "critical"),
    (0.10, 24, "1d", "2h", "warning"),
    (0.10, 72, "3d", "6h", "warning"),
)


def burn_rates(objective: Objective) -> Iterator[BurnRate]:
    """The alerts of an objective, the fastest first; none that would need more late events than there are events."""
    for part, hours, long, short, severity in _BURNS:
        rate = max(1.0, part * objective.days * 24 / hours)
        threshold = rate * objective.budget
        if threshold < 1:
            yield BurnRate(long, short, round(threshold, 9), severity)
