"""How many shards a topic would take for its peaks. Nothing changes the number by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from remora.model.peaks import HourPeak
from remora.model.topic import MOST_SHARDS

KEYS_AT_LEAST = 100
"""From this many entries on it is known whether one key makes most of them."""

WINDOW_S = 60.0
"""Rates are means over so long."""

WEEK_DAYS = 7


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest means over a minute that a shard had in a day, or the most that it should have; per second."""

    events: float | Fraction
    bytes: float | Fraction

    def ratio(self, most: Peak) -> Fraction:
        """How much of what it should have at most, of events or of bytes, whichever is more."""
        return max(Fraction(self.events) / Fraction(most.events), Fraction(self.bytes) / Fraction(most.bytes))


@dataclass(frozen=True, slots=True)
class ShardBounds:
    """What the number of shards depends on: what one has at most, below how many nobody is asked to go, and how long
    the store takes to commit a request to one shard while no other request reaches that shard; 0 where others do."""

    most: Peak
    fewest: int = 1
    commit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class History:
    """A topic's peaks of the last 30 days, as far as they are kept. A day is 24 hours that end with this one."""

    now_hour: int = 0
    hours: Sequence[HourPeak] = ()

    def days(self, shards: int) -> Mapping[int, Sequence[Peak]]:
        """The peaks by days ago, as the busiest of so many shards would have had them."""
        found: dict[int, list[Peak]] = {}
        for each in self.hours:
            found.setdefault(max(0, self.now_hour - each.hour) // 24, []).append(_of(each, shards))
        return found

    def week(self, shards: int, most: Peak) -> tuple[int, int]:
        """Of how many of the last 7 days anything is known, and on how many of these the busiest of so many shards
        would have had more than it should."""
        days = [peaks for day, peaks in self.days(shards).items() if day < WEEK_DAYS]
        return len(days), sum(any(each.ratio(most) > 1 for each in peaks) for peaks in days)

    def busiest(self, most: Peak, days: int) -> HourPeak | None:
        """The hour of so many days in which the topic as a whole came nearest to what its shards should have."""
        hours = (each for each in self.hours if self.now_hour - each.hour < 24 * days)
        return max(hours, key=lambda each: (_of(each, 1).ratio(most), each.hour), default=None)


NO_HISTORY = History()


@dataclass(frozen=True, slots=True)
class Advice:
    """The advised number of shards: more because of `events` or `bytes`, fewer because all are `quiet`; `because` is
    empty where the number is fine."""

    shards: int
    because: Literal["", "events", "bytes", "quiet"] = ""


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
        """Events per second of the busiest queue: between the last two looks, and at most."""

    def add(self, before: Mapping[str, Committed], after: Mapping[str, Committed], elapsed_s: float) -> None:
        """Two looks; a queue that is not in both, or was made anew between them, says nothing."""
        self.now = 0.0
        for name in before.keys() & after.keys():
            events = (after[name].entries - before[name].entries) / elapsed_s
            if events < 0:
                continue
            self.now = max(self.now, events)
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


def advise(shards: int, peaks: Sequence[Peak], bounds: ShardBounds, history: History = NO_HISTORY) -> Advice:
    """What is said of a topic whose shards have these peaks now, and had those of its history.

    More shards where the hottest is above its bound now or was within the week: as many that it would be at half of
    it. Fewer where half of them would do, and less: when all of the last 7 days are known, and by the hottest hour of
    all days that are. Then too the hottest would be at half of its bound at most. So whoever follows either advice is
    given none by the same history.
    """
    by_day = history.days(shards)
    week = [each for day, found in by_day.items() if day < WEEK_DAYS for each in found]
    hottest = max([*peaks, *week], key=lambda each: each.ratio(bounds.most), default=Peak(0, 0))
    ratio = hottest.ratio(bounds.most)
    if ratio > 1:
        by_events = Fraction(hottest.events) >= ratio * Fraction(bounds.most.events)
        more = min(MOST_SHARDS, _ceil(2 * shards * ratio))
        return Advice(max(shards, more), "events" if by_events else "bytes")
    if history.week(shards, bounds.most)[0] < WEEK_DAYS:
        return Advice(shards)
    known = [*peaks, *(each for found in by_day.values() for each in found)]
    fewer = _needed(shards, known, bounds)
    return Advice(fewer, "quiet") if 2 * fewer <= shards else Advice(shards)


def _needed(shards: int, peaks: Sequence[Peak], bounds: ShardBounds) -> int:
    """With how many shards the hottest would be at half of its bound, and commit each event as a request of its own.

    A shard takes a request in 8 commits: half of them are the request's, and a half of what that gives is for keys that
    are spread unevenly (docs/load.md).
    """
    hottest = max((each.ratio(bounds.most) for each in peaks), default=Fraction(0))
    events = max((Fraction(each.events) for each in peaks), default=Fraction(0))
    return max(1, bounds.fewest, _ceil(2 * shards * hottest), _ceil(8 * Fraction(bounds.commit_s) * events * shards))


def _of(peak: HourPeak, shards: int) -> Peak:
    """An hour's peak as the busiest of so many shards would have had it."""
    part = Fraction(peak.shards, shards)
    return Peak(peak.events * part, peak.bytes * part)


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def is_off_peak(now: float, peak: float) -> bool:
    """Whether a topic is at most at half of its day's peak: the time to change anything."""
    return 2 * now <= peak
