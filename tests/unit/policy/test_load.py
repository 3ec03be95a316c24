"""Moving, bounding and turning back load beyond the tables: what holds for any load."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.model.member import Member
from remora.model.traffic import Priority
from remora.policy.admission.line import ReadAhead, Shortage, pages_to_turn_back
from remora.policy.delivery.retry import read_limit
from remora.policy.ingest.intake import Intake
from remora.policy.ownership import balance
from remora.policy.ownership.quarantine import Quarantine, QuarantineOptions, owners
from remora.policy.ownership.shedding import Load, Options, next_history, plan, targets, usage_of
from remora_pipeline.simulate.reads import Permits

SIZES = st.integers(0, 500_000_000)


@st.composite
def loads(draw: st.DrawFn) -> list[Load]:
    """Workers with any shards, usage and history."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        shards = {f"{number}-{place}": draw(SIZES) for place in range(draw(st.integers(0, 6)))}
        usage, history = (draw(st.floats(0, 1, allow_nan=False)) for _ in range(2))
        found.append(Load(f"w{number}", usage, history, shards, sum(shards.values())))
    return found


@given(loads=loads(), by_overload=st.booleans(), lower_boundary=st.booleans())
def test_a_round_moves_shards_downhill(loads: list[Load], by_overload: bool, lower_boundary: bool) -> None:
    """Each shard moves once, to a worker without a need; nobody ends above its giver, or gives its last shard."""
    options = Options(by_overload=by_overload, lower_boundary=lower_boundary, threshold=5, minimum=1)
    done = plan(loads, options, {}, 0.0)
    by_name = {each.name: each for each in loads}
    givers = {move.giver for move in done.moves}

    assert len({move.shard for move in done.moves}) == len(done.moves)
    assert not givers & {move.to for move in done.moves}
    assert not givers & set(done.skipped)
    for move in done.moves:
        giver = by_name[move.giver]
        assert len(giver.shards) > 1
        came = sum(giver.shards[each.shard] for each in done.moves if each.to == move.to)
        figure = by_name[move.to].usage if by_overload else max(by_name[move.to].usage, by_name[move.to].history)
        assert figure + came / max(1, giver.bytes) * giver.usage < giver.low + 1e-9
        assert {each.giver for each in done.moves if each.to == move.to} == {move.giver}


INTERVAL_S, CAN = 60, 100_000_000.0
"""Of a round, and the bytes a second that a worker can deliver."""


def rounds_behind(history: float, load: float, part: float = 0.25, shards: int = 8) -> int:
    """In which round after the first of four equally busy workers was slowed down it has caught up.

    They move as the policy has them move; who has more to do than it can is at its end until all is done.
    """
    options = Options(history=history, minimum=0)
    owned = {name: {f"{name}{place}": load * CAN / shards for place in range(shards)} for name in "abcd"}
    histories, moved_at, behind = dict.fromkeys(owned, load), dict[str, float](), 0.0
    for number in range(1, 100):
        slow, now = sum(owned["a"].values()), float(number * INTERVAL_S)
        behind = max(0.0, behind + (slow - part * CAN) * INTERVAL_S)
        if not behind:
            return number
        usages = {name: sum(owned[name].values()) / CAN for name in owned} | {"a": 1.0}
        histories = {name: next_history(histories[name], usages[name], history) for name in owned}
        loads = [Load(name, usages[name], histories[name], owned[name], sum(owned[name].values())) for name in owned]
        for move in plan(loads, options, moved_at, now).moves:
            owned[move.to][move.shard] = owned[move.giver].pop(move.shard)
            moved_at[move.shard] = now
    raise AssertionError("it never catches up")


@pytest.mark.parametrize(
    ("history", "load", "rounds"),
    [(0.9, 0.3, 7), (0.9, 0.4, 12), (0.5, 0.3, 3), (0.5, 0.4, 4), (0, 0.3, 2), (0, 0.4, 3)],
)
def test_a_worker_that_is_slowed_to_a_quarter_catches_up(history: float, load: float, rounds: int) -> None:
    """It gives shards away until it can do what is left and what has gathered, the sooner the less history counts."""
    assert rounds_behind(history, load) == rounds


def test_a_wrong_limit_does_not_decide() -> None:
    """A resource above all that there is does not count, also where it is the only one."""
    assert usage_of({"cpu": 20, "memory": 101}, {}) == 0.2
    assert usage_of({"memory": 101}, {}) == 0
    assert usage_of({"cpu": 80}, {"cpu": 0.5}) == 0.4


@given(
    held=st.lists(st.tuples(st.integers(0, 40), st.integers(-5, 5), st.booleans()), min_size=1, max_size=8),
    shards=st.integers(0, 200),
)
def test_without_skew_nothing_changes(held: list[tuple[int, int, bool]], shards: int) -> None:
    """The targets without any moves for load are those of the balance by number; drained workers keep no skew."""
    members = [Member(f"w{place}", "h", count, draining) for place, (count, _, draining) in enumerate(held)]
    skews = {f"w{place}": skew for place, (_, skew, _) in enumerate(held)}

    assert targets(members, {}, shards) == balance.targets(members, shards)
    assert all(targets(members, skews, shards)[each.cookie] == 0 for each in members if each.draining)


