"""Counts what becomes of requests for credit, by group and priority, and how long they waited.

Waits are counted in log-linear buckets: each is an eighth of a power of two, from 1 us to an hour. So a quantile is
right to 12 % whatever it is, and what was counted by several workers, or between two moments, is added and subtracted
bucket by bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

_PARTS = 3
"""Bits of a number below its first one that tell buckets apart."""

MOST_US = 3_600_000_000
"""What took longer counts as an hour."""

COUNTED = ("granted_bytes", "passed_bytes", "given_back_bytes", "at_once", "deferred", "waited")
"""The counters of a flow. Each only grows."""


class CreditFlow(msgspec.Struct, kw_only=True):
    """Counters since the worker began, or since the group came.

    `granted_bytes` were charged and handed to endpoints, `passed_bytes` while the scope was disabled;
    `given_back_bytes` were charged and not used. Requests passed `at_once`, or were `deferred`: of these so many have
    `waited` and were granted then, the others wait or were given up. `waits` has the times of those that `waited`, by
    bucket of `policy.credit_flows`.
    """

    group: str
    priority: str
    granted_bytes: int = 0
    passed_bytes: int = 0
    given_back_bytes: int = 0
    at_once: int = 0
    deferred: int = 0
    waited: int = 0
    waits: Mapping[int, int] = {}


def merged_flows(flows: Iterable[CreditFlow]) -> list[dict[str, Any]]:
    """The flows of all workers by group and priority, each with the sums of its counters."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in flows:
        row = found.setdefault((each.group, each.priority), {"group": each.group, "priority": each.priority})
        for name in COUNTED:
            row[name] = row.get(name, 0) + getattr(each, name)
        waits = row.setdefault("waits", {})
        for bucket, times in each.waits.items():
            waits[bucket] = waits.get(bucket, 0) + times
    return [found[key] for key in sorted(found)]


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


class CreditFlows:
    """See the module. It belongs to one gate."""

    def __init__(self) -> None:
        self._flows: dict[tuple[str, str], tuple[CreditFlow, WaitCounts]] = {}

    def of(self, group: str, priority: str) -> CreditFlow:
        """The counters of a group's priority, to count in."""
        return self._both(group, priority)[0]

    def let_go(self, group: str, priority: str, waited_s: float | None) -> None:
        """A request was granted: at once, or after so long."""
        flow, waits = self._both(group, priority)
        if waited_s is None:
            flow.at_once += 1
        else:
            flow.waited += 1
            waits.add(round(waited_s * 1e6))

    def sent(self, group: str, priority: str, nbytes: int, *, is_charged: bool) -> None:
        """Bytes were handed to an endpoint, charged or while the scope was disabled."""
        flow = self.of(group, priority)
        if is_charged:
            flow.granted_bytes += nbytes
        else:
            flow.passed_bytes += nbytes

    def _both(self, group: str, priority: str) -> tuple[CreditFlow, WaitCounts]:
        found = self._flows.get((group, priority))
        if found is None:
            waits = WaitCounts()
            flow = CreditFlow(group=group, priority=str(priority), waits=waits.by_bucket)
            found = self._flows[group, priority] = flow, waits
        return found

    def keep(self, is_known: Callable[[str], bool]) -> None:
        """Forget groups that are gone."""
        self._flows = {key: each for key, each in self._flows.items() if is_known(key[0])}

    @property
    def all(self) -> list[CreditFlow]:
        """Every flow that anything was counted of."""
        return [flow for flow, _ in self._flows.values()]
