"""Deals credit out to the workers of a host, tick by tick, in memory that all of them see.

What is dealt out is decided by `policy.shaping`, whose groups keep it in the workers' cells. A worker spends what it
was given without asking. A group that is full, and in which no worker moves anything, sleeps: ticks would change
nothing, and its first movement wakes it.

A change that fails half way may leave groups that do not fit together. Until the next change, which makes all of them
anew, everything passes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from remora.config import LimitSettings, ScopeSettings, ShapingSettings
from remora.model.traffic import Meter, Priority, limit_of
from remora.policy.shaping.bucket import SECOND_US
from remora.policy.shaping.cells import PRIORITIES
from remora.policy.shaping.classes import OTHER, scope_of
from remora.policy.shaping.group import Group
from remora.policy.shaping.rates import bucket_name, is_of_limit
from remora.policy.shaping.scaling import FULL
from remora.policy.shaping.split import scaled
from remora.process.credit import MOST_GROUPS, CreditMemory, SlotCells

PIPELINE_TICKS = 4
"""After this many ticks with all buckets full, only the remainders change."""

MOST_LATE_S = 10.0
"""Not more ticks than these are made up: by then every bucket is full that is meant to fill up."""


@dataclass(slots=True)
class Dealt:
    """A group, and since which tick it sleeps."""

    name: str
    slot: int
    group: Group
    asleep_since: int | None = None


class Shaper:
    """See the module. `run` is called once; it does nothing while nothing is enabled."""

    def __init__(self, memory: CreditMemory, rng: Random) -> None:
        self._memory = memory
        self._rng = rng
        self._settings = ShapingSettings()
        self._limits: tuple[LimitSettings, ...] = ()
        self._scopes: Mapping[str, ScopeSettings] = {}
        self._rates: Mapping[str, Meter] = {}
        self._joined: list[int] = []
        """The places that have a worker; `_places` are those that the groups know."""
        self._places: list[int] = []
        self._is_whole = True
        """Whether no change has failed half way."""
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
        self.late_ticks = 0
        """How many ticks were late by a tick or more."""
        self.on_new_groups: Callable[[], None] = lambda: None
        """Called when all groups were made anew: the workers are to know which there are."""

    @property
    def slots(self) -> dict[str, int]:
        """The slot of each group, by its name, as the workers need to know."""
        return {name: each.slot for name, each in self._dealt.items()}

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups by name; what is waited for in them only the workers know."""
        return {name: each.group for name, each in self._dealt.items()}

    @property
    def scopes(self) -> Iterable[ScopeSettings]:
        """The scopes as they are in force."""
        return self._scopes.values()

    def granted(self, group: str) -> dict[str, int]:
        """What the workers have spent of a group's credit so far, and not given back, by priority."""
        tiers = self._dealt[group].group.tiers
        return {priority: tiers[priority].used for priority in PRIORITIES}

    def taken_from(self, name: str, priority: str, nbytes: int) -> tuple[int, float | None] | None:
        """The place of the worker that so many bytes of a group are charged to, and in how many seconds there is credit
        again; see `Group.taken_from`. None where there is no such group, or no worker."""
        dealt = self._dealt.get(name)
        if dealt is None or not self._places:
            return None
        member, wait_s = dealt.group.taken_from(priority, nbytes)
        return self._places[member], wait_s

    # --------------------------------------------------------------------------------------- changes

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """All that changes the groups is done in such a block. The one after a block that failed begins anew."""
        was_whole, self._is_whole = self._is_whole, False
        try:
            if not was_whole:
                self._begin_anew()
            yield
        except Exception:
            for slot in self._by_slot:
                self._memory.open_up(slot)
            self._has_work.set()
            raise
        self._is_whole = True

    def _begin_anew(self) -> None:
        """Make each group again, in its slot, without credit and debt, for the workers that there are."""
        self._read_settings()
        self._places = list(self._joined)
        self._tick_us = round(self._settings.tick_s * SECOND_US)
        kept = [each for name, each in self._dealt.items() if self._is_configured(name)]
        made = [(each, self._new(each.name, each.slot)) for each in kept]
        self._dealt.clear()
        self._by_slot.clear()
        self._seen.clear()
        slots = {each.slot for each in kept}
        self._free = [slot for slot in range(MOST_GROUPS - 1, -1, -1) if slot not in slots]
        for each, group in made:
            self._free.append(each.slot)
            self._put(each.name, self._free.pop(), group)
        self._make_missing()
        self._look_for_work()
        self.on_new_groups()

    # --------------------------------------------------------------------------------- configuration

    def configure(self, settings: ShapingSettings, limits: Iterable[LimitSettings] = ()) -> None:
        """Shape as these settings say from the next tick on. Levels survive, save in a scope that is disabled."""
        before, self._settings, self._limits = self._settings, settings, tuple(limits)
        with self._changing():
            self._read_settings()
            self._lower_shares(before)
            tick_us = round(settings.tick_s * SECOND_US)
            if tick_us != self._tick_us:
                self._tick_us = tick_us
                for each in self._dealt.values():
                    each.group.set_tick(tick_us)
            for name, each in list(self._dealt.items()):
                self._wake(each)
                if not self._is_configured(name):
                    each.group.configure(enabled=False)
                    del self._dealt[each.name], self._by_slot[each.slot]
                    self._free.insert(0, each.slot)  # used again last: its workers learn of it in a moment
                elif (scope := self._scope(name)) is not None:
                    meters = self._meters(scope, name)
                    each.group.configure(meters, enabled=scope.enabled, adaptive=scope.adaptive)
                else:
                    each.group.configure({Priority.MAX: self._rates[name]})
            for each in self._make_missing():
                if is_of_limit(each.name):
                    each.group.fill_up()
            self._look_for_work()

    def want(self, name: str) -> bool:
        """A worker asks for a group; whether there is one now that was not there before.

        Where `shaping.groups` are there already, it is given that of all further ones of its scope.
        """
        if name in self._dealt or not self._is_configured(name):
            return False
        with self._changing():
            scope, slash, _ = name.partition("/")
            if slash and sum("/" in each for each in self._dealt) >= self._settings.groups:
                name = f"{scope}/{OTHER}"
            if name in self._dealt:
                return False
            self._make(name)
            self._look_for_work()
        return True

    def share(self, place: int, shares: Mapping[str, int]) -> None:
        """A worker may have so much of the limits that all workers of the store share, by group."""
        with self._changing():
            self._shares[place] = shares
            self._share()

    def shared(self, name: str) -> int:
        """What all workers of this host together may have of a group's limit."""
        return sum(each.get(name, 0) for each in self._shares.values())

    def _lower_shares(self, before: ShapingSettings) -> None:
        """Of a limit that the settings have lowered, let the workers have the same part until they have said another:
        their shares still add up to the former limit, over all hosts."""
        was = {each.name: limit_of(each.by_bucket) for each in before.scope if each.is_shared}
        now = {each.name: limit_of(each.by_bucket) for each in self._settings.scope if each.is_shared}
        lowered = {name: (limit, was[name]) for name, limit in now.items() if limit < was.get(name, 0)}
        for place, shares in self._shares.items() if lowered else ():
            parts = {group: lowered.get(scope_of(group), (1, 1)) for group in shares}
            self._shares[place] = {group: share * parts[group][0] // parts[group][1] for group, share in shares.items()}

    def _share(self) -> None:
        """Let the groups have the meters that are right for the shares as they are now."""
        for name, each in self._dealt.items():
            scope = self._scope(name)
            if scope is None or not scope.is_shared or (meters := self._meters(scope, name)) == each.group.meters:
                continue
            self._wake(each)
            each.group.share(meters)

    def _meters(self, scope: ScopeSettings, name: str) -> Mapping[str, Meter]:
        """The meters of a group. Workers that do not see each other cannot have more than the whole limit here."""
        if not scope.is_shared:
            return scope.by_bucket
        return scaled(scope.by_bucket, min(limit_of(scope.by_bucket), self.shared(name)))

    def _read_settings(self) -> None:
        """Look at the settings anew: scopes by name, and the buckets of limits of ingest by their groups' names."""
        self._scopes = {each.name: each for each in self._settings.scope}
        self._rates = {
            bucket_name(each.name, what): Meter(rate.per_second, rate.burst)
            for each in self._limits
            for what, rate in (("bytes", each.limit.bytes), ("events", each.limit.events))
            if rate is not None
        }

    def _scope(self, name: str) -> ScopeSettings | None:
        """The scope that a group is of; None for a limit of ingest, and where there is none."""
        return self._scopes.get(scope_of(name))

    def _is_configured(self, name: str) -> bool:
        """Whether the settings have a place for a group of this name."""
        scope = self._scope(name)
        return name in self._rates if scope is None else ("/" in name) == _has_many(scope)

    def _new(self, name: str, slot: int) -> Group:
        """A group as the settings say, with no credit yet."""
        members, scope = len(self._places), self._scope(name)
        cells = SlotCells(self._memory, slot, self._places)
        if scope is None:
            return Group({Priority.MAX: self._rates[name]}, members, self._tick_us, layout=cells)
        meters = self._meters(scope, name)
        return Group(meters, members, self._tick_us, enabled=scope.enabled, adaptive=scope.adaptive, layout=cells)

    def _make_missing(self) -> list[Dealt]:
        """Make the groups that are to be there without anybody asking for them."""
        names = [each.name for each in self._settings.scope if not _has_many(each)]
        return [self._make(name) for name in (*names, *self._rates) if name not in self._dealt]

    def _make(self, name: str) -> Dealt:
        slot = self._free.pop()
        return self._put(name, slot, self._new(name, slot))

    def _put(self, name: str, slot: int, group: Group) -> Dealt:
        dealt = self._dealt[name] = self._by_slot[slot] = Dealt(name, slot, group)
        self._used = max(self._used, slot + 1)
        return dealt

    # --------------------------------------------------------------------------------------- workers

    def add(self, place: int) -> None:
        """A worker comes, with nothing; at the start an ingest limit is full."""
        self.remove(place)
        self._joined.append(place)
        with self._changing():
            if place in self._places:
                return  # all groups were made anew, also for this one
            for each in self._dealt.values():
                self._wake(each)  # its sleep was that of the others
            self._places.append(place)
            self._memory.clear(place, self._used)
            for each in self._dealt.values():
                each.group.resize(len(self._places))
                if not self.ticks and is_of_limit(each.name):
                    each.group.fill_up()
            self._look_for_work()

    def remove(self, place: int) -> None:
        """A worker has ended: its credit and its debt are gone, and the others share what it had."""
        if place not in self._joined:
            return
        self._joined.remove(place)
        self._seen.pop(place, None)
        self._shares.pop(place, None)
        with self._changing():
            if place not in self._places:
                return  # all groups were made anew, without this one
            member = self._places.index(place)
            for each in self._dealt.values():
                self._wake(each)
                each.group.remove(member)
            del self._places[member]
            self._share()
            self._memory.clear(place, self._used)
            self._look_for_work()

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
                self.late_ticks += self.late_s >= self._settings.tick_s
                if self.late_s > MOST_LATE_S:
                    due = now() - MOST_LATE_S
                self.tick()

    def window(self) -> None:
        """A second has passed: groups with an adaptive spare scale it by what no endpoint has acknowledged."""
        with self._changing():
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

    def tick(self) -> None:
        """Deal out one tick's credit."""
        with self._changing():
            moved = self._wake_moved()
            self.ticks += 1
            order = list(range(len(self._places)))
            self._rng.shuffle(order)
            for each in self._dealt.values():
                if each.asleep_since is None and each.group.enabled:
                    each.group.tick(order)
                    if each.slot not in moved and each.group.is_full:
                        each.asleep_since = self.ticks

    def _look_for_work(self) -> None:
        if self._places and any(each.group.enabled for each in self._dealt.values()):
            self._has_work.set()
        else:
            self._has_work.clear()

    def _wake_moved(self) -> set[int]:
        """Wake the groups in which a worker moved something; returns their slots."""
        cells, moved = self._memory.cells, set[int]()
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
                    moved.add(slot)
                    self._wake(self._by_slot[slot])
        return moved

    def _wake(self, each: Dealt) -> None:
        """Go on as if there had been all the ticks of its sleep, in which everything was full."""
        if each.asleep_since is None:
            return
        missed = self.ticks - each.asleep_since
        each.asleep_since = None
        each.group.skip(max(0, missed - PIPELINE_TICKS))
        for _ in range(min(missed, PIPELINE_TICKS)):
            each.group.tick_full()


def _has_many(scope: ScopeSettings) -> bool:
    """Whether a scope has a group for each destination, tenant or topic."""
    return scope.each and not scope.scope.of.is_whole
