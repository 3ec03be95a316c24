"""Deals credit out to the workers of a host, tick by tick, in memory that all of them see.

What is dealt out is decided by `policy.shaping`; here it is carried between its groups and the workers' cells. A worker
spends what it was given without asking. A group that is full, and in which no worker moves anything, sleeps: ticks
would change nothing, and its first movement wakes it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from remora.config import LimitSettings, ScopeSettings, ShapingSettings
from remora.metrics import Telemetry
from remora.model.traffic import Meter, Priority, limit_of
from remora.policy.bucket import SECOND_US
from remora.policy.classes import OTHER, scope_of
from remora.policy.rates import bucket_name, is_of_limit
from remora.policy.scaling import FULL
from remora.policy.shaping import PRIORITIES, Group
from remora.policy.split import scaled
from remora.process.credit import CAPACITY, CELLS, GRANTED, MOST_GROUPS, RETURNED, ROW, SPENT, CreditMemory

PIPELINE_TICKS = 4
"""After this many ticks with all buckets full, only the remainders change."""

REPORT_S = 1.0

MOST_LATE_S = 10.0
"""Not more ticks than these are made up: by then every bucket is full that is meant to fill up."""


@dataclass(slots=True)
class Dealt:
    """A group with what was last read from the workers' cells, a row for each member."""

    name: str
    slot: int
    group: Group
    spent: list[list[int]] = field(default_factory=list)
    returned: list[list[int]] = field(default_factory=list)
    total: list[int] = field(default_factory=lambda: [0] * len(PRIORITIES))
    """What all workers have spent so far and not given back, by priority."""
    asleep_since: int | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """What the counters of a group were. Another group of the same name counts from nothing."""

    of: Group
    transferred: Mapping[str, int]
    donated: Mapping[str, int]
    lost: int


