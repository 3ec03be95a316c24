"""Admission: what holds whatever is asked for, settled, given up and turned back, in any tree of limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.model.traffic import Meter, Priority
from remora.policy.admission.limits import ByteLimit, CreditLimit, EntryLimit
from remora.policy.admission.line import (
    AdmissionLimit,
    Demand,
    Hold,
    ReadAhead,
    Shortage,
    WaitingLine,
    pages_to_turn_back,
)
from remora.policy.shaping.group import Group

PRIORITIES = tuple(Priority)
RANK = {priority: rank for rank, priority in enumerate(PRIORITIES)}
PLENTY: Mapping[str, Meter] = dict.fromkeys(Priority, Meter(10_000, 100))

WORKER, DESTINATION, SHARD = 100, 60, 40


class Fairness:
    """The line, and a check at each grant that nobody is passed by."""

    def __init__(self) -> None:
        self.line = WaitingLine()

    def check(self, limit: AdmissionLimit, request: Demand) -> None:
        ranks = [RANK[each.priority] for each in self.line.waiting(limit)]
        assert ranks == sorted(ranks), "a waiter of a higher priority stands behind one of a lower"
        first = next(iter(self.line.waiting(limit)), None)
        assert first is None or first is request or RANK[first.priority] > RANK[request.priority], "it is passed by"


def watched(kind: type, fairness: Fairness) -> Callable[..., Any]:
    """Limits of this kind, each grant of which is checked."""

    class Watched(kind):  # type: ignore[misc]
        def take(self, request: Demand) -> Hold | None:
            hold: Hold | None = super().take(request)
            if hold is not None:
                fairness.check(self, request)
            return hold

    return Watched


class House:
    """A worker with two destinations, each of two shards and with a topic, and a host's credit."""

    def __init__(self, seed: int, *, leaves_room: bool) -> None:
        self.chance = Random(seed)
        self.fairness = Fairness()
        self.line = self.fairness.line
        room, entries = watched(ByteLimit, self.fairness), watched(EntryLimit, self.fairness)
        self.bounds = {"topic": 10, "destination": 15}
        self.worker: ByteLimit = room(WORKER)
        self.destinations: list[ByteLimit] = [room(DESTINATION, self.worker, leaves_room=leaves_room) for _ in range(2)]
        self.shards: list[ByteLimit] = [room(SHARD, each) for each in self.destinations for _ in range(2)]
        self.rooms = [self.worker, *self.destinations, *self.shards]
        self.entries: list[EntryLimit] = [
            entries(lambda: self.bounds["topic"]),
            entries(lambda: self.bounds["destination"]),
            entries(),
        ]
        self.group = Group(PLENTY, 1, 10_000)
        credit = watched(CreditLimit, self.fairness)
        accounts = {"host": self.group.account(0)}
        self.credit = {each: credit("host", each, accounts) for each in PRIORITIES}
        self.waiting: list[Demand] = []
        self.granted: list[Demand] = []

    def ask(self, kind: str, amount: int, priority: Priority, *, now: bool = False) -> None:
        limits: dict[str, tuple[AdmissionLimit, ...]] = {
            "room": self.chance.choice(self.shards).chain,
            "entries": tuple(self.entries),
            "credit": (self.credit[priority],),
        }
        request = Demand(priority, limits[kind], amount, least=1)
        if now:
            if self.line.ask_now(request):
                self.granted.append(request)
            else:
                assert request.holds == []
        elif self.line.ask(request):
            self.granted.append(request)
        else:
            self.waiting.append(request)

    def end(self, request: Demand) -> None:
        self.line.cancel(request)
        for held in (self.waiting, self.granted):
            if request in held:
                held.remove(request)

    def shrink(self, request: Demand) -> None:
        """A reservation turns out to be worth less."""
        for hold in request.holds:
            if hold.is_charged:
                self.line.settle(hold, hold.amount // 2)

    def look(self) -> None:
        for request in self.line.look():
            assert request.is_granted
            self.waiting.remove(request)
            self.granted.append(request)

    def check(self) -> None:
        """No limit is passed, and each holds what the requests in it do."""
        held: dict[AdmissionLimit, int] = dict.fromkeys([*self.rooms, *self.entries], 0)
        for request in self.waiting + self.granted:
            for hold in request.holds:
                if hold.limit in held:
                    held[hold.limit] += hold.amount
        for limit, amount in held.items():
            if isinstance(limit, ByteLimit):
                assert limit.held == amount
                holders = [
                    each
                    for each in self.waiting + self.granted
                    if any(h.limit is limit and h.amount for h in each.holds)
                ]
                assert amount <= limit.limit or len(holders) == 1
            elif isinstance(limit, EntryLimit):
                assert limit._unacked.asked == amount
        topic, destination, _ = self.entries
        assert held[topic] <= self.bounds["topic"]
        assert held[destination] <= self.bounds["destination"]
        for request in self.granted:
            amounts = {hold.amount for hold in request.holds if hold.is_charged}
            assert len(amounts) <= 1, "it holds the same of each limit"

    def end_all(self) -> None:
        """One after the other ends, those that wait go on: all of them, in the end."""
        for _ in range(1 + len(self.granted) + 3 * len(self.waiting)):
            for request in list(self.granted):
                self.end(request)
            self.group.tick([0])
            self.line.free(list(self.credit.values()))
            self.look()
            self.check()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("ask", "ask", "ask", "now", "give up", "end", "shrink", "tick")),
        st.sampled_from(("room", "room", "entries", "credit")),
        st.integers(1, 50),
        st.sampled_from(Priority),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 2**32), leaves_room=st.booleans())
