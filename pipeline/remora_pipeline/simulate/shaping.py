"""Model `shaping`: the groups of one host, its workers as members, their ticks and who waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from remora.model.errors import ConfigError
from remora.model.traffic import BUCKETS, Meter, Priority, meters_from
from remora.policy.admission.limits import CreditLimit
from remora.policy.admission.line import AdmissionLimit, Demand, WaitingLine
from remora.policy.shaping.bucket import SECOND_US
from remora.policy.shaping.cells import PRIORITIES, MemberAccount
from remora.policy.shaping.group import Group, Tier
from remora.policy.shaping.scaling import FULL
from remora_pipeline.simulate.checks import (
    MOST_MEMBERS,
    TICK_US,
    bucket_named,
    no_doubles,
    not_negative,
    one_of,
    priority_named,
    within,
)
from remora_pipeline.simulate.form import Optional, either, flag, listed, members, named, or_null, text, whole
from remora_pipeline.simulate.orders import Orders
from remora_pipeline.simulate.script import Form

ALL = "all"


class MemberLine:
    """Who waits for credit in one member's part of the groups, which are given from narrow to wide."""

    def __init__(self, member: int, groups: Mapping[str, Group]) -> None:
        self._member = member
        self._groups = groups
        self._names = list(groups)
        self._accounts: dict[str, MemberAccount] = {name: group.account(member) for name, group in groups.items()}
        self._limits: dict[tuple[str, str], CreditLimit] = {}
        self._line = WaitingLine(self._rank)
        self._requests: dict[str, Demand] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._requests

    def waiting(self, group: str, priority: str) -> tuple[str, ...]:
        """Who waits in a group, the first one first."""
        names = {request: name for name, request in self._requests.items()}
        return tuple(names[each] for each in self._line.waiting(self._limit(group, priority)))

    def request(self, priority: str, path: Sequence[str], want: int, least: int) -> Demand:
        """A request that passes these groups."""
        return Demand(Priority(priority), tuple(self._limit(each, priority) for each in path), want, least)

    def send(self, name: str, request: Demand) -> bool:
        """Whether the request is granted at once; else it waits."""
        is_granted = self._line.ask(request)
        if is_granted:
            self._count(request)
        else:
            self._requests[name] = request
        return is_granted

    def cancel(self, name: str) -> bool:
        """Whether a request of this name waited, which it does no longer."""
        request = self._requests.pop(name, None)
        if request is not None:
            self._line.cancel(request)
        return request is not None

    def release(self) -> list[tuple[str, Demand]]:
        """Lets go on who can."""
        self._line.free(list(self._line.waited_in))
        names = {request: name for name, request in self._requests.items()}
        released = [(names[request], request) for request in self._line.look()]
        for name, request in released:
            del self._requests[name]
            self._count(request)
        return released

    def _count(self, request: Demand) -> None:
        for limit, hold in zip(request.limits, request.holds, strict=True):
            assert isinstance(limit, CreditLimit)
            group = self._groups[limit.group]
            group.count(self._member, request.priority, request.want, charged=hold.is_charged)

    def _limit(self, group: str, priority: str) -> CreditLimit:
        return self._limits.setdefault((group, priority), CreditLimit(group, priority, self._accounts))

    def _rank(self, limit: AdmissionLimit) -> int:
        assert isinstance(limit, CreditLimit)
        return self._names.index(limit.group) * len(PRIORITIES) + PRIORITIES.index(limit.priority)


