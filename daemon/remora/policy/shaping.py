"""A group of traffic that is shaped together: buckets of its members, filled tick by tick.

The members are the workers of a host. What one of them leaves unused of its guarantee serves the others of its
priority in the next tick, then the spare (the priority queue), and from there any priority, the highest first; what
no member uses is lost. No credit is minted: what was granted and what is held never exceeds what the ticks dealt out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remora.model.traffic import BUCKETS, PRIORITY_QUEUE, UNMETERED, Meter, Priority, burst_of, limit_of
from remora.policy.bucket import Bucket, capacity_of, share_of, shares_of_tick
from remora.policy.scaling import Scale

PRIORITIES: tuple[str, ...] = tuple(str(each) for each in Priority)


class Tier:
    """One bucket of each member, and what they share: overflow and unused caps of the last tick and of this one."""

    __slots__ = (
        "buckets",
        "capacities",
        "caps",
        "cur_budget",
        "cur_over",
        "last_budget",
        "last_over",
        "meter",
        "name",
        "shares",
        "ticks",
        "ticks_max",
        "was_full",
    )

    def __init__(self, name: str, members: int) -> None:
        self.name = name
        self.meter = UNMETERED
        self.buckets = [Bucket() for _ in range(members)]
        self.capacities = [0] * members
        self.shares: list[int] = []
        self.caps: list[int] = []
        """What each member gets of the guaranteed rate and of the max in this tick."""
        self.was_full = False
        """Whether the last tick passed it by, so that no level has changed."""
        self.clear()

    def clear(self) -> None:
        """Start from nothing; the capacities are those of the last tick until the next one."""
        for each in self.buckets:
            each.level = each.returned = 0
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

    def resize(self, members: int) -> None:
        """Members come with nothing, or the last ones go with what they have."""
        del self.buckets[members:]
        self.buckets.extend(Bucket() for _ in range(members - len(self.buckets)))
        self.restart()
        self._share_burst()

    def leave(self, member: int) -> None:
        """One member goes with what it has; those behind it move up."""
        del self.buckets[member]
        self.restart()
        self._share_burst()

    def pass_full(self, tick_us: int) -> bool:
        """Visit all members at once, where every bucket is full: nothing fits, so all that is dealt is left over.

        Whether they are full; else nothing was done. Most tiers are, most of the time, and to look costs less than to
        visit one member.
        """
        self.was_full = False
        for bucket, capacity in zip(self.buckets, self.capacities, strict=True):
            if bucket.level != capacity or bucket.capacity != capacity or bucket.returned:
                return False
        self.was_full, meter = True, self.meter
        self.cur_over += share_of(meter.guaranteed, self.ticks, 0, 1, tick_us)
        if meter.max is not None:
            self.cur_budget += share_of(meter.max, self.ticks_max, 0, 1, tick_us)
        return True

    def deal(self, tick_us: int) -> None:
        """Work out what the members get in this tick, before they are visited."""
        meter, members = self.meter, len(self.buckets)
        self.shares = shares_of_tick(meter.guaranteed, self.ticks, members, tick_us)
        if meter.max is not None:
            self.caps = shares_of_tick(meter.max, self.ticks_max, members, tick_us)

    def visit(self, order: Sequence[int], spares: Sequence[Bucket] | None) -> int:
        """Fill the members' buckets in this tick, in this order, at last from their `spares`; answers what came from
        those.

        `Bucket.fill` and `transfer` written out, since a host does this thousands of times a second.
        """
        if self.meter.max is not None:
            return sum([self._visit_capped(member, spares[member] if spares else None) for member in order])
        buckets, capacities, shares = self.buckets, self.capacities, self.shares
        over, cur_over, moved = self.last_over, self.cur_over, 0
        for member in order:
            bucket = buckets[member]
            bucket.capacity = capacity = capacities[member]
            level = bucket.level + shares[member]
            if level > capacity:
                cur_over += level - capacity
                level = capacity
            if bucket.returned:
                over += bucket.take_returned()
            if over:
                used = min(over, capacity - level)
                over -= used
                level += used
            if spares and level < capacity and (spare := spares[member]).level > 0:
                used = min(capacity - level, spare.level)
                spare.level -= used
                level += used
                moved += used
            bucket.level = level
        self.last_over, self.cur_over = over, cur_over
        return moved

    def _visit_capped(self, member: int, spare: Bucket | None) -> int:
        """The same for one member where there is a max."""
        bucket = self.buckets[member]
        capacity = bucket.capacity = self.capacities[member]
        level, over, cap = bucket.level, self.last_over, self.caps[member]
        budget = start = cap + self.last_budget

        guaranteed = self.shares[member]
        used = min(guaranteed, budget, capacity - level)
        self.cur_over += guaranteed - used
        level += used
        budget -= used
        if bucket.returned:
            over += bucket.take_returned()
        used = min(over, budget, capacity - level)
        over -= used
        level += used
        budget -= used
        self.last_over = over
        moved = 0
        if spare is not None:
            moved = max(0, min(capacity - level, spare.level, budget))
            budget -= moved
            spare.level -= moved
            level += moved
        bucket.level = level

        spent = max(0, start - budget)  # a cut of the level is no cap for others
        if spent < cap:
            self.cur_budget += cap - spent
        else:
            self.last_budget -= spent - cap
        return moved

    def _share_burst(self) -> None:
        members = len(self.buckets)
        self.capacities = [capacity_of(self.meter.burst, member, members) for member in range(members)]


class Group:
    """The buckets of one group, by priority and member.

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
    ) -> None:
        self.enabled = enabled
        self.adaptive = adaptive
        self.times_disabled = 0
        self.scale = Scale()
        self.tiers = {name: Tier(name, members) for name in BUCKETS}
        self.granted = [dict.fromkeys(PRIORITIES, 0) for _ in range(members)]
        self.transferred = dict.fromkeys(PRIORITIES, 0)
        self.donated = dict.fromkeys(PRIORITIES, 0)
        self.passed = dict.fromkeys(PRIORITIES, 0)
        self.lost = 0
        self._tick_us = tick_us
        self._spare = self.tiers[PRIORITY_QUEUE]
        self._priorities = [self.tiers[name] for name in PRIORITIES]
        self.meters = dict(meters)
        self._apply()

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
        """Whether no bucket can take more: then ticks change no level."""
        return all(
            bucket.level >= capacity
            for tier in self.tiers.values()
            for bucket, capacity in zip(tier.buckets, tier.capacities, strict=True)
        )

    def tick(self, order: Sequence[int]) -> None:
        """Deal out one tick's credit, to the members in this order. A disabled group, or one of nobody, gets none."""
        if not (self.enabled and order):
            return
        self._rotate()
        open_tiers = [tier for tier in self._priorities if not tier.pass_full(self._tick_us)]
        for tier in (*open_tiers, self._spare):
            tier.deal(self._tick_us)
        for tier in open_tiers:  # the highest first, so each member's spare serves its priorities in their order
            self.transferred[tier.name] += tier.visit(order, self._spare.buckets)
        self._spare.visit(order, None)
        for tier in self.tiers.values():
            tier.ticks += 1
            tier.ticks_max += 1

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
            self.enabled = enabled
            self.times_disabled += not enabled
            for tier in self.tiers.values():
                tier.clear()
        if not (self.enabled and self.adaptive):
            self.scale = Scale()
        self._apply()

    def share(self, meters: Mapping[str, Meter]) -> None:
        """Use meters that differ by the share of their limit only: levels survive, and the spare keeps its scale."""
        self.meters = dict(meters)
        self._apply()

    def resize(self, members: int) -> None:
        """Sets the number of members: new ones have nothing, and the last ones go with what they have."""
        if members == len(self.granted):
            return  # remainders are carried on for the same number
        for tier in self.tiers.values():
            tier.resize(members)
        del self.granted[members:]
        self.granted.extend(dict.fromkeys(PRIORITIES, 0) for _ in range(members - len(self.granted)))

    def leave(self, member: int) -> None:
        """One member goes with its credit or its debt; those behind it move up."""
        for tier in self.tiers.values():
            tier.leave(member)
        del self.granted[member]

    def set_tick(self, tick_us: int) -> None:
        """Ticks last this long from now on."""
        self._tick_us = tick_us
        for tier in self.tiers.values():
            tier.restart()

    def fill_up(self) -> None:
        """Give every member all that its buckets hold."""
        for tier in self.tiers.values():
            for bucket, capacity in zip(tier.buckets, tier.capacities, strict=True):
                bucket.level = bucket.capacity = capacity

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

    def level(self, member: int, bucket: str) -> int:
        """The credit of a member; negative is a debt."""
        return self.tiers[bucket].buckets[member].level

    def is_open(self, member: int, priority: str) -> bool:
        """Whether a request may pass at once, with no other one waiting before it."""
        return not self.enabled or self.level(member, priority) > 0

    def charge(self, member: int, priority: str, amount: int) -> None:
        """Take from a member's credit, from any level."""
        self.tiers[priority].buckets[member].drain(amount, force=True)

    def give_back(self, member: int, priority: str, amount: int) -> None:
        """Return credit that was charged; what does not fit serves the other members."""
        if self.enabled:
            self.tiers[priority].buckets[member].give_back(amount)

    def settle(self, member: int, priority: str, granted: int, actual: int) -> None:
        """What was granted was really worth this much: the difference comes back, or is taken by force."""
        if not self.enabled:
            return
        if actual > granted:
            self.charge(member, priority, actual - granted)
        else:
            self.give_back(member, priority, granted - actual)

    def count(self, member: int, priority: str, amount: int, *, charged: bool) -> None:
        """Something goes, charged here, or because the group is disabled."""
        if charged:
            self.granted[member][priority] += amount
        else:
            self.passed[priority] += amount

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