class Shaper:
    """See the module. `run` is called once; it does nothing while nothing is enabled."""

    def __init__(self, memory: CreditMemory, rng: Random) -> None:
        self._memory = memory
        self._rng = rng
        self._settings = ShapingSettings()
        self._places: list[int] = []
        self._dealt: dict[str, Dealt] = {}
        self._by_slot: dict[int, Dealt] = {}
        self._shares: dict[int, Mapping[str, int]] = {}
        self._free = list(range(MOST_GROUPS - 1, -1, -1))
        self._used = 0
        self.ticks = 0
        """Ticks that were taken."""
        self._seen: dict[int, bytes] = {}
        self._has_work = asyncio.Event()
        self._tick_us = 10_000
        self.late_s = 0.0
        """How late the last tick was."""

    @property
    def slots(self) -> dict[str, int]:
        """The slot of each group, by its name, as the workers need to know."""
        return {name: each.slot for name, each in self._dealt.items()}

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups by name; what is waited for in them only the workers know."""
        return {name: each.group for name, each in self._dealt.items()}

    def granted(self, group: str) -> dict[str, int]:
        """What the workers have spent of a group's credit so far, and not given back, by priority."""
        return dict(zip(PRIORITIES, self._dealt[group].total, strict=True))

    # --------------------------------------------------------------------------------- configuration

    def configure(self, settings: ShapingSettings, limits: Iterable[LimitSettings] = ()) -> None:
        """Shape as these settings say from the next tick on. Levels survive, save in a scope that is disabled."""
        self._lower_shares(settings)
        self._settings = settings
        tick_us = round(settings.tick_s * SECOND_US)
        if tick_us != self._tick_us:
            self._tick_us = tick_us
            for each in self._dealt.values():
                each.group.set_tick(tick_us)
        scopes, rates = {each.name: each for each in settings.scope}, _rates(limits)
        for name, each in list(self._dealt.items()):
            self._wake(each)
            self._read(each)
            scope = scopes.get(scope_of(name))
            if name in rates:
                each.group.configure({Priority.MAX: rates[name]})
            elif scope is not None and ("/" in name) == _has_many(scope):
                meters = self._meters(scope, name)
                each.group.configure(meters, enabled=scope.enabled, adaptive=scope.adaptive)
            else:
                self._remove(each)
        for scope in settings.scope:
            if not _has_many(scope):
                self._add(scope.name)
        for name in rates.keys() - self._dealt.keys():
            self._make(name, Group({Priority.MAX: rates[name]}, len(self._places), tick_us)).group.fill_up()
        for each in self._dealt.values():
            self._write(each)
        self._look_for_work()

    def want(self, name: str) -> bool:
        """A worker asks for a group; whether there is one now that was not there before.

        Where `shaping.groups` are there already, it is given that of all further ones of its scope.
        """
        if name in self._dealt:
            return False
        scope, slash, _ = name.partition("/")
        known = next((each for each in self._settings.scope if each.name == scope), None)
        if known is None or bool(slash) != _has_many(known):
            return False
        if slash and sum("/" in each for each in self._dealt) >= self._settings.groups:
            name = f"{scope}/{OTHER}"
            if name in self._dealt:
                return False
        self._add(name)
        self._look_for_work()
        return True

    def share(self, place: int, shares: Mapping[str, int]) -> None:
        """A worker may have so much of the limits that all workers of the store share, by group."""
        self._shares[place] = shares
        self._share()

    def shared(self, name: str) -> int:
        """What all workers of this host together may have of a group's limit."""
        return sum(each.get(name, 0) for each in self._shares.values())

    def _lower_shares(self, settings: ShapingSettings) -> None:
        """Of a limit that these settings lower, let the workers have the same part until they have said another: their
        shares still add up to the former limit, over all hosts."""
        was = {each.name: limit_of(each.by_bucket) for each in self._settings.scope if each.is_shared}
        now = {each.name: limit_of(each.by_bucket) for each in settings.scope if each.is_shared}
        lowered = {name: (limit, was[name]) for name, limit in now.items() if limit < was.get(name, 0)}
        for place, shares in self._shares.items() if lowered else ():
            parts = {group: lowered.get(scope_of(group), (1, 1)) for group in shares}
            self._shares[place] = {group: share * parts[group][0] // parts[group][1] for group, share in shares.items()}

    def _share(self) -> None:
        """Let the groups have the meters that are right for the shares as they are now."""
        scopes = {each.name: each for each in self._settings.scope if each.is_shared}
        for name, each in self._dealt.items():
            scope = scopes.get(scope_of(name))
            if scope is None or (meters := self._meters(scope, name)) == each.group.meters:
                continue
            self._wake(each)
            self._read(each)
            each.group.share(meters)
            self._write(each)

    def _meters(self, scope: ScopeSettings, name: str) -> Mapping[str, Meter]:
        """The meters of a group. Workers that do not see each other cannot have more than the whole limit here."""
        if not scope.is_shared:
            return scope.by_bucket
        return scaled(scope.by_bucket, min(limit_of(scope.by_bucket), self.shared(name)))

    def _add(self, name: str) -> None:
        """A group of a configured scope, with no credit yet."""
        scope = next(each for each in self._settings.scope if each.name == scope_of(name))
        if name not in self._dealt:
            meters, members = self._meters(scope, name), len(self._places)
            group = Group(meters, members, self._tick_us, enabled=scope.enabled, adaptive=scope.adaptive)
            self._write(self._make(name, group))

    def _make(self, name: str, group: Group) -> Dealt:
        slot = self._free.pop()
        # What was charged to an earlier group of this slot does not come back to this one.
        group.times_disabled = (self._memory.cells[self._memory.state(slot)] >> 1) + 1
        dealt = self._dealt[name] = self._by_slot[slot] = Dealt(name, slot, group)
        self._used = max(self._used, slot + 1)
        for place in self._places:
            self._meet(dealt, place)
        return dealt

    def _remove(self, each: Dealt) -> None:
        """Its workers learn of it in a moment; until then everything passes. Its slot is the last to be used again."""
        each.group.configure(enabled=False)
        self._write(each)
        del self._dealt[each.name], self._by_slot[each.slot]
        self._free.insert(0, each.slot)

    # --------------------------------------------------------------------------------------- workers

    def join(self, place: int) -> None:
        """A worker comes, with nothing; at the start an ingest limit is full."""
        self._places.append(place)
        for each in self._dealt.values():
            self._wake(each)
            each.group.resize(len(self._places))
            self._meet(each, place)
            if not self.ticks and is_of_limit(each.name):
                each.group.fill_up()
            self._write(each)
        self._look_for_work()

    def leave(self, place: int) -> None:
        """A worker has ended: its credit and its debt are gone, and the others share what it had."""
        if place not in self._places:
            return
        member = self._places.index(place)
        for each in self._dealt.values():
            self._wake(each)
            self._read(each)
            each.group.leave(member)
            del each.spent[member], each.returned[member]
        del self._places[member]
        self._seen.pop(place, None)
        self._shares.pop(place, None)
        self._share()
        self._memory.clear(place, self._used)
        for each in self._dealt.values():
            self._write(each)
        self._look_for_work()

    def _meet(self, each: Dealt, place: int) -> None:
        """Whatever the place's cells count by now is where a member begins."""
        cells, row = self._memory.cells, self._memory.row(place, each.slot)
        each.spent.append([cells[row + i * CELLS + SPENT] for i in range(len(PRIORITIES))])
        each.returned.append([cells[row + i * CELLS + RETURNED] for i in range(len(PRIORITIES))])

    # ----------------------------------------------------------------------------------------- ticks

    async def run(self) -> None:
        """Tick while anything is enabled. Late ticks are made up one by one, and let others run between them."""
        now = asyncio.get_running_loop().time
        while True:
            await self._has_work.wait()
            due = now()
            while self._has_work.is_set():
                due += self._settings.tick_s
                await asyncio.sleep(max(0.0, due - now()))
                self.late_s = max(0.0, now() - due)
                if self.late_s > MOST_LATE_S:
                    due = now() - MOST_LATE_S
                self.tick()

    async def report(self, telemetry: Telemetry) -> None:
        """Let the metrics follow, once a second."""
        before: dict[str, Moved] = {}
        while True:
            self.window()
            before = self._report(telemetry, before)
            await asyncio.sleep(REPORT_S)

    def window(self) -> None:
        """A second has passed: groups with an adaptive spare scale it by what no endpoint has acknowledged."""
        for each in self._dealt.values():
            group, scale = each.group, each.group.scale
            if not (group.enabled and group.adaptive):
                continue
            unacked = self.unacked(each.name)
            if each.asleep_since is not None and not unacked and not scale.unacked and scale.thousandths == FULL:
                continue
            self._wake(each)
            group.window(unacked)

    def unacked(self, name: str) -> int:
        """Bytes of a group that the workers were granted, and no endpoint has acknowledged."""
        slot = self._dealt[name].slot
        return sum(max(0, self._memory.cells[self._memory.unacked(place, slot)]) for place in self._places)

    def _report(self, telemetry: Telemetry, before: Mapping[str, Moved]) -> dict[str, Moved]:
        """Report what was moved since then; answers what had been moved until now, by group."""
        if not self._dealt and not before:
            return {}
        now: dict[str, Moved] = {}
        levels: Counter[tuple[str, str]] = Counter()
        sums: Counter[tuple[str, str, str]] = Counter()
        lost: Counter[str] = Counter()
        for name, each in self._dealt.items():
            if is_of_limit(name):
                continue
            group, scope, ago = each.group, scope_of(name), before.get(name)
            for priority in PRIORITIES:
                levels[scope, priority] += sum([bucket.level for bucket in group.tiers[priority].buckets])
            now[name] = moved = Moved(group, dict(group.transferred), dict(group.donated), group.lost)
            if moved == ago:
                continue
            ago = _begin_of(group, ago)
            lost[scope] += moved.lost - ago.lost
            for priority in PRIORITIES:
                sums["transferred", scope, priority] += moved.transferred[priority] - ago.transferred.get(priority, 0)
                sums["donated", scope, priority] += moved.donated[priority] - ago.donated.get(priority, 0)
        for scope, nbytes in lost.items():
            telemetry.shaping_lost(scope, nbytes)
        for (what, scope, priority), nbytes in sums.items():
            telemetry.shaping_moved(what, scope, priority, nbytes)
        for (scope, priority), level in levels.items():
            telemetry.shaping_level(scope, priority, level)
        self._report_scales(telemetry)
        telemetry.shaping_meters({each.name: each.by_bucket for each in self._settings.scope}, self.late_s)
        return now

    def _report_scales(self, telemetry: Telemetry) -> None:
        """Report how much of the spare there is, and what no endpoint has acknowledged, by scope."""
        for shown in self._settings.scope:
            groups = [name for name in self._dealt if scope_of(name) == shown.name]
            scales = [self._dealt[name].group.scale.thousandths for name in groups]
            telemetry.shaping_scale(shown.name, min(scales, default=FULL) / FULL, sum(map(self.unacked, groups)))

    def tick(self) -> None:
        """Deal out one tick's credit."""
        self._wake_moved()
        self.ticks += 1
        order = list(range(len(self._places)))
        self._rng.shuffle(order)
        for each in self._dealt.values():
            if each.asleep_since is None and each.group.enabled:
                has_moved = self._read(each)
                each.group.tick(order)
                self._write(each, after_tick=True)
                if not has_moved and each.group.is_full:
                    each.asleep_since = self.ticks

    def _look_for_work(self) -> None:
        if self._places and any(each.group.enabled for each in self._dealt.values()):
            self._has_work.set()
        else:
            self._has_work.clear()

    def _wake_moved(self) -> None:
        """Wake the groups in which a worker moved something."""
        cells = self._memory.cells
        for place in self._places:
            begin = self._memory.moves(place)
            moves = cells[begin : begin + self._used].tobytes()
            before = self._seen.get(place, b"")
            if moves == before:
                continue
            self._seen[place] = moves
            new, old = memoryview(moves).cast("q"), memoryview(before.ljust(len(moves), b"\0")[: len(moves)]).cast("q")
            for slot, (after, ago) in enumerate(zip(new, old, strict=True)):
                if after != ago and slot in self._by_slot:
                    self._wake(self._by_slot[slot])

    def _wake(self, each: Dealt) -> None:
        """Go on as if there had been all the ticks of its sleep, in which everything was full."""
        if each.asleep_since is None:
            return
        missed = self.ticks - each.asleep_since
        each.asleep_since = None
        each.group.skip(max(0, missed - PIPELINE_TICKS))
        for _ in range(min(missed, PIPELINE_TICKS)):
            each.group.tick(range(len(self._places)))

    # ----------------------------------------------------------------------------------------- cells

    def _read(self, each: Dealt) -> bool:
        """Take note of what the workers spent and gave back since the last look; whether they did."""
        cells, has_moved = self._memory.cells, False
        tiers = [each.group.tiers[name] for name in PRIORITIES]
        for member, place in enumerate(self._places):
            at = self._memory.row(place, each.slot)
            row, spent, returned = cells[at : at + ROW].tolist(), each.spent[member], each.returned[member]
            if (now := row[SPENT::CELLS]) != spent:
                for i, tier in enumerate(tiers):
                    tier.buckets[member].level -= now[i] - spent[i]
                    each.total[i] += now[i] - spent[i]
                each.spent[member], has_moved = now, True
            if (now := row[RETURNED::CELLS]) != returned:
                for i, tier in enumerate(tiers):
                    tier.buckets[member].returned += now[i] - returned[i]
                    each.total[i] -= now[i] - returned[i]
                each.returned[member], has_moved = now, True
        return has_moved

    def _write(self, each: Dealt, *, after_tick: bool = False) -> None:
        """Grant the workers what the group's buckets hold; after a tick only where it has changed anything."""
        cells, group = self._memory.cells, each.group
        tiers = [(i * CELLS, i, group.tiers[name]) for i, name in enumerate(PRIORITIES)]
        if after_tick:
            tiers = [found for found in tiers if not found[2].was_full]
        for member, place in enumerate(self._places):
            row, spent = self._memory.row(place, each.slot), each.spent[member]
            for offset, i, tier in tiers:
                bucket, at = tier.buckets[member], row + offset
                cells[at + GRANTED] = bucket.level + spent[i]
                cells[at + CAPACITY] = bucket.capacity
        cells[self._memory.state(each.slot)] = group.times_disabled * 2 + group.enabled


def _begin_of(group: Group, ago: Moved | None) -> Moved:
    """What a group's counters were a report ago: nothing for a new one, also of an earlier one's name."""
    return Moved(group, {}, {}, 0) if ago is None or ago.of is not group else ago


def _has_many(scope: ScopeSettings) -> bool:
    """Whether a scope has a group for each destination, tenant or topic."""
    return scope.each and scope.of != "host"


def _rates(limits: Iterable[LimitSettings]) -> dict[str, Meter]:
    """The buckets of limits of ingest, by the names of their groups."""
    return {
        bucket_name(each.name, what): Meter(rate.per_second, rate.burst)
        for each in limits
        for what, rate in (("bytes", each.limit.bytes), ("events", each.limit.events))
        if rate is not None
    }
