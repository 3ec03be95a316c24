"""Model `fleet`: what holds for the workers of many hosts, whatever happens to them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.model.member import Member
from remora.model.shard import Shard
from remora.policy.ownership.quarantine import QuarantineOptions
from remora.policy.ownership.shedding import Options
from remora_pipeline.simulate.fleet.board import Board
from remora_pipeline.simulate.fleet.offered import Recorded, Zipf
from remora_pipeline.simulate.fleet.outages import Troubles
from remora_pipeline.simulate.fleet.worker import FleetSettings
from remora_pipeline.simulate.fleet.world import World
from support.scripts import run

QUARTER_S, SETTLED_S = 900, 4500
"""A quarter of an hour; and when shards that moved for their load may move again, and have."""


def fleet(*steps: dict[str, Any], **config: Any) -> list[Any]:
    """The results of a script of model `fleet`."""
    results: list[Any] = run({"version": 1, "model": "fleet", "config": config, "steps": list(steps)})["results"]
    return results


def seconds(count: float) -> dict[str, Any]:
    """A step in which time goes by."""
    return {"op": "run", "seconds": count}


@st.composite
def fleets(draw: st.DrawFn, hosts: int = 12) -> dict[str, Any]:
    """Some hosts with any load, up to more than they can do."""
    count, workers = draw(st.integers(1, hosts)), draw(st.integers(1, 2))
    return {
        "hosts": count,
        "workers": workers,
        "shards": draw(st.integers(0, 12 * count * workers)),
        "strategy": draw(st.sampled_from(("threshold", "overload"))),
        "bytes": draw(st.sampled_from((0, 0.1, 0.3, 0.6, 1.2))) * count * workers * 100_000_000,
        "skew": draw(st.sampled_from((0, 0.4, 0.8, 1.2))),
        "seed": draw(st.integers(0, 1_000_000)),
    }


STEPS = st.one_of(
    st.builds(lambda hosts: {"op": "join", "hosts": hosts}, st.integers(0, 3)),
    st.builds(lambda hosts: {"op": "leave", "hosts": hosts}, st.integers(0, 3)),
    st.builds(lambda hosts: {"op": "drain", "hosts": hosts}, st.integers(0, 3)),
    st.builds(
        lambda shards, factor: {"op": "burst", "shards": shards, "factor": factor, "seconds": 40},
        st.integers(0, 5),
        st.sampled_from((0.1, 20)),
    ),
    st.builds(lambda: {"op": "fail", "destinations": 1, "seconds": 100}),
    st.builds(seconds, st.sampled_from((0, 1, 5, 30, 100))),
)


@settings(max_examples=20)
@given(config=fleets())
def test_constant_load_comes_to_rest(config: dict[str, Any]) -> None:
    """Under constant load nothing moves by number, no shard twice within grace, and none at all in the last quarter of
    an hour. Where no worker has more than it can do, none gets busier by a shard than its giver was."""
    first, *results = fleet(seconds(0), seconds(SETTLED_S), seconds(QUARTER_S), **config)

    assert [each["moves"]["count"] for each in results] == [0, 0]
    assert [each["twice_in_grace"] for each in results] == [0, 0]
    assert first["usage"]["max"] > 100 or [each["beyond_giver"] for each in results] == [0, 0]
    assert results[-1]["moves"]["load"] == 0


@settings(max_examples=15)
@given(config=fleets(), factors=st.lists(st.sampled_from((0.05, 10, 40)), min_size=3, max_size=6))
def test_a_shard_that_moved_for_its_load_stays(config: dict[str, Any], factors: list[float]) -> None:
    """However the load changes, no shard moves for it twice within grace."""
    bursts = [
        step
        for factor in factors
        for step in ({"op": "burst", "shards": 8, "factor": factor, "seconds": 240}, seconds(200))
    ]

    results = fleet(*bursts, **config)

    assert sum(each["twice_in_grace"] for each in results if each) == 0


@pytest.mark.parametrize("seed", [0, 4])
def test_a_shard_that_moved_for_its_load_stays_while_hosts_come_and_go(seed: int) -> None:
    """A shard that came for its load and went on to another worker, since hosts joined or drained, does not move for
    its load again within grace."""
    joins = ({"op": "join", "hosts": 10}, seconds(900))
    steps = (seconds(900), *joins, *joins, {"op": "drain", "hosts": 10}, seconds(900))

    results = [each for each in fleet(*steps, hosts=50, shards=550, bytes=1.5e9, skew=0.6, seed=seed) if each]

    assert sum(each["moves"]["load"] for each in results) > 10
    assert sum(each["moves"]["count"] for each in results) > 100
    assert sum(each["twice_in_grace"] for each in results) == 0


@settings(max_examples=30)
@given(config=fleets(), steps=st.lists(STEPS, max_size=8), more=st.booleans())
def test_hosts_come_and_go(config: dict[str, Any], steps: list[dict[str, Any]], more: bool) -> None:
    """Whatever hosts do, a few minutes later each shard is owned where any worker is left, and the numbers of shards
    are even where they alone count."""
    results = fleet(*steps, *[{"op": "join", "hosts": 1}] * more, seconds(300), **{**config, "strategy": "count"})

    last = results[-1]
    assert last["unowned"] == (0 if last["members"]["rows"] else config["shards"])
    assert last["held"]["max"] - last["held"]["min"] <= 1


@settings(max_examples=30)
@given(config=fleets(hosts=5), steps=st.lists(STEPS, max_size=6))
def test_what_is_not_asked_again_has_the_known_answer(config: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """A fleet whose workers ask the policies at each look does the same, to the last move, as one that asks them only
    where something changed."""
    first, second = (_moves(config, [*steps, seconds(200)], is_thrifty=each) for each in (True, False))

    assert first == second


def _moves(config: dict[str, Any], steps: list[dict[str, Any]], *, is_thrifty: bool) -> list[Any]:
    """What happens in a fleet: its owners after each step, and what was counted."""
    chance = random.Random(config["seed"])
    shards = [Shard(f"s{place}") for place in range(config["shards"])]
    options = Options(by_overload=config["strategy"] == "overload")
    world = World(
        shards,
        FleetSettings(balance=options, is_thrifty=is_thrifty),
        Zipf(shards, config["bytes"], config["skew"], chance),
        Troubles(2, QuarantineOptions(ratio=0.5), 60.0),
        chance,
    )
    world.begin(config["hosts"], config["workers"])
    found: list[Any] = []
    for step in steps:
        match step["op"]:
            case "run":
                found.append(world.run(step["seconds"]))
            case "join":
                world.add(step["hosts"], config["workers"])
            case "burst":
                world.burst(step["shards"], step["factor"], step["seconds"])
            case "fail":
                world.fail(step["destinations"], step["seconds"])
            case "leave":
                world.remove(step["hosts"])
            case _:
                world.drain(step["hosts"])
        found.append({cookie: sorted(each.owned) for cookie, each in world.workers.items()})
    return found


@settings(max_examples=20)
@given(config=fleets(hosts=6), steps=st.lists(STEPS, max_size=8))
def test_a_shard_has_one_owner(config: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """At no time two live workers own the same shard."""
    for owners in _moves(config, [*steps, seconds(50)], is_thrifty=True):
        if isinstance(owners, dict):
            assert max(Counter(shard for owned in owners.values() for shard in owned).values(), default=0) <= 1


def test_equal_scripts_have_equal_answers() -> None:
    """The same seed gives the same answer, and another one another."""
    config = {"hosts": 20, "shards": 200, "bytes": 1_000_000_000, "skew": 1.0}
    first, again, other = (fleet(seconds(600), seed=seed, **config) for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_a_host_that_ends_without_a_word() -> None:
    """Its row counts for four looks and its shards are nobody's until the lease ends; then the others have them."""
    soon, later = (
        fleet({"op": "leave", "hosts": 1}, seconds(at), hosts=10, shards=100, strategy="count")[-1] for at in (59, 100)
    )

    assert (soon["unowned"], soon["members"]["rows"], soon["held"]) == (10, 9, {"min": 10, "max": 10})
    assert (later["unowned"], later["moves"], later["held"]) == (0, {"count": 0, "load": 0}, {"min": 11, "max": 12})