class ShapingModel:
    """What the supervisor and the workers of a host do, in one place: deal out, release, send."""

    def __init__(self, config: SimpleNamespace) -> None:
        within(*TICK_US, tick_us=config.tick_us)
        within(1, MOST_MEMBERS, members=config.members)
        self._orders = Orders(config.order, config.seed, config.members)
        self._tick_us: int = config.tick_us
        self._groups: dict[str, Group] = {
            name: Group(
                meters_from(each.meters, f"{name}.meters"),
                config.members,
                config.tick_us,
                enabled=each.enabled,
                adaptive=each.adaptive,
            )
            for name, each in config.groups.items()
        }
        self._waiting = [MemberLine(member, self._groups) for member in range(config.members)]
        self._ticks = 0
        self._late_us = 0

    def step(self, op: str, given: SimpleNamespace) -> dict[str, Any]:
        """One step; its result has all levels after it, but for `window` and `show`."""
        steps = {
            "tick": self._tick_op,
            "send": self._send,
            "settle": self._settle,
            "cancel": self._cancel,
            "level": self._level,
            "configure": self._configure,
            "members": self._members,
            "pause": self._pause,
        }
        if op == "show":
            return {"groups": {name: self._shown(name, group) for name, group in self._groups.items()}}
        if op == "window":
            not_negative(unacked=given.unacked)
            group = self._group(given.group)[1]
            group.window(given.unacked)
            return {"scale": group.scale.thousandths / FULL}
        result = steps[op](given)
        return {**result, "levels": {name: _levels(group) for name, group in self._groups.items()}}

    # ------------------------------------------------------------------------------------------------- ticks

    def _tick_op(self, given: SimpleNamespace) -> dict[str, Any]:
        not_negative(times=given.times)
        for place, each in enumerate(given.spend):
            path = f"spend[{place}]."
            self._group(each.group, f"{path}group")
            self._member(each.member, f"{path}member")
            priority_named(each.bucket, f"{path}bucket")
            not_negative(path, bytes=each.bytes)
        before = {name: _counters(group) for name, group in self._groups.items()}
        released: list[dict[str, Any]] = []
        if given.times:
            self._late_us = 0  # the time of a tick has come, whatever part of it a pause took up
        for _ in range(given.times):
            released.extend(self._tick())
            for each in given.spend:
                self._spend(each)
        changes = {name: _change(_counters(group), before[name]) for name, group in self._groups.items()}
        by_member = {name: change["granted"] for name, change in changes.items()}
        return {
            "ticks": self._ticks,
            "released": released,
            "spent": {
                name: {priority: sum(each[priority] for each in granted) for priority in PRIORITIES}
                for name, granted in by_member.items()
            },
            "by_member": by_member,
            **{what: {name: change[what] for name, change in changes.items()} for what in _SHOWN_COUNTERS},
        }

    def _tick(self) -> list[dict[str, Any]]:
        """One tick: all groups are dealt to, and then who waited may go."""
        self._ticks += 1
        order = self._orders.next(len(self._waiting))
        for group in self._groups.values():
            group.tick(order)
        return self._release(order)

    def _spend(self, each: SimpleNamespace) -> None:
        """Take the whole level, or a number of bytes, from a level above 0. A disabled group charges nothing."""
        group = self._group(each.group)[1]
        account, level = group.account(each.member), group.level(each.member, each.bucket)
        amount = level if each.bytes == ALL else each.bytes
        if not group.enabled:
            group.count(each.member, each.bucket, 0 if each.bytes == ALL else amount, charged=False)
        elif level > 0:
            account.charge(each.bucket, amount)
            group.count(each.member, each.bucket, amount, charged=True)

    def _pause(self, given: SimpleNamespace) -> dict[str, Any]:
        """The loop stands still, and makes up for the ticks that are late, as far as they change anything."""
        not_negative(us=given.us)
        if not any(group.enabled for group in self._groups.values()):
            self._late_us = 0  # no ticks, and no credit for that time
            return {"ticks": self._ticks, "released": []}
        late, self._late_us = divmod(self._late_us + given.us, self._tick_us)
        released: list[dict[str, Any]] = []
        idle = 0
        while late and idle < self._idle_at_most:
            before = self._state()
            freed = self._tick()
            released.extend(freed)
            late -= 1
            idle = idle + 1 if not freed and self._state() == before else 0
        self._skip(max(0, late - _TICKS_OF_OVERFLOW))
        for _ in range(min(late, _TICKS_OF_OVERFLOW)):  # what is left over is on its way as if none had been skipped
            self._tick()
        return {"ticks": self._ticks, "released": released}

    @property
    def _idle_at_most(self) -> int:
        """After so many ticks without a change no further one changes anything but remainders."""
        if all(group.is_full for group in self._groups.values() if group.enabled):
            return _TICKS_OF_OVERFLOW
        return SECOND_US // self._tick_us + _TICKS_OF_OVERFLOW

    def _skip(self, ticks: int) -> None:
        self._ticks += ticks
        self._orders.skip(ticks)
        for group in self._groups.values():
            if group.enabled:
                group.skip(ticks)

    def _state(self) -> list[int]:
        """The levels: while they do not change for a second's worth of ticks, they never will."""
        return [
            level
            for group in self._groups.values()
            if group.enabled
            for tier in group.tiers.values()
            for level in tier.levels
        ]

    # ----------------------------------------------------------------------------------------------- requests

    def _send(self, given: SimpleNamespace) -> dict[str, Any]:
        not_negative(bytes=given.bytes, least=given.least)
        member = self._member(given.member)
        if any(given.id in each for each in self._waiting):
            raise ConfigError("id", f"{given.id} waits already")
        least = given.bytes if given.least is None else given.least
        waiting = self._waiting[member]
        request = waiting.request(priority_named(given.bucket), self._path(given.path), given.bytes, least)
        if waiting.send(given.id, request):
            return {"passed": True, "granted": request.want}
        limit = request.waits_in
        assert isinstance(limit, CreditLimit)
        return {"passed": False, "waits_in": limit.group}

    def _settle(self, given: SimpleNamespace) -> dict[str, Any]:
        not_negative(granted=given.granted, actual=given.actual)
        member, priority, path = self._member(given.member), priority_named(given.bucket), self._path(given.path)
        for name in path:
            self._groups[name].settle(member, priority, given.granted, given.actual)
        return {"released": self._release() if given.actual < given.granted else []}

    def _cancel(self, given: SimpleNamespace) -> dict[str, Any]:
        cancelled = [each.cancel(given.id) for each in self._waiting]
        return {"ok": any(cancelled), "released": self._release() if any(cancelled) else []}

    def _release(self, order: Sequence[int] | None = None) -> list[dict[str, Any]]:
        visited = range(len(self._waiting)) if order is None else order
        return [
            {"id": name, "member": member, "granted": request.want}
            for member in visited
            for name, request in self._waiting[member].release()
        ]

    # ------------------------------------------------------------------------------------------------ changes

    def _level(self, given: SimpleNamespace) -> dict[str, Any]:
        group, member = self._group(given.group)[1], self._member(given.member)
        group.tiers[bucket_named(given.bucket)].purses[member].set_level(given.level)
        return {}

    def _configure(self, given: SimpleNamespace) -> dict[str, Any]:
        name, group = self._group(given.group)
        meters: Mapping[str, Meter] | None = None
        if given.meters is not None:
            meters = meters_from(given.meters, f"{name}.meters")
        group.configure(meters, enabled=given.enabled, adaptive=given.adaptive)
        return {"ok": True, "released": self._release()}

    def _members(self, given: SimpleNamespace) -> dict[str, Any]:
        within(1, MOST_MEMBERS, members=given.members)
        for group in self._groups.values():
            group.resize(given.members)
        del self._waiting[given.members :]
        self._waiting.extend(MemberLine(member, self._groups) for member in range(len(self._waiting), given.members))
        return {}

    # ------------------------------------------------------------------------------------------------ reading

    def _group(self, name: str | None, path: str = "group") -> tuple[str, Group]:
        if not self._groups:
            raise ConfigError(path, "there is none")
        found = next(iter(self._groups)) if name is None else one_of(name, self._groups, path)
        return found, self._groups[found]

    def _member(self, member: int, path: str = "member") -> int:
        if not 0 <= member < len(self._waiting):
            raise ConfigError(path, f"there are members 0 to {len(self._waiting) - 1}")
        return member

    def _path(self, path: Sequence[str] | None) -> tuple[str, ...]:
        if path is None:
            return (self._group(None, "path")[0],)
        no_doubles(path, "path")
        return tuple(self._group(each, f"path[{place}]")[0] for place, each in enumerate(path))

    def _shown(self, name: str, group: Group) -> dict[str, Any]:
        def shared(what: str) -> dict[str, int]:
            return {bucket: getattr(tier, what) for bucket, tier in group.tiers.items()}

        return {
            "enabled": group.enabled,
            "adaptive": group.adaptive,
            "scale": group.scale.thousandths / FULL,
            "levels": _levels(group),
            "waiting": [{priority: each.waiting(name, priority) for priority in PRIORITIES} for each in self._waiting],
            **{what: shared(what) for what in ("last_over", "cur_over", "last_budget", "cur_budget")},
            "policy": {bucket: as_json(meter) for bucket, meter in group.policy.items()},
            "limit": group.limit,
            "burst": group.burst,
        }


