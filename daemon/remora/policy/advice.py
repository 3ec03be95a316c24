"""How many shards a topic would take for its peaks. Nothing changes the number by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

MOST_SHARDS = 1024
KEYS_AT_LEAST = 100
"""From this many entries on it is known whether one key makes most of them."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest means over a minute that a shard had in a day, or the most that it should have; per second."""

    events: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The advised number of shards, because of `events` or `bytes`; empty where the number is fine."""

    shards: int
    because: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """What was ever committed to a queue, in entries, and the mean bytes of one; 0 where that is unknown."""

    entries: int
    mean_bytes: float


class Observed:
    """The rates at which events come into a topic's queues, each the mean between two looks at all of them."""

    def __init__(self) -> None:
        self.peaks: dict[str, Peak] = {}
        """The highest of each queue, events and bytes each for itself."""
        self.now = 0.0
        self.peak = 0.0
        """Events per second of all queues together: between the last two looks, and at most."""

    def add(self, before: Mapping[str, Committed], after: Mapping[str, Committed], elapsed_s: float) -> None:
        """Two looks; a queue that is not in both, or was made anew between them, says nothing."""
        self.now = 0.0
        for name in before.keys() & after.keys():
            events = (after[name].entries - before[name].entries) / elapsed_s
            if events < 0:
                continue
            self.now += events
            known = self.peaks.get(name, Peak(0, 0))
            nbytes = events * (after[name].mean_bytes or before[name].mean_bytes)
            self.peaks[name] = Peak(max(known.events, round(events)), max(known.bytes, round(nbytes)))
        self.peak = max(self.peak, self.now)


def key_that_makes_it(keys: Sequence[str]) -> str | None:
    """The key that most of these entries have, which no number of shards divides; None where there is none."""
    if len(keys) < KEYS_AT_LEAST:
        return None
    key, count = Counter(keys).most_common(1)[0]
    return key if 2 * count > len(keys) else None


def advise(shards: int, peaks: Sequence[Peak], most: Peak) -> Advice:
    """The number of shards with which the hottest one would be at half of its bound, where it is above that."""
    hottest, because = Fraction(0), ""
    for name in ("events", "bytes"):
        ratio = max(
            (Fraction(getattr(each, name)) / Fraction(getattr(most, name)) for each in peaks), default=Fraction(0)
        )
        if ratio > hottest:
            hottest, because = ratio, name
    if hottest <= 1:
        return Advice(shards)
    wanted = -(-2 * shards * hottest.numerator // hottest.denominator)
    return Advice(max(shards, min(MOST_SHARDS, wanted)), because)


def is_off_peak(now: float, peak: float) -> bool:
    """Whether a topic is at most at half of its day's peak: the time to change anything."""
    return 2 * now <= peak