def test_whatever_happens_the_tree_of_limits_holds(
    steps: Sequence[tuple[str, str, int, Priority]], seed: int, leaves_room: bool
) -> None:
    """The sum of what is held never passes a limit, nobody passes by a waiter of the same or a higher priority, every
    exit gives everything back, and whoever waits is served when all others end."""
    house = House(seed, leaves_room=leaves_room)
    for step, kind, amount, priority in steps:
        match step:
            case "ask" | "now":
                house.ask(kind, amount, priority, now=step == "now")
            case "give up" if house.waiting:
                house.end(house.chance.choice(house.waiting))
            case "end" if house.granted:
                house.end(house.chance.choice(house.granted))
            case "shrink" if house.granted:
                house.shrink(house.chance.choice(house.granted))
            case "tick":
                house.group.tick([0])
                house.line.free(list(house.credit.values()))
        house.look()
        house.check()

    house.end_all()

    assert house.waiting == []
    assert not house.line
    for request in list(house.granted):
        house.end(request)
    assert not any(each.held for each in house.rooms)
    assert [each._unacked.asked for each in house.entries] == [0, 0, 0]


class Sealed:
    """A limit that a later feature may add: nothing passes while it is closed."""

    def __init__(self) -> None:
        self.is_open = False

    def take(self, request: Demand) -> Hold | None:
        return Hold(self, request.want) if self.is_open else None

    def settle(self, hold: Hold, amount: int) -> Sequence[AdmissionLimit]:
        hold.amount = amount
        return ()


def test_another_limit_is_two_methods() -> None:
    """A limit that knows nothing of the others is a node of the tree: who waits in it holds what stands before it, and
    goes on to what stands behind it, the highest priority first, when it opens."""
    line, sealed, narrow, wide = WaitingLine(), Sealed(), ByteLimit(10), ByteLimit(5)
    low, high = (Demand(each, (narrow, sealed, wide), 5) for each in (Priority.IDLE, Priority.MAX))
    assert not line.ask(low)
    assert not line.ask(high)
    assert (narrow.held, wide.held) == (10, 0)

    sealed.is_open = True
    line.free([sealed])

    assert line.look() == [high]
    assert low.waits_in is wide
    line.cancel(high)
    assert line.look() == [low]
    assert (narrow.held, wide.held) == (5, 5)