_TICKS_OF_OVERFLOW = 4
"""The ticks for which overflow may be on its way to a bucket."""

_SHOWN_COUNTERS = ("transferred", "donated", "lost", "passed")


def as_json(meter: Meter) -> dict[str, int | None]:
    """A meter with the names of its options."""
    return {"guaranteed": meter.guaranteed, "max": meter.max, "burst": meter.burst}


def _levels(group: Group) -> list[dict[str, int]]:
    tiers: Mapping[str, Tier] = group.tiers
    return [
        {bucket: tiers[bucket].purses[member].level for bucket in BUCKETS}
        for member in range(len(tiers[BUCKETS[0]].purses))
    ]


def _counters(group: Group) -> dict[str, Any]:
    return {
        "granted": [dict(each) for each in group.granted],
        "transferred": dict(group.transferred),
        "donated": dict(group.donated),
        "passed": dict(group.passed),
        "lost": group.lost,
    }


def _change(now: Any, before: Any) -> Any:
    """The difference of counters of the same form."""
    if isinstance(now, dict):
        return {name: _change(each, before[name]) for name, each in now.items()}
    if isinstance(now, list):
        return [_change(each, then) for each, then in zip(now, before, strict=True)]
    return now - before


METER = named(or_null(whole))
"""The options of a meter; which there are is the policy's to say."""


