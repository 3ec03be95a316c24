"""Which shards a new shard waits for, and that no schedule of commits, changes, deliveries and kills reorders a key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.topic import LayoutState, Target, Topic, TopicLayout
from remora.policy.queues.layouts import are_sent_alike, parents, still_held, waits_for, waits_for_commits

Parents = Callable[[int, int, int], Sequence[int]]

NUMBERS = st.integers(1, 1024)


@given(NUMBERS, NUMBERS, st.integers(0, 2**64 - 1))
def test_a_new_shard_waits_for_the_old_shard_of_each_of_its_keys(old: int, new: int, hashed: int) -> None:
    """Whatever a key's hash is, the parents of its new shard contain its old one."""
    assert hashed % old in parents(old, new, hashed % new)


def test_a_new_shard_waits_for_no_other_one() -> None:
    """Each parent has a key in common with the new shard, so that none is waited for in vain."""
    for old in range(1, 25):
        for new in range(1, 25):
            for number in range(new):
                meant = {each % old for each in range(old * new) if each % new == number}
                assert set(parents(old, new, number)) == meant


def test_doubling_has_one_parent_each() -> None:
    """Twice as many shards wait for one each, half as many for two each."""
    assert [list(parents(4, 8, number)) for number in range(8)] == [[0], [1], [2], [3], [0], [1], [2], [3]]
    assert [list(parents(4, 2, number)) for number in range(2)] == [[0, 2], [1, 3]]
    assert [len(parents(11, 64, number)) for number in (0, 63)] == [11, 11]


def test_what_is_said() -> None:
    """What a change is refused for, and what a shard waits for, name generation, entries and shards."""
    three = TopicLayout(3, 2, LayoutState.SHUT)

    assert still_held([three], 1204) == "generation 3 still holds 1,204 entries of 2 shards"
    assert still_held([TopicLayout(0, 1, LayoutState.SHUT)], 1) == "generation 0 still holds 1 entry of 1 shard"
    assert waits_for("t.3", 0, 812, 0) == "waits for t.3 of generation 0: 812 entries"
    assert waits_for("t.3", 0, 1, 2) == "waits for t.3 of generation 0: 1 entry, and 2 more"
    assert waits_for("t.3", 0, 9, 0, is_counted=False) == "waits for t.3 of generation 0: about 9 entries"
    assert still_held([three], 1, is_counted=False) == "generation 3 still holds about 1 entry of 2 shards"
    assert waits_for_commits("t.3", 0, 1, 0) == "waits for t.3 of generation 0: 1 open reservation"
    assert waits_for_commits("t@2", 2, 5, 1) == "waits for t@2 of generation 2: 5 open reservations, and 1 more"
    assert waits_for_commits("t", 0, 0, 0) == "waits for t of generation 0: its end"


TOPIC = Topic("t", "", "t", Target("kafka://b:9092", "", "t"), id="one")
OTHERWISE: dict[str, object] = {
    "target": Target("kafka://b:9092", "acks=all", "t"),
    "opaque_data": b"x",
    "time_to_live_s": 60,
    "max_retries": 3,
    "retry_sleep_s": 1,
    "id": "another",
    "owner": "user",
    "is_sequenced": True,
}
ALIKE: dict[str, object] = {
    "shards": 4,
    "generation": 1,
    "former": (TopicLayout(0, 1, LayoutState.SHUT),),
    "coming": TopicLayout(1, 4, LayoutState.PREPARING),
    "closed": True,
    "capacity_bytes": 1 << 20,
}


@pytest.mark.parametrize("name", [*OTHERWISE, *ALIKE])
def test_what_decides_how_entries_are_sent(name: str) -> None:
    """Target, limits of life and whose topic it is do; its layouts, its room and whether it is closed do not."""
    changed = replace(TOPIC, **{name: {**OTHERWISE, **ALIKE}[name]})  # type: ignore[arg-type]  # fields by name

    assert are_sent_alike(TOPIC, changed) is (name in ALIKE)
    assert are_sent_alike(changed, changed)


def test_a_topic_that_becomes_known_or_unknown_is_sent_otherwise() -> None:
    """Its entries then go by attributes of their own."""
    assert [are_sent_alike(one, other) for one, other in [(TOPIC, None), (None, TOPIC), (None, None)]] == [
        False,
        False,
        True,
    ]


# ------------------------------------------------------------------------------------------------ schedules


