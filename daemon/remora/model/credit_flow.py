"""What traffic shaping did with the requests of one priority in one group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

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