def _order(value: Any, path: str) -> Any:
    return value if isinstance(value, str) else listed(listed(whole))(value, path)


_GROUP = members(
    enabled=Optional(flag, True),
    adaptive=Optional(flag, False),
    meters=Optional(named(METER), {}),
)
_AT: dict[str, Any] = {"group": Optional(text, None), "member": Optional(whole, 0), "bucket": text}
_ON: dict[str, Any] = {"bucket": text, "path": Optional(listed(text), None), "member": Optional(whole, 0)}

FORM = Form(
    config=members(
        tick_us=Optional(whole, 10_000),
        members=Optional(whole, 1),
        order=Optional(_order, "fixed"),
        seed=Optional(whole, 0),
        groups=named(_GROUP),
    ),
    ops={
        "tick": members(times=Optional(whole, 1), spend=Optional(listed(members(**_AT, bytes=either(ALL, whole))), [])),
        "send": members(id=text, bytes=whole, least=Optional(whole, None), **_ON),
        "settle": members(granted=whole, actual=whole, **_ON),
        "cancel": members(id=text),
        "level": members(**_AT, level=whole),
        "configure": members(
            group=Optional(text, None),
            enabled=Optional(flag, None),
            meters=Optional(named(METER), None),
            adaptive=Optional(flag, None),
        ),
        "members": members(members=whole),
        "pause": members(us=whole),
        "window": members(group=Optional(text, None), unacked=whole),
        "show": members(),
    },
    begin=ShapingModel,
)
