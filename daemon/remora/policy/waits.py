"""How long requests waited, counted in log-linear buckets: each is an eighth of a power of two, from 1 us to an hour.

So a quantile is right to 12 % whatever it is, and what was counted by several workers, or between two moments, is added
and subtracted bucket by bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_PARTS = 3
"""Bits of a number below its first one that tell buckets apart."""

MOST_US = 3_600_000_000
"""What took longer counts as an hour."""


def bucket_of_us(microseconds: int) -> int:
    """The bucket of a time: for small numbers the number itself."""
    value = min(max(microseconds, 0), MOST_US)
    shift = max(0, value.bit_length() - _PARTS - 1)
    return (shift << _PARTS) + (value >> shift)


def bound_us(bucket: int) -> int:
    """The largest time of a bucket."""
    shift = max(0, (bucket >> _PARTS) - 1)
    return min(((bucket - (shift << _PARTS) + 1) << shift) - 1, MOST_US)


@dataclass(slots=True)
class WaitCounts:
    """How many waits fell into each bucket; those without any are left out. A few hundred numbers at most."""

    by_bucket: dict[int, int] = field(default_factory=dict)

    def add(self, microseconds: int) -> None:
        """Count a wait."""
        bucket = bucket_of_us(microseconds)
        self.by_bucket[bucket] = self.by_bucket.get(bucket, 0) + 1

    @property
    def times(self) -> int:
        """How many there are."""
        return sum(self.by_bucket.values())

    def quantile_us(self, part: float) -> int | None:
        """The time that this part of all waits does not exceed; None where there are none."""
        left = part * self.times
        for bucket in sorted(self.by_bucket):
            left -= self.by_bucket[bucket]
            if left <= 1e-9:
                return bound_us(bucket)
        return None