@settings(max_examples=200)
@given(
    limit=st.none() | st.integers(-1, 100),
    steps=st.lists(st.tuples(st.sampled_from(("begin", "begin", "end", "grow", "set")), st.integers(0, 60))),
    seed=st.integers(0, 2**32),
)
def test_intake_counts_each_body_once(limit: int | None, steps: list[tuple[str, int]], seed: int) -> None:
    """Pending is what was admitted and is not over; requests wait only while it is paused, and all get in at last."""
    chance = random.Random(seed)
    intake: Intake[str] = Intake(limit)
    admitted: dict[str, int] = {}
    waiting: dict[str, int] = {}

    def let_in(names: list[str]) -> None:
        for name in names:
            admitted[name] = waiting.pop(name)

    for number, (step, amount) in enumerate(steps):
        name = chance.choice([*admitted, *waiting, "nobody"])
        if step == "begin":
            (admitted if intake.begin(str(number), amount) else waiting)[str(number)] = amount
        elif step == "grow" and intake.is_growing(name):
            admitted[name] += amount if intake.grow(name, amount) else 0
        elif step == "end":
            admitted.pop(name, None)
            waiting.pop(name, None)
            let_in(intake.end(name))
            assert intake.end(name) == []
        elif step == "set":
            limit = amount
            let_in(intake.set_limit(amount))
        assert intake.pending == sum(admitted.values())
        assert intake.waiting == len(waiting)
        assert intake.is_paused or not waiting
        assert not intake.is_paused or 2 * intake.pending >= (limit or 0) > 0

    while admitted:
        name = next(iter(admitted))
        del admitted[name]
        let_in(intake.end(name))
    assert (intake.pending, intake.waiting) == (0, 0)


@settings(max_examples=200)
@given(
    limit=st.integers(1, 100),
    steps=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 60)), max_size=60),
    seed=st.integers(0, 2**32),
)
def test_workers_that_share_a_limit_keep_it_together(limit: int, steps: list[tuple[int, bool, int]], seed: int) -> None:
    """What they hold passes the limit by one request at most, and all requests get in when the others have ended."""
    chance = random.Random(seed)
    workers: list[Intake[int]] = [Intake(limit) for _ in range(3)]
    under_way: list[list[int]] = [[], [], []]
    is_paused = False

    def at(place: int) -> Intake[int]:
        others = sum(each.own for each in workers) - workers[place].own
        under_way[place] += workers[place].observe(others, is_paused=is_paused)
        return workers[place]

    for number, (place, begins, amount) in enumerate(steps):
        if begins and at(place).begin(number, amount):
            under_way[place].append(number)
        elif not begins and under_way[place]:
            ended = under_way[place].pop(chance.randrange(len(under_way[place])))
            under_way[place] += at(place).end(ended)
        is_paused = workers[place].is_paused
        assert sum(each.own for each in workers) < limit + 60

    for place in [0, 1, 2] * len(steps):
        is_paused = at(place).is_paused
        while under_way[place]:
            under_way[place] += at(place).end(under_way[place].pop())
            is_paused = workers[place].is_paused
    assert [each.waiting for each in workers] == [each.own for each in workers] == [0, 0, 0]


def test_only_the_oldest_body_without_a_length_grows_while_paused() -> None:
    """Of two bodies without a length the older one goes on while the other waits, so neither waits for the other."""
    intake: Intake[str] = Intake(10)
    assert intake.begin("a", 0)
    assert intake.begin("b", 0)
    assert intake.grow("b", 10)

    assert not intake.grow("b", 1)
    assert intake.grow("a", 1)
    intake.end("a")
    assert intake.grow("b", 1)

    assert intake.pending == 11


PRIORITIES = st.sampled_from(tuple(Priority))


@given(
    shards=st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.builds(ReadAhead, PRIORITIES, st.lists(st.integers(0, 100), max_size=4).map(tuple)),
    ),
    held=st.integers(0, 500),
    need=st.integers(0, 100),
    priority=PRIORITIES,
)
def test_only_lower_priorities_turn_back(
    shards: dict[str, ReadAhead], held: int, need: int, priority: Priority
) -> None:
    """Whole listings of lower priorities alone are turned back, those there are, and none where there is room."""
    done = pages_to_turn_back(shards, Shortage(300, held, need, priority), Fraction(9, 10))

    order = tuple(Priority)
    assert done.freed == sum(sum(shards[name].pages[-count:]) for name, count in done.pages.items())
    assert all(order.index(shards[name].priority) > order.index(priority) for name in done.pages)
    assert all(0 < count <= len(shards[name].pages) for name, count in done.pages.items())
    assert (done.to_free > 0) == (held + need > 300)
    assert done.to_free or not done.pages


def test_read_limit_has_no_bound_on_its_steps() -> None:
    """A limit grows as long as rounds arrive, also with small steps, and stays where it does not grow."""
    assert read_limit(20, 10_000_000, 1, 2) == 2**20
    assert read_limit(1_000, 10**9, 1, 2) == 10**9
    assert read_limit(1_000, 100, 3, 1) == 3


def test_an_endpoint_that_takes_nothing_gets_a_probe_only_with_permits() -> None:
    """An endpoint that is not writable counts as one permit, and none where there is none."""
    assert Permits().entries(10, writable=False) == 1
    assert Permits(permits=0).entries(10, writable=False) == 0


def test_a_quarantine_that_is_switched_off_ends_with_its_window() -> None:
    """Switched off, a quarantine lasts until the window's end, which releases it and lets nobody in."""
    quarantine = Quarantine(QuarantineOptions())
    quarantine.error("k", "timeout", 5)
    quarantine.close(60, {})
    quarantine.enabled = False
    quarantine.error("j", "timeout", 5)

    assert quarantine.is_quarantined("k", 100)
    closed = quarantine.close(120, {})

    assert (closed.entered, closed.released) == ((), 1)
    assert quarantine.until(120) == {}


def test_owners_are_enough() -> None:
    """Where too few workers are free of a quarantine, others fill up by name, after those."""
    assert owners({"c": False, "b": True, "a": True}, 2) == ["c", "a"]