@dataclass
class Schedule:
    """A topic in a model: writers and owners with old views, changes, kills between sending and removing."""

    rng: Random
    parents: Parents
    open: tuple[int, int] = (0, 3)
    former: tuple[int, int] | None = None
    queues: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    reserved: list[int] = field(default_factory=list)
    views: list[tuple[int, int]] = field(default_factory=lambda: [(0, 3)] * 3)
    committed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    sent: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    moved: int = 0

    def run(self, steps: int) -> None:
        """Take steps at random, and at the end deliver what is left."""
        actions = [self.publish] * 6 + [self.reserve, self.commit] + [self.deliver] * 5 + [self.change, self.forget]
        for _ in range(steps):
            self.rng.choice(actions)()
        while any(self.queues.values()):
            self.deliver()

    def publish(self) -> None:
        """A writer commits an event by its own view, and by the store's where that says that the topic moved."""
        self._commit(self.rng.randrange(40))

    def reserve(self) -> None:
        """Room is reserved for a key in the layout of the moment."""
        self.reserved.append(self.rng.randrange(40))

    def commit(self) -> None:
        """A reservation of whatever layout is committed in the one that takes events."""
        if self.reserved:
            self._commit(self.reserved.pop(self.rng.randrange(len(self.reserved))))

    def _commit(self, key: int) -> None:
        writer = self.rng.randrange(len(self.views))
        if self.views[writer] != self.open:
            self.moved += 1
            self.views[writer] = self.open
        generation, shards = self.views[writer]
        self.queues[generation, key % shards].append((key, self.committed[key]))
        self.committed[key] += 1

    def change(self) -> None:
        """The topic gets another number of shards, unless a former layout has entries."""
        self.forget()
        if self.former is None:
            self.former, self.open = self.open, (self.open[0] + 1, self.rng.choice([1, 2, 3, 4, 6, 7, 8, 11, 13]))

    def forget(self) -> None:
        """A former layout goes when nothing is left in it."""
        if self.former is not None and not any(self.queues[self.former[0], i] for i in range(self.former[1])):
            self.former = None

    def deliver(self) -> None:
        """An owner sends some entries of a shard that nothing holds back, and removes them unless it is killed."""
        waiting = [each for each, entries in sorted(self.queues.items()) if entries and not self._is_held_back(each)]
        if not waiting:
            return
        shard = self.rng.choice(waiting)
        page = self.queues[shard][: self.rng.randint(1, 5)]
        for key, number in page:
            if number >= len(
                self.sent[key]
            ):  # else it was sent before a kill: a reader knows copies by their positions
                self.sent[key].append(number)
        if self.rng.random() < 0.8:
            del self.queues[shard][: len(page)]

    def _is_held_back(self, shard: tuple[int, int]) -> bool:
        generation, number = shard
        if self.former is None or generation != self.open[0]:
            return False
        before, shards = self.former
        return any(self.queues[before, each] for each in self.parents(shards, self.open[1], number))

    @property
    def is_right(self) -> bool:
        """Whether each key's events were sent in the order of their commits, none left out."""
        return all(self.sent[key] == list(range(count)) for key, count in self.committed.items())


def run_schedules(seeds: range, parents_of: Parents = parents) -> tuple[int, int, int]:
    """How many schedules went wrong, how many generations there were, and how often a writer was told to move."""
    wrong = generations = moved = 0
    for seed in seeds:
        schedule = Schedule(Random(seed), parents_of)
        schedule.run(150)
        wrong += not schedule.is_right
        generations += schedule.open[0]
        moved += schedule.moved
    return wrong, generations, moved


@pytest.mark.guarantee("order-per-object")
def test_no_schedule_reorders_a_key() -> None:
    """Of 200 schedules none sends events of a key out of order, or leaves one out."""
    wrong, generations, moved = run_schedules(range(200))

    assert wrong == 0
    assert min(generations, moved) > 400, "the schedules hardly changed anything"


@pytest.mark.full("the same for 10,000 schedules")
@pytest.mark.guarantee("order-per-object")
def test_no_schedule_of_many_reorders_a_key() -> None:
    """Of 10,000 schedules none sends events of a key out of order, or leaves one out."""
    assert run_schedules(range(200, 10_200))[0] == 0


def test_a_schedule_notices_a_parent_that_is_not_waited_for() -> None:
    """A new shard that waits for all its parents but one is found out, and so is one that waits for none."""
    assert run_schedules(range(100), lambda old, new, number: list(parents(old, new, number))[1:])[0] > 10
    assert run_schedules(range(100), lambda _old, _new, _number: ())[0] > 10
