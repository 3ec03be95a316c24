"""The peaks of a topic's busiest shard, an hour each, as the store keeps them."""

from __future__ import annotations

from dataclasses import dataclass

KEPT_HOURS = 30 * 24
"""How long a store keeps them."""


@dataclass(frozen=True, slots=True, order=True)
class HourPeak:
    """The highest means over a minute that any one of a topic's `shards` had within an hour; events and bytes per
    second, each for itself. `hour` counts from the beginning of 1970."""

    hour: int
    shards: int
    events: int
    bytes: int

    @property
    def day(self) -> int:
        """The day that the hour lies in, counted from the beginning of 1970."""
        return self.hour // 24

    def __or__(self, other: HourPeak) -> HourPeak:
        """Of two of the same hour and number of shards the higher figures."""
        return HourPeak(self.hour, self.shards, max(self.events, other.events), max(self.bytes, other.bytes))


def merged(*peaks: HourPeak) -> tuple[HourPeak, ...]:
    """One for each hour and number of shards, in order."""
    found: dict[tuple[int, int], HourPeak] = {}
    for each in peaks:
        key = each.hour, each.shards
        found[key] = found[key] | each if key in found else each
    return tuple(sorted(found.values()))