def test_only_a_higher_priority_passes_by() -> None:
    """What would fit waits behind a larger request of its own or of a higher priority, and passes one of a lower."""
    line, room = WaitingLine(), ByteLimit(10)
    assert line.ask(Demand(Priority.IDLE, (room,), 5))
    assert not line.ask(Demand(Priority.CLIENT_NORMAL, (room,), 8))

    passed = [line.ask(Demand(each, (room,), 1)) for each in Priority]

    assert passed == [each in (Priority.MAX, Priority.CLIENT_HIGH) for each in Priority]
    assert not line.ask_now(Demand(Priority.MAX, (room,), 1))


def test_who_waits_for_what_is_left_goes_on_when_another_one_gives_back() -> None:
    """A destination that holds as much as it leaves waits, also for bytes that another one holds."""
    line, worker = WaitingLine(), ByteLimit(1000)
    one, other = (ByteLimit(1000, worker, leaves_room=True) for _ in range(2))
    large, small, more = (Demand(Priority.IDLE, each.chain, n) for each, n in ((one, 400), (other, 300), (other, 200)))
    assert line.ask(large)
    assert line.ask(small)
    assert not line.ask(more)

    line.cancel(large)

    assert line.look() == [more]
    assert (other.held, worker.held) == (500, 500)


def test_a_request_larger_than_its_limit_passes_alone() -> None:
    """It is let through when nothing else is held, since refusing it would stop its shard for good."""
    line, room = WaitingLine(), ByteLimit(10)
    small, large = (Demand(Priority.IDLE, (room,), nbytes) for nbytes in (1, 50))
    assert line.ask(small)
    assert not line.ask(large)

    line.cancel(small)

    assert line.look() == [large]
    assert room.held == 50


def test_what_a_wide_limit_does_not_grant_goes_back_to_the_narrow_one() -> None:
    """A request holds the same of each limit when it is granted, and who waited for the rest goes on with it."""
    line, topic, destination = WaitingLine(), EntryLimit(lambda: 10), EntryLimit(lambda: 4)
    first, second = (Demand(Priority.IDLE, (topic, destination), 10) for _ in range(2))
    assert line.ask(first)
    assert (first.want, [each.amount for each in first.holds]) == (4, [4, 4])

    assert not line.ask(second)

    assert second.waits_in is destination
    line.cancel(first)
    assert line.look() == [second]
    assert second.want == 4


@pytest.mark.parametrize("watermark", [0, 50, 90, 100])
@given(
    shards=st.dictionaries(
        st.sampled_from("abcdef"),
        st.builds(ReadAhead, st.sampled_from(Priority), st.lists(st.integers(1, 40), max_size=4).map(tuple)),
    ),
    held=st.integers(0, 120),
    need=st.integers(0, 60),
    priority=st.sampled_from(Priority),
)
def test_a_plan_frees_what_is_short_from_the_lowest_priority_up(
    watermark: int, shards: dict[str, ReadAhead], held: int, need: int, priority: Priority
) -> None:
    """No page of the asker's own or of a higher priority is turned back, none of a priority while a lower one has
    enough, and where less is freed than is to be, the lower ones have nothing left that their parts do not spare."""
    plan = pages_to_turn_back(shards, Shortage(100, held, need, priority), Fraction(watermark, 100))

    lower = {name for name, each in shards.items() if RANK[each.priority] > RANK[priority]}
    assert set(plan.pages) <= lower
    turned = [RANK[shards[name].priority] for name in plan.pages]
    for rank in {*turned}:
        below = sum(
            sum(shards[name].pages[-count:]) for name, count in plan.pages.items() if RANK[shards[name].priority] > rank
        )
        assert below < plan.to_free