def test_a_host_that_drains() -> None:
    """It gives each of its shards to another worker, and its row goes with the last one."""
    results = fleet({"op": "drain", "hosts": 1}, seconds(60), hosts=10, shards=100, strategy="count", bytes=1_000)

    assert results[-1]["moves"]["count"] == 10
    assert (results[-1]["unowned"], results[-1]["members"]["rows"]) == (0, 9)


def test_a_look_is_rarer_among_many_workers() -> None:
    """Ten times the workers read ten times as many rows in a second, not a hundred times."""
    few, many = (fleet(seconds(100), hosts=hosts, shards=hosts)[0]["members"] for hosts in (200, 2000))

    assert many["rows"] == 10 * few["rows"]
    assert many["read_bytes_per_s"] < 12 * few["read_bytes_per_s"]


def test_a_burst_moves_shards_away() -> None:
    """Shards of a worker that gets too much go to others while it lasts, and the hot one stays."""
    burst = {"op": "burst", "shards": 1, "factor": 40, "seconds": 3600}
    config = {"hosts": 10, "shards": 100, "bytes": 200_000_000, "seed": 3}

    before, _, after = fleet(seconds(300), burst, seconds(300), **config)

    assert before["moves"]["load"] == 0
    assert after["moves"] == {"count": 0, "load": 9}
    assert after["held"]["min"] == 1


