"""A group of traffic that is shaped together: buckets of its members, filled tick by tick.

The members are the workers of a host. What one of them leaves unused of its guarantee serves the others of its
priority in the next tick, then the spare (the priority queue), and from there any priority, the highest first; what
no member uses is lost. No credit is minted: what was granted and what is held never exceeds what the ticks dealt out.

Credit lies in cells (`policy.cells`), which the members spend from while the group deals out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remora.model.traffic import PRIORITY_QUEUE, UNMETERED, Meter, burst_of, limit_of
from remora.policy.shaping.bucket import capacity_of, share_of, shares_of_tick
from remora.policy.shaping.cells import (
    CAPACITY,
    CELLS,
    GRANTED,
    PRIORITIES,
    RETURNED,
    SPENT,
    Cells,
    Layout,
    MemberAccount,
    OwnCells,
    Purse,
)
from remora.policy.shaping.scaling import Scale


class Tier:
    """One purse of each member, and what they share: overflow and unused caps of the last tick and of this one."""

    __slots__ = (
        "_cells",
        "_gone",
        "_used_before",
        "capacities",
        "caps",
        "cur_budget",
        "cur_over",
        "last_budget",
        "last_over",
        "meter",
        "name",
        "purses",
        "shares",
        "ticks",
        "ticks_max",
    )

    def __init__(self, name: str, cells: Cells) -> None:
        self.name = name
        self.meter = UNMETERED
        self.purses: list[Purse] = []
        self.capacities: list[int] = []
        self.shares: list[int] = []
        self.caps: list[int] = []
        """What each member gets of the guaranteed rate and of the max in this tick."""
        self._cells = cells
        self._used_before = self._gone = 0
        self.clear()

    @property
    def levels(self) -> list[int]:
        """The credit of each member; negative is a debt."""
        cells = self._cells
        return [cells[each.at + GRANTED] - cells[each.at + SPENT] for each in self.purses]

    @property
    def used(self) -> int:
        """What members spent so far and did not give back, those too that have left."""
        return self._gone - self._used_before + sum([each.used for each in self.purses])

    def clear(self) -> None:
        """Start from nothing; the capacities are those of the last tick until the next one."""
        for each in self.purses:
            each.clear()
        self.last_over = self.cur_over = self.last_budget = self.cur_budget = 0
        self.restart()

    def restart(self) -> None:
        """Count ticks from 0 again, as remainders are carried for one rate among one number of members."""
        self.ticks = self.ticks_max = 0

    def set_meter(self, meter: Meter) -> None:
        """Other rates; those that stay go on carrying their remainders."""
        if meter.guaranteed != self.meter.guaranteed:
            self.ticks = 0
        if meter.max != self.meter.max:
            self.ticks_max = 0
        self.meter = meter
        self._share_burst()

    def add(self, purse: Purse) -> None:
        """A member comes, with nothing."""
        purse.clear()
        purse.set_capacity(0)
        self._used_before += purse.used
        self.purses.append(purse)
        self.restart()
        self._share_burst()

    def remove(self, member: int) -> None:
        """One member goes with what it has; those behind it move up."""
        self._gone += self.purses.pop(member).used
        self.restart()
        self._share_burst()

    def is_full(self) -> bool:
        """Whether every purse is full, and nothing was given back: then a tick changes no level.

        Most tiers are, most of the time, and to look costs less than to visit one member.
        """
        cells = self._cells
        for purse, capacity in zip(self.purses, self.capacities, strict=True):
            at = purse.at
            if cells[at + GRANTED] - cells[at + SPENT] != capacity or cells[at + CAPACITY] != capacity:
                return False
            if cells[at + RETURNED] != purse.taken:
                return False
        return True

    def pass_by(self, tick_us: int) -> None:
        """Visit all members at once, all of them full: nothing fits, so all that is dealt is left over."""
        meter = self.meter
        self.cur_over += share_of(meter.guaranteed, self.ticks, 0, 1, tick_us)
        if meter.max is not None:
            self.cur_budget += share_of(meter.max, self.ticks_max, 0, 1, tick_us)

    def deal(self, tick_us: int) -> None:
        """Work out what the members get in this tick, before they are visited."""
        meter, members = self.meter, len(self.purses)
        self.shares = shares_of_tick(meter.guaranteed, self.ticks, members, tick_us)
        if meter.max is not None:
            self.caps = shares_of_tick(meter.max, self.ticks_max, members, tick_us)

    def visit(self, order: Sequence[int], spares: Sequence[Purse] | None) -> int:
        """Fill the members' purses in this order, last from their `spares`; returns the bytes taken from spares.

        `Bucket.fill` and `transfer` written out, since a host does this thousands of times a second.
        """
        if self.meter.max is not None:
            return sum([self._visit_capped(member, spares[member] if spares else None) for member in order])
        cells, purses, capacities, shares = self._cells, self.purses, self.capacities, self.shares
        over, cur_over, moved = self.last_over, self.cur_over, 0
        for member in order:
            purse = purses[member]
            at, capacity = purse.at, capacities[member]
            cells[at + CAPACITY] = capacity
            before = cells[at + GRANTED] - cells[at + SPENT]
            level = before + shares[member]
            if level > capacity:
                cur_over += level - capacity
                level = capacity
            if cells[at + RETURNED] != purse.taken:
                over += purse.take_returned()
            if over:
                used = min(over, capacity - level)
                over -= used
                level += used
            if spares and level < capacity and (spare := spares[member].level) > 0:
                used = min(capacity - level, spare)
                spares[member].set_level(spare - used)
                level += used
                moved += used
            cells[at + GRANTED] += level - before
        self.last_over, self.cur_over = over, cur_over
        return moved

    def _visit_capped(self, member: int, spare: Purse | None) -> int:
        """The same for one member where there is a max."""
        purse, capacity = self.purses[member], self.capacities[member]
        purse.set_capacity(capacity)
        before, over, cap = purse.level, self.last_over, self.caps[member]
        level, budget = before, cap + self.last_budget
        start = budget

        guaranteed = self.shares[member]
        used = min(guaranteed, budget, capacity - level)
        self.cur_over += guaranteed - used
        level += used
        budget -= used
        over += purse.take_returned()
        used = min(over, budget, capacity - level)
        over -= used
        level += used
        budget -= used
        self.last_over = over
        moved = 0
        if spare is not None:
            moved = max(0, min(capacity - level, spare.level, budget))
            budget -= moved
            spare.set_level(spare.level - moved)
            level += moved
        self._cells[purse.at + GRANTED] += level - before

        spent = max(0, start - budget)  # a cut of the level is no cap for others
        if spent < cap:
            self.cur_budget += cap - spent
        else:
            self.last_budget -= spent - cap
        return moved

    def _share_burst(self) -> None:
        members = len(self.purses)
        self.capacities = [capacity_of(self.meter.burst, member, members) for member in range(members)]


class Group:
    """The credit of one group, by priority and member.

    Counters only grow: `granted` by member and priority, `transferred` and `donated` by priority, `lost`, and
    `passed`, by priority, while the group is disabled.
    """

    def __init__(
        self,
        meters: Mapping[str, Meter],
        members: int,
        tick_us: int,
        *,
        enabled: bool = True,
        adaptive: bool = False,
        layout: Layout | None = None,
    ) -> None:
        """Credit lies where the `layout` says, without one where nobody else sees it.

        What was charged to an earlier group of the same cells does not come back to this one.
        """
        self._layout = layout or OwnCells()
        self._spare_cells = OwnCells()
        cells, state = self._layout.cells, self._layout.state
        cells[state] = ((cells[state] >> 1) + 1) * 2
        self.adaptive = adaptive
        self.scale = Scale()
        self.tiers = {name: Tier(name, cells) for name in PRIORITIES}
        self.tiers[PRIORITY_QUEUE] = Tier(PRIORITY_QUEUE, self._spare_cells.cells)
        self._rows: list[int] = []
        self.granted: list[dict[str, int]] = []
        self.transferred = dict.fromkeys(PRIORITIES, 0)
        self.donated = dict.fromkeys(PRIORITIES, 0)
        self.passed = dict.fromkeys(PRIORITIES, 0)
        self.lost = 0
        self._tick_us = tick_us
        self._spare = self.tiers[PRIORITY_QUEUE]
        self._priorities = [self.tiers[name] for name in PRIORITIES]
        self.meters = dict(meters)
        self._apply()
        self.resize(members)
        cells[state] += enabled

    @property
    def enabled(self) -> bool:
        """Whether the group is shaped now; else everything passes."""
        return bool(self._layout.cells[self._layout.state] & 1)

    @property
    def times_disabled(self) -> int:
        """How often the group was disabled, which forgets all charges."""
        return self._layout.cells[self._layout.state] >> 1

    @property
    def policy(self) -> dict[str, Meter]:
        """The meters of all seven buckets as they count now, the spare's scaled."""
        return {name: tier.meter for name, tier in self.tiers.items()}

    @property
    def limit(self) -> int:
        """The sum of the guaranteed rates as they count now."""
        return limit_of(self.policy)

    @property
    def burst(self) -> int:
        """The sum of the bursts as they count now."""
        return burst_of(self.policy)

    @property
    def is_full(self) -> bool:
        """Whether no purse can take more: then ticks change no level."""
        return all(
            level >= capacity
            for tier in self.tiers.values()
            for level, capacity in zip(tier.levels, tier.capacities, strict=True)
        )

    def taken_from(self, priority: str, nbytes: int) -> tuple[int, float | None]:
        """Which member so many bytes are taken from by force, and in how many seconds there is credit again.

        It is the member with the most. The seconds are by the guaranteed rate alone, for the levels of all members
        together; None where they have no credit and that rate is 0. A group of nobody has no such member.
        """
        tier = self.tiers[priority]
        levels = tier.levels
        member, left = max(range(len(levels)), key=levels.__getitem__), sum(levels) - nbytes
        if left > 0 or not self.enabled:
            return member, 0.0
        rate = tier.meter.guaranteed
        return member, (1 - left) / rate if rate else None

    def tick(self, order: Sequence[int]) -> None:
        """Deal out one tick's credit, to the members in this order. A disabled group, or one of nobody, gets none."""
        if not (self.enabled and order):
            return
        self._rotate()
        open_tiers = []
        for tier in self._priorities:
            if tier.is_full():
                tier.pass_by(self._tick_us)
            else:
                open_tiers.append(tier)
        for tier in (*open_tiers, self._spare):
            tier.deal(self._tick_us)
        for tier in open_tiers:  # the highest first, so each member's spare serves its priorities in their order
            self.transferred[tier.name] += tier.visit(order, self._spare.purses)
        self._spare.visit(order, None)
        self.skip(1)

    def tick_full(self) -> None:
        """Deal out a tick in which every purse was full, also where members have spent since: no level changes."""
        if not self._rows:
            return
        self._rotate()
        for tier in self.tiers.values():
            tier.pass_by(self._tick_us)
        self.skip(1)

    def configure(
        self,
        meters: Mapping[str, Meter] | None = None,
        *,
        enabled: bool | None = None,
        adaptive: bool | None = None,
    ) -> None:
        """Change what is given. Levels survive all but disabling; that forgets them, and what was returned or left.

        What waits is not released by this: `Waiting.release` does it.
        """
        if meters is not None:
            if meters.get(PRIORITY_QUEUE) != self.meters.get(PRIORITY_QUEUE):
                self.scale = Scale()
            self.meters = dict(meters)
        if adaptive is not None:
            self.adaptive = adaptive
        if enabled is not None and enabled != self.enabled:
            cells, state = self._layout.cells, self._layout.state
            if not enabled:
                cells[state] += 1  # twice how often it was disabled, which is once more
            for tier in self.tiers.values():
                tier.clear()
            cells[state] += enabled
        if not (self.enabled and self.adaptive):
            self.scale = Scale()
        self._apply()

    def share(self, meters: Mapping[str, Meter]) -> None:
        """Use meters that differ by the share of their limit only: levels survive, and the spare keeps its scale."""
        self.meters = dict(meters)
        self._apply()

    def resize(self, members: int) -> None:
        """Sets the number of members: new ones have nothing, and the last ones go with what they have."""
        while len(self._rows) > members:  # remainders are carried on for the same number
            self.remove(len(self._rows) - 1)
        for member in range(len(self._rows), members):
            row = self._layout.row(member)
            for i, name in enumerate(PRIORITIES):
                self.tiers[name].add(Purse(self._layout.cells, row + i * CELLS))
            self._spare.add(Purse(self._spare_cells.cells, self._spare_cells.row(member)))
            self._rows.append(row)
            self.granted.append(dict.fromkeys(PRIORITIES, 0))

    def remove(self, member: int) -> None:
        """One member goes with its credit or its debt; those behind it move up."""
        for tier in self.tiers.values():
            tier.remove(member)
        del self._rows[member], self.granted[member]

    def set_tick(self, tick_us: int) -> None:
        """Ticks last this long from now on."""
        self._tick_us = tick_us
        for tier in self.tiers.values():
            tier.restart()

    def fill_up(self) -> None:
        """Give every member all that its purses hold."""
        for tier in self.tiers.values():
            for purse, capacity in zip(tier.purses, tier.capacities, strict=True):
                purse.set_capacity(capacity)
                purse.set_level(capacity)

    def skip(self, ticks: int) -> None:
        """`ticks` ticks have passed with every bucket full: only the remainders change."""
        for tier in self.tiers.values():
            tier.ticks += ticks
            tier.ticks_max += ticks

    def window(self, unacked: int) -> None:
        """A second has passed, and `unacked` bytes are granted and not acknowledged: scale the spare."""
        if self.enabled and self.adaptive:
            self.scale.window(unacked)
            self._apply()

    def account(self, member: int) -> MemberAccount:
        """A member's part of the group, which it spends from while it is one."""
        return MemberAccount(self._layout, self._rows[member])

    def count(self, member: int, priority: str, amount: int, *, charged: bool) -> None:
        """Something goes, charged here, or because the group is disabled."""
        if charged:
            self.granted[member][priority] += amount
        else:
            self.passed[priority] += amount

    def level(self, member: int, bucket: str) -> int:
        """The credit of a member; negative is a debt."""
        return self.tiers[bucket].purses[member].level

    def settle(self, member: int, priority: str, granted: int, actual: int) -> None:
        """What was granted was really worth this much: the difference comes back, or is taken by force."""
        account = self.account(member)
        if account.enabled and actual > granted:
            account.charge(priority, actual - granted)
        else:
            account.release(priority, granted - actual)

    def _rotate(self) -> None:
        """What is left over moves on: the spare's is lost, the others' goes to the spare, this tick's to the next."""
        spare = self._spare
        self.lost += spare.last_over
        spare.last_over = 0
        for tier in self.tiers.values():
            if tier is not spare:
                spare.cur_over += tier.last_over
                self.donated[tier.name] += tier.last_over
            tier.last_over, tier.cur_over = tier.cur_over, 0
            tier.last_budget, tier.cur_budget = tier.cur_budget, 0

    def _apply(self) -> None:
        """Let the configured meters count, the spare's at its scale; the six priorities are never scaled."""
        limit = limit_of(self.meters)
        for name, tier in self.tiers.items():
            meter = self.meters.get(name, UNMETERED)
            tier.set_meter(self.scale.of(meter, limit) if tier is self._spare else meter)
