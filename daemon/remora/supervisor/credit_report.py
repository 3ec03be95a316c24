"""Lets the metrics follow what the shaper deals out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from remora.metrics import Telemetry
from remora.policy.cells import PRIORITIES
from remora.policy.classes import scope_of
from remora.policy.rates import is_of_limit
from remora.policy.scaling import FULL
from remora.policy.shaping import Group
from remora.supervisor.shaper import Shaper

REPORT_S = 1.0


@dataclass(frozen=True, slots=True)
class Moved:
    """What the counters of a group were. Another group of the same name counts from nothing."""

    of: Group
    transferred: Mapping[str, int]
    donated: Mapping[str, int]
    lost: int


class CreditReport:
    """What was reported last of each group, so that counters get what came since."""

    def __init__(self, shaper: Shaper, telemetry: Telemetry) -> None:
        self._shaper = shaper
        self._telemetry = telemetry
        self._before: dict[str, Moved] = {}

    async def run(self) -> None:
        """Let a second pass for the shaper, and report, once a second."""
        while True:
            self._shaper.window()
            self.report()
            await asyncio.sleep(REPORT_S)

    def report(self) -> None:
        """Report what was moved since the last report, and the levels."""
        groups = {name: group for name, group in self._shaper.groups.items() if not is_of_limit(name)}
        if not self._shaper.groups and not self._before:
            return
        now: dict[str, Moved] = {}
        levels: Counter[tuple[str, str]] = Counter()
        sums: Counter[tuple[str, str, str]] = Counter()
        lost: Counter[str] = Counter()
        for name, group in groups.items():
            scope, ago = scope_of(name), self._before.get(name)
            for priority in PRIORITIES:
                levels[scope, priority] += sum(group.tiers[priority].levels)
            now[name] = moved = Moved(group, dict(group.transferred), dict(group.donated), group.lost)
            if moved == ago:
                continue
            # A new group begins with nothing, also one with an earlier group's name.
            ago = Moved(group, {}, {}, 0) if ago is None or ago.of is not group else ago
            lost[scope] += moved.lost - ago.lost
            for priority in PRIORITIES:
                sums["transferred", scope, priority] += moved.transferred[priority] - ago.transferred.get(priority, 0)
                sums["donated", scope, priority] += moved.donated[priority] - ago.donated.get(priority, 0)
        self._before = now
        for scope, nbytes in lost.items():
            self._telemetry.shaping_lost(scope, nbytes)
        for (what, scope, priority), nbytes in sums.items():
            self._telemetry.shaping_moved(what, scope, priority, nbytes)
        for (scope, priority), level in levels.items():
            self._telemetry.shaping_level(scope, priority, level)
        self._report_scopes(groups)

    def _report_scopes(self, groups: Mapping[str, Group]) -> None:
        """Report meters; how much of the spare there is, and what no endpoint has acknowledged, by scope."""
        for shown in self._shaper.scopes:
            names = [name for name in groups if scope_of(name) == shown.name]
            scales = [groups[name].scale.thousandths for name in names]
            unacked = sum(map(self._shaper.unacked, names))
            self._telemetry.shaping_scale(shown.name, min(scales, default=FULL) / FULL, unacked)
        meters = {each.name: each.by_bucket for each in self._shaper.scopes}
        self._telemetry.shaping_meters(meters, self._shaper.late_s)
