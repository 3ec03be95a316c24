"""How many shards a topic would take for its peaks. Nothing changes the number by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

MOST_SHARDS = 1024


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest means over a minute that a shard had in a day, or the most that it should have; per second."""

    events: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Advice:
    """So many shards, because of `events` or `bytes`; empty where the number is fine."""

    shards: int
    because: str = ""


def advise(shards: int, peaks: Sequence[Peak], most: Peak) -> Advice:
    """So many shards that the hottest one would be at half of what it should have at most, where it is above that."""
    hottest, because = Fraction(0), ""
    for name in ("events", "bytes"):
        ratio = max((Fraction(getattr(each, name), getattr(most, name)) for each in peaks), default=Fraction(0))
        if ratio > hottest:
            hottest, because = ratio, name
    if hottest <= 1:
        return Advice(shards)
    wanted = -(-2 * shards * hottest.numerator // hottest.denominator)
    return Advice(max(shards, min(MOST_SHARDS, wanted)), because)


def is_off_peak(now: float, peak: float) -> bool:
    """Whether a topic is at most at half of its day's peak: the time to change anything."""
    return 2 * now <= peak
