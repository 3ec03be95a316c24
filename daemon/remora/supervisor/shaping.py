"""How a host shapes its traffic, for those who ask and for metrics: what is in force, and changes until a reload."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from remora.codec.json_pieces import repeated_name
from remora.config import LimitSettings, ScopeSettings, ShapingSettings
from remora.metrics import Telemetry
from remora.model.caller import NOBODY, Caller
from remora.model.errors import ConfigError
from remora.model.traffic import BUCKETS, UNMETERED, Priority, burst_of, limit_of
from remora.policy.shaping.cells import PRIORITIES
from remora.policy.shaping.classes import NO_ADDRESSES, Addresses, are_inside, networks_of, scope_of
from remora.policy.shaping.credit_flows import CreditFlow, merged_flows
from remora.policy.shaping.group import Group
from remora.policy.shaping.rates import is_of_limit
from remora.policy.shaping.scaling import FULL
from remora.process.pipe import UseStore
from remora.supervisor.shaper import Shaper
from remora.supervisor.shaping_changes import Change, StoreUse, differences, overridden, reshaped

Waiting = Mapping[tuple[str, str], int]
"""How many listings wait for credit, by scope and priority."""

REPORT_S = 1.0

T = TypeVar("T")


class KnowsFlows(Protocol):
    """Asks the workers who waits for credit, what became of those who did, and which addresses hosts have."""

    async def waiting_for_credit(self) -> Waiting: ...

    async def flows(self) -> Mapping[int, Sequence[CreditFlow] | None]: ...

    async def addresses(self) -> Addresses: ...


class HostShaping:
    """See the module. What is in force is what the file says, or what a command made of it since the last reload."""

    def __init__(
        self,
        shaper: Shaper,
        settings: ShapingSettings,
        limits: tuple[LimitSettings, ...],
        workers: int,
        asked: KnowsFlows,
        telemetry: Telemetry,
    ) -> None:
        """`asked` asks the workers."""
        self.in_force = settings
        self.on_change: Callable[[], None] = lambda: None
        """Lets the workers know what is in force."""
        self.on_use: Callable[[int, UseStore], None] = lambda _, __: None
        """Lets the worker at a place know what it is charged."""
        self._shaper = shaper
        self._file = settings
        self._limits = limits
        self._workers = workers
        self._asked = asked
        self._telemetry = telemetry
        shaper.configure(settings, limits)
        telemetry.shaping_overridden(overridden(settings, settings))

    @property
    def remarks(self) -> list[str]:
        """What is in force, and may not be what is meant."""
        return self.in_force.remarks(self._workers)

    def reload(self, settings: ShapingSettings, limits: tuple[LimitSettings, ...]) -> None:
        """The file says this now; what commands have changed is over."""
        if self.in_force != self._file:
            self._telemetry.shaping_changed(differences(self.in_force, settings), "reload", NOBODY)
        self._file = self.in_force = settings
        self._limits = limits
        self._telemetry.shaping_overridden(overridden(settings, settings))
        self._shaper.configure(settings, limits)

    def change(self, body: bytes, caller: Caller = NOBODY) -> list[str]:
        """Make a `Change`, given as JSON; a line for each value. Raises ConfigError, and then changes nothing."""
        change = _read(body, Change, "change of shaping")
        if change.reset:
            settings, lines = self._file, ["shaping is what the configuration file says"]
        else:
            settings, lines = reshaped(self.in_force, change)
        self._telemetry.shaping_changed(differences(self.in_force, settings), "command", caller)
        self.in_force = settings
        self._telemetry.shaping_overridden(overridden(self._file, settings))
        self._shaper.configure(settings, self._limits)
        self.on_change()
        return lines

    def use_store(self, body: bytes) -> float | None:
        """Charge a `StoreUse`, given as JSON, to a worker; in how many seconds that is paid back, None where nobody
        knows. Raises ConfigError for another body."""
        use = _read(body, StoreUse, "use of the store")
        found = self._shaper.taken_from(self.in_force.of_store or "", use.priority, use.nbytes)
        if found is None:
            return 0.0
        place, wait_s = found
        if use.nbytes:
            self.on_use(place, UseStore(priority=Priority(use.priority), nbytes=use.nbytes))
        return wait_s

    async def show(self) -> dict[str, object]:
        """What is in force, with the credit and the counters of all workers."""
        waiting, flows = await asyncio.gather(self._asked.waiting_for_credit(), self._asked.flows())
        counted = [each for said in flows.values() for each in said or ()]
        addresses = await self._asked.addresses() if self.in_force.rules.has_networks else NO_ADDRESSES
        return {
            "changed": self.in_force != self._file,
            "default_class": self.in_force.default_class,
            "remarks": self.remarks,
            "scopes": [self._scope(each, waiting) | _hosts(each, addresses) for each in self.in_force.scope],
            "flows": [each | self._moved(each) for each in merged_flows(counted)],
            "workers": [{"number": number, "answers": said is not None} for number, said in flows.items()],
            "ticks": self._shaper.ticks,
            "late_ticks": self._shaper.late_ticks,
        }

    def _moved(self, flow: dict[str, Any]) -> dict[str, int]:
        """What the shaper moved of a group's credit at one priority; what was lost is the whole group's."""
        group = self._shaper.groups.get(flow["group"])
        if group is None:
            return {"donated_bytes": 0, "transferred_bytes": 0, "group_lost_bytes": 0}
        moved = group.donated[flow["priority"]], group.transferred[flow["priority"]]
        return {"donated_bytes": moved[0], "transferred_bytes": moved[1], "group_lost_bytes": group.lost}

    def _scope(self, scope: ScopeSettings, waiting: Waiting) -> dict[str, object]:
        groups = {name: each for name, each in self._shaper.groups.items() if scope_of(name) == scope.name}
        levels = {
            name: {bucket: sum(group.tiers[bucket].levels) for bucket in BUCKETS} for name, group in groups.items()
        }
        meters = []
        for bucket in BUCKETS:
            meter = scope.by_bucket.get(bucket, UNMETERED)
            meters.append(
                {
                    "bucket": bucket,
                    "guaranteed": meter.guaranteed,
                    "max": meter.max,
                    "burst": meter.burst,
                    "level": sum(each[bucket] for each in levels.values()),
                    "waiting": waiting.get((scope.name, bucket), 0),
                    "granted": sum(self._shaper.granted(name).get(bucket, 0) for name in groups),
                    "donated": sum(each.donated.get(bucket, 0) for each in groups.values()),
                    "transferred": sum(each.transferred.get(bucket, 0) for each in groups.values()),
                }
            )
        return {
            "name": scope.name,
            "of": scope.of,
            "enabled": scope.enabled,
            "limit": limit_of(scope.by_bucket),
            "burst": burst_of(scope.by_bucket),
            "lost": sum(each.lost for each in groups.values()),
            "meters": meters,
            "across": scope.across,
            "adaptive": scope.adaptive,
            "groups": [
                {"name": name, "levels": levels[name], "unacked": self._shaper.unacked(name)}
                | {"scale": groups[name].scale.thousandths / FULL}
                | ({"share": self._shaper.shared(name)} if scope.is_shared else {})
                for name in groups
            ],
        }


def _read(body: bytes, form: type[T], what: str) -> T:
    try:
        found = msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ConfigError("", f"this is no {what}: {exc}") from exc
    if (name := repeated_name(body)) is not None:
        raise ConfigError("", f"this is no {what}: {name} stands twice in its object")
    return found


def _hosts(scope: ScopeSettings, addresses: Addresses) -> dict[str, object]:
    """Which of the hosts that were looked up lie in the networks of a scope, where it has some."""
    networks = networks_of(scope.match) if scope.of == "destination" else ()
    if not networks:
        return {}
    return {
        "hosts": [
            {"name": name, "addresses": found, "inside": are_inside(networks, found)}
            for name, found in addresses.items()
        ]
    }


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
