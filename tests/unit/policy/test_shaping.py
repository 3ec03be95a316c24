"""Shaping beyond the tables: what holds for any members, meters and sends."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.model.traffic import BUCKETS, PRIORITY_QUEUE, Meter, Priority
from remora.policy.admission.line import Demand
from remora.policy.shaping.bucket import SECOND_US, CreditBucket, capacity_of, share_of
from remora.policy.shaping.cells import PRIORITIES
from remora.policy.shaping.group import Group
from remora_pipeline.simulate.shaping import MemberLine

RATES = st.integers(0, 5_000_000)
TICKS_US = st.sampled_from((1_000, 10_000, 12_500, 100_000, 1_000_000))


@st.composite
def meters(draw: st.DrawFn) -> dict[str, Meter]:
    """Any meters that a configuration may have."""
    found = {}
    for bucket in draw(st.sets(st.sampled_from(BUCKETS))):
        most = draw(st.none() | RATES)
        guaranteed = draw(RATES) if most is None else draw(st.integers(0, most))
        found[bucket] = Meter(guaranteed, draw(st.integers(1 if guaranteed else 0, 200_000)), most)
    return found


@pytest.mark.parametrize(
    ("levels", "nbytes", "rate", "expected"),
    [
        ([100, 50], 10, 1000, (0, 0.0)),
        ([50, 100], 149, 1000, (1, 0.0)),
        ([50, 100], 150, 1000, (1, 0.001)),
        ([50, 100], 1149, 1000, (1, 1.0)),
        ([-500, 100], 0, 100, (1, 4.01)),
        ([-500, -400], 0, 100, (1, 9.01)),
        ([0, 0], 0, 0, (0, None)),
        ([0, 1], 0, 0, (1, 0.0)),
        ([5], 1, 0, (0, 0.0)),
        ([5], 5, 0, (0, None)),
    ],
)
def test_what_is_taken_by_force_is_paid_back_by_the_guarantee(
    levels: list[int], nbytes: int, rate: int, expected: tuple[int, float | None]
) -> None:
    """The member with the most is charged; there is credit again when the guaranteed rate has filled up what all of
    them are short of together, and nobody knows when without such a rate."""
    group = Group({"idle": Meter(rate, 1000)}, len(levels), 10_000)
    for member, level in enumerate(levels):
        group.tiers["idle"].purses[member].set_level(level)

    assert group.taken_from("idle", nbytes) == expected
    group.configure(enabled=False)
    assert group.taken_from("idle", nbytes)[1] == 0.0


@dataclass
class Run:
    """A group with requests that come, are granted, settled and given up at random; it counts what was dealt out."""

    group: Group
    members: int
    tick_us: int
    chance: random.Random
    dealt: int = 0
    out: int = 0
    grants: list[tuple[int, str, int]] = field(default_factory=list)
    waiting: list[MemberLine] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.waiting = [MemberLine(member, {"host": self.group}) for member in range(self.members)]

    def tick(self) -> None:
        """One tick in some order, and releases behind it."""
        for tier in self.group.tiers.values():
            for member in range(self.members):
                self.dealt += share_of(tier.meter.guaranteed, tier.ticks, member, self.members, self.tick_us)
        order = self.chance.sample(range(self.members), self.members)
        self.group.tick(order)
        self._check_levels()
        self._release()

    def send(self) -> None:
        """A request of some size, from any member."""
        self.number += 1
        member, want = self.chance.randrange(self.members), self.chance.choice((0, 1, 500, 40_000, 3_000_000))
        waiting, least = self.waiting[member], self.chance.randint(0, want)
        request = waiting.request(self.chance.choice(PRIORITIES), ("host",), want, least)
        if waiting.send(str(self.number), request):
            self._granted(member, request)

    def settle(self) -> None:
        """A grant is really worth less or more."""
        if self.grants:
            member, priority, granted = self.grants.pop(self.chance.randrange(len(self.grants)))
            actual = self.chance.choice((0, granted // 2, granted, granted * 2))
            self.group.settle(member, priority, granted, actual)
            self.out += actual - granted
            self._release()

    def cancel(self) -> None:
        """Somebody gives up, or has none to give up."""
        for each in self.waiting:
            each.cancel(str(self.chance.randint(1, self.number + 1)))
        self._release()

    def resize(self) -> None:
        """Workers come or go."""
        self.members = self.chance.randint(1, 5)
        for tier in self.group.tiers.values():  # a worker's debt goes with it
            self.dealt += sum(max(0, -level) for level in tier.levels[self.members :])
        self.group.resize(self.members)
        del self.waiting[self.members :]
        self.waiting.extend(
            MemberLine(member, {"host": self.group}) for member in range(len(self.waiting), self.members)
        )
        self.grants = [each for each in self.grants if each[0] < self.members]

    @property
    def held(self) -> int:
        """All levels, debts included."""
        return sum(level for tier in self.group.tiers.values() for level in tier.levels)

    def _release(self) -> None:
        for member in self.chance.sample(range(self.members), self.members):
            for _, request in self.waiting[member].release():
                self._granted(member, request)

    def _granted(self, member: int, request: Demand) -> None:
        self.out += request.want
        self.grants.append((member, request.priority, request.want))

    def _check_levels(self) -> None:
        for tier in self.group.tiers.values():
            for member, level in enumerate(tier.levels):
                assert level <= capacity_of(tier.meter.burst, member, self.members)
            assert min(tier.last_over, tier.cur_over, tier.last_budget, tier.cur_budget) >= 0


@settings(max_examples=150, deadline=None)
@given(
    meters=meters(),
    others=meters(),
    members=st.integers(1, 5),
    tick_us=TICKS_US,
    seed=st.integers(0, 2**32),
    steps=st.lists(st.sampled_from(("tick", "tick", "send", "send", "settle", "cancel")), max_size=80),
)
def test_nothing_is_minted(
    meters: dict[str, Meter], others: dict[str, Meter], members: int, tick_us: int, seed: int, steps: list[str]
) -> None:
    """Whatever is sent, settled, cancelled and changed: what went out and what is held was dealt out before."""
    run = Run(Group(meters, members, tick_us), members, tick_us, random.Random(seed))

    for place, step in enumerate(steps):
        if place == len(steps) // 2:
            run.resize()
            run.group.configure(others)
        getattr(run, step)()

        assert run.out + run.held <= run.dealt


@settings(max_examples=60, deadline=None)
@given(
    rate=st.integers(1, 3_000_000),
    members=st.integers(1, 8),
    tick_us=TICKS_US,
    rivals=meters(),
    seed=st.integers(0, 2**32),
    ticks=st.integers(1, 60),
)
def test_a_class_gets_its_guarantee(
    rate: int, members: int, tick_us: int, rivals: dict[str, Meter], seed: int, ticks: int
) -> None:
    """A class that spends all, and whose bursts hold a tick's share, gets at least its guarantee beside any others."""
    burst = members * (rate * tick_us // SECOND_US + 1)
    group = Group({**rivals, Priority.CLIENT_LOW: Meter(rate, burst)}, members, tick_us)
    chance = random.Random(seed)
    spent = dealt = 0

    for tick in range(ticks):
        group.tick(chance.sample(range(members), members))
        dealt += sum(share_of(rate, tick, member, members, tick_us) for member in range(members))
        for member in range(members):
            for priority in PRIORITIES:
                level = group.level(member, priority)
                if level > 0 and (priority == Priority.CLIENT_LOW or chance.random() < 0.5):
                    group.account(member).charge(priority, level)
                    spent += level if priority == Priority.CLIENT_LOW else 0

        assert spent >= dealt


@given(rate=st.integers(0, 10**15), members=st.integers(1, 64), tick_us=TICKS_US, second=st.integers(0, 10**6))
def test_any_second_of_ticks_deals_out_the_rate(rate: int, members: int, tick_us: int, second: int) -> None:
    """One member or many, few ticks or many: a second's worth of shares is the rate, to the unit, in any second."""
    ticks = SECOND_US // tick_us
    first = second * ticks + second % ticks

    dealt = sum(
        share_of(rate, first + tick, member, members, tick_us)
        for tick in (range(ticks) if ticks <= 100 else (0,))
        for member in range(members)
    )

    start, end = (rate * place * members * tick_us // (members * SECOND_US) for place in (first, first + ticks))
    assert end - start == rate
    assert ticks > 100 or dealt == rate


@given(burst=st.integers(0, 10**9), members=st.integers(1, 64))
def test_capacities_are_the_burst(burst: int, members: int) -> None:
    """The members' capacities add up to the burst, or are 1 each where it is smaller than they are many."""
    capacities = [capacity_of(burst, member, members) for member in range(members)]

    assert sum(capacities) == (max(burst, members) if burst else 0)
    assert max(capacities) - min(capacities) <= 1


def test_a_charge_that_its_group_forgot_is_not_given_back() -> None:
    """A request charged before its group was disabled gets nothing back from it when it is given up afterwards."""
    groups = {
        "topic": Group({Priority.IDLE: Meter(1_000_000, 10_000)}, 1, 10_000),
        "host": Group({}, 1, 10_000),
    }
    groups["topic"].tick([0])
    waiting = MemberLine(0, groups)
    assert not waiting.send("a", waiting.request(Priority.IDLE, ("topic", "host"), 4_000, 4_000))
    groups["topic"].configure(enabled=False)
    groups["topic"].configure(enabled=True)

    assert waiting.cancel("a")
    assert not waiting.cancel("a")

    assert groups["topic"].level(0, Priority.IDLE) == 0
    assert groups["topic"].tiers[Priority.IDLE].purses[0].returned == 0


def test_credit_that_comes_back_releases_others_at_once() -> None:
    """What a wide group does not grant goes back to the narrow one, and who waits there goes on in the same pass."""
    topic = Group({Priority.IDLE: Meter(1_000_000, 10_000)}, 1, 10_000)
    host = Group({Priority.IDLE: Meter(0, 10_000)}, 1, 10_000)
    waiting = MemberLine(0, {"topic": topic, "host": host})
    topic.tick([0])
    host.tick([0])
    assert not waiting.send("wide", waiting.request(Priority.IDLE, ("topic", "host"), 10_000, 1_000))
    assert not waiting.send("narrow", waiting.request(Priority.IDLE, ("topic",), 500, 500))
    host.tiers[Priority.IDLE].purses[0].set_level(3_000)

    released = waiting.release()

    assert [(name, each.want) for name, each in released] == [("wide", 3_000), ("narrow", 500)]
    assert topic.level(0, Priority.IDLE) == 6_500


def test_a_look_waits_its_turn_and_costs_nothing() -> None:
    """A request for nothing is charged nothing, yet waits behind others and where there is no credit."""
    group = Group({Priority.IDLE: Meter(1_000_000, 10_000)}, 1, 10_000)
    waiting = MemberLine(0, {"host": group})
    assert not waiting.send("look", waiting.request(Priority.IDLE, ("host",), 0, 0))
    group.tick([0])

    assert [each.want for _, each in waiting.release()] == [0]

    assert group.level(0, Priority.IDLE) == 10_000


def test_an_unchanged_rate_carries_its_remainder_on() -> None:
    """Other meters leave a rate's carried remainder alone; another rate, or another number of members, begins anew."""
    group = Group({Priority.IDLE: Meter(150, 100)}, 1, 10_000)
    group.tick([0])

    group.configure({Priority.IDLE: Meter(150, 100), Priority.MAX: Meter(5, 5)})
    group.tick([0])
    assert group.level(0, Priority.IDLE) == 3
    group.configure({Priority.IDLE: Meter(151, 100)})
    group.tick([0])
    assert group.level(0, Priority.IDLE) == 4
    group.resize(1)
    assert group.tiers[Priority.IDLE].ticks == 1
    group.resize(2)
    assert group.tiers[Priority.IDLE].ticks == 0


def test_a_full_group_says_so() -> None:
    """A group is full when no bucket can take more, and then ticks leave its levels alone."""
    group = Group({Priority.IDLE: Meter(1_000, 20)}, 2, 10_000)
    assert not group.is_full
    for _ in range(4):
        group.tick([0, 1])

    assert group.is_full


def test_a_smaller_burst_lends_no_cap() -> None:
    """What a smaller burst cuts from a level serves others as overflow, and raises the cap of nobody."""
    group = Group({Priority.IDLE: Meter(0, 1_000, 100_000)}, 2, 10_000)
    for purse in group.tiers[Priority.IDLE].purses:
        purse.set_level(500)

    group.configure({Priority.IDLE: Meter(0, 200, 100_000)})
    group.tick([0, 1])

    tier = group.tiers[Priority.IDLE]
    assert tier.levels == [100, 100]
    assert (tier.cur_over, tier.cur_budget) == (800, 1_000)


def test_returned_credit_waits_for_the_next_visit() -> None:
    """Credit that did not fit serves members visited after its own in this tick, and none visited before."""
    group = Group({Priority.MAX: Meter(20_000, 200)}, 2, 1_000)
    group.tick([1, 0])
    tier = group.tiers[Priority.MAX]
    tier.purses[0].set_level(100)
    tier.purses[1].set_level(0)
    group.settle(0, Priority.MAX, 30, 0)

    group.tick([1, 0])

    assert tier.levels == [100, 10]
    assert (tier.last_over, tier.cur_over) == (30, 10)


def plain_tick(group: Group, order: list[int], tick_us: int) -> None:
    """A tick as it is specified: bucket by bucket with the operations of `Bucket`, one visit after the other."""
    group._rotate()
    spares = group.tiers[PRIORITY_QUEUE]
    members = len(order)
    for member in order:
        for tier in (*(group.tiers[name] for name in PRIORITIES), spares):
            purse, meter = tier.purses[member], tier.meter
            bucket = CreditBucket(tier.capacities[member], purse.level)
            cap = start = 0
            if meter.max is not None:
                cap = share_of(meter.max, tier.ticks_max, member, members, tick_us)
                bucket.budget = start = cap + tier.last_budget
            tier.cur_over += bucket.fill(share_of(meter.guaranteed, tier.ticks, member, members, tick_us))
            tier.last_over += purse.take_returned()
            tier.last_over = bucket.fill(tier.last_over)
            if tier is not spares:
                spare = CreditBucket(level=spares.purses[member].level)
                group.transferred[tier.name] += bucket.transfer(spare, bucket.capacity - bucket.level)
                spares.purses[member].set_level(spare.level)
            purse.set_capacity(bucket.capacity)
            purse.set_level(bucket.level)
            if bucket.budget is not None:
                spent = max(0, start - bucket.budget)
                if spent < cap:
                    tier.cur_budget += cap - spent
                else:
                    tier.last_budget -= spent - cap
    for tier in group.tiers.values():
        tier.ticks += 1
        tier.ticks_max += 1


@given(meters=meters(), others=meters(), members=st.integers(1, 5), tick_us=TICKS_US, data=st.data())
def test_quick_ticks_are_the_specified_ones(
    meters: dict[str, Meter], others: dict[str, Meter], members: int, tick_us: int, data: st.DataObject
) -> None:
    """Whatever members take and give back, and however meters change, a tick leaves all that a group holds as the plain
    operations on its buckets do."""
    quick, plain = (Group(meters, members, tick_us) for _ in range(2))
    for _ in range(data.draw(st.integers(1, 12))):
        order = data.draw(st.permutations(range(members)))
        quick.tick(order)
        plain_tick(plain, order, tick_us)
        assert held_by(quick) == held_by(plain)
        member, name = data.draw(st.integers(0, members - 1)), data.draw(st.sampled_from(PRIORITIES))
        amount = data.draw(st.integers(0, 5_000))
        match data.draw(st.sampled_from(("nothing", "charge", "give_back", "configure"))):
            case "charge":
                for group in (quick, plain):
                    group.account(member).charge(name, amount)
            case "give_back":
                for group in (quick, plain):
                    group.account(member).release(name, amount)
            case "configure":
                for group in (quick, plain):
                    group.configure(others)


def held_by(group: Group) -> object:
    """Levels, what was returned, left over and lent, and the counters."""
    tiers = [
        (
            [(each.level, each.returned, each.capacity) for each in tier.purses],
            tier.last_over,
            tier.cur_over,
            tier.last_budget,
            tier.cur_budget,
        )
        for tier in group.tiers.values()
    ]
    return tiers, group.transferred, group.donated, group.lost