def test_a_destination_that_fails() -> None:
    """Workers quarantine a destination that fails, in each window a part of them, and end it once it is back."""
    fail = {"op": "fail", "destinations": 1, "seconds": 600}
    config = {"hosts": 200, "shards": 2200, "bytes": 1_000_000, "destinations": 2, "quarantine": {"ratio": 0.3}}

    _, during, after = fleet(fail, seconds(599), seconds(120), **config)

    assert 150 <= during["quarantine"]["entered"] <= 200
    assert during["quarantine"]["most_entered_in_a_window"] <= 90
    assert during["quarantine"]["still_quarantined"] == during["quarantine"]["entered"]
    assert after["quarantine"]["still_quarantined"] == 0
    assert after["quarantine"]["most_released_in_a_second"] < 40


def test_without_quarantine_nobody_enters() -> None:
    """Where the option is off, and where nothing is to be sent, no destination is quarantined."""
    fail = {"op": "fail", "destinations": 1, "seconds": 600}

    off = fleet(fail, seconds(300), hosts=10, shards=110, bytes=1_000_000, quarantine={"enabled": False})
    quiet = fleet(fail, seconds(300), hosts=10, shards=110)

    assert [each[-1]["quarantine"]["entered"] for each in (off, quiet)] == [0, 0]


def test_a_recorded_load_is_followed() -> None:
    """Shards are offered what the trace has in each of its steps, and nothing once it has ended."""
    shards = [Shard("a"), Shard("b")]
    offered = Recorded(shards, 10.0, [{0: 1_000.0}, {0: 500.0, 1: 20.0}])

    assert offered.at(0.0) == [(shards[0], 100.0)]
    assert offered.next_change(0.0) == 10.0
    assert offered.at(10.0) == [(shards[0], 50.0), (shards[1], 2.0)]
    assert offered.next_change(10.0) == 20.0
    assert offered.at(20.0) == [(shards[0], 0.0), (shards[1], 0.0)]
    assert offered.next_change(20.0) is None


def test_figures_of_equal_rows_are_kept() -> None:
    """A row that says the same changes nothing, and one that says something else is counted at once."""
    board = Board(2)
    board.write(Member("remora/a", "h", 1))
    fair = board.fair()
    board.write(Member("remora/a", "h", 1))
    assert board.fair() is fair

    board.write(Member("remora/b", "h"))

    assert board.fair().targets == {"remora/a": 1, "remora/b": 1}


REFUSED = [
    ({"strategy": "nope"}, "strategy: "),
    ({"hosts": -1}, "hosts: "),
    ({"hosts": 30_000}, "hosts: "),
    ({"workers": 0}, "workers: "),
    ({"shards": 10**9}, "shards: "),
    ({"destinations": 0}, "destinations: "),
    ({"destinations": 10**9}, "destinations: "),
    ({"skew": -1}, "skew: "),
    ({"skew": 1e99}, "skew: "),
    ({"interval": 0}, "interval: "),
    ({"interval": 1e-9}, "interval: "),
    ({"worker_bytes_per_s": 0}, "worker_bytes_per_s: "),
    ({"history": 2}, "history: "),
    ({"weights": {"nope": 1}}, "weights.nope: "),
    ({"quarantine": {"ratio": 2}}, "ratio: "),
    ({"quarantine": {"interval": 0}}, "quarantine.interval: "),
    ({"quarantine": {"interval": 1e-9}}, "quarantine.interval: "),
]


@pytest.mark.parametrize(("config", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_a_config_that_is_refused(config: dict[str, Any], why: str) -> None:
    """A config that no fleet can have is answered with the option's path."""
    answer = run({"version": 1, "model": "fleet", "config": {"hosts": 2, "shards": 2, **config}, "steps": []})

    assert answer["refused"].startswith(why)


def test_a_run_without_an_end_is_refused() -> None:
    """A run of more than a month is refused at once, and the next one is answered."""
    too_long, refused_too, short = fleet(seconds(1e18), seconds(31 * 86_400 + 1), seconds(1), hosts=1, shards=1)

    assert too_long["refused"] == refused_too["refused"] == "seconds: must be from 0 to 2678400"
    assert short["held"] == {"min": 1, "max": 1}
