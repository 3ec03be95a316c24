"""Which stage is why events are late, and what follows from it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import pytest

from remora.policy.status.stages import (
    BOUNDS_S,
    FEWEST,
    HOUR_S,
    NONE,
    NOW_S,
    OF_STORE,
    WAITS_FOR,
    WHAT_TO_DO,
    EventStage,
    StageCounts,
    StageHistory,
    StageTimes,
    quantile_s,
    slow_stages,
    stage_sentences,
)

S = EventStage


def counts(seconds: float, times: int = 100) -> StageCounts:
    """So many times of this length."""
    buckets = tuple(times if at == bisect_left(BOUNDS_S, seconds) else 0 for at in range(len(BOUNDS_S) + 1))
    return StageCounts(buckets, times * seconds)


def grown(stage: EventStage, to_s: float, at: str = "", from_s: float = 0.0008) -> StageTimes:
    return StageTimes(stage, at or ("sqlite" if stage in OF_STORE else "kafka"), counts(to_s), counts(from_s))


def steady(stage: EventStage, at: str = "kafka") -> StageTimes:
    return grown(stage, 0.0008, at)


@pytest.mark.parametrize(
    ("seen", "causes", "consequences"),
    [
        pytest.param([steady(S.PUSH), steady(S.WAIT_TURN)], set(), set(), id="nothing is slow"),
        pytest.param([grown(S.PUSH, 0.06), steady(S.LIST)], {S.PUSH}, set(), id="an endpoint"),
        pytest.param(
            [grown(S.PUSH, 0.06), grown(S.WAIT_TURN, 0.4), grown(S.WAIT_BYTES, 0.7), grown(S.WAIT_LISTING, 4)],
            {S.PUSH},
            {S.WAIT_TURN, S.WAIT_BYTES, S.WAIT_LISTING},
            id="an endpoint, and all that waits for it though it grew more",
        ),
        pytest.param(
            [grown(S.PUSH, 0.06, "http"), grown(S.WAIT_TURN, 0.4, "kafka")],
            {S.PUSH, S.WAIT_TURN},
            set(),
            id="what waits at one endpoint does not wait for another",
        ),
        pytest.param(
            [grown(S.LIST, 0.03), grown(S.REMOVE, 0.03), grown(S.WAIT_LISTING, 1)],
            {S.LIST, S.REMOVE},
            {S.WAIT_LISTING},
            id="a store",
        ),
        pytest.param(
            [grown(S.COMMIT, 0.05), grown(S.COMMIT_QUEUE, 0.03), grown(S.COMMIT_SYNC, 0.02), grown(S.REMOVE, 0.03)],
            {S.COMMIT_SYNC},
            {S.COMMIT, S.COMMIT_QUEUE, S.REMOVE},
            id="a disk that syncs slowly",
        ),
        pytest.param(
            [grown(S.COMMIT, 0.3, "rados"), grown(S.REGISTER, 0.2, "rados")],
            {S.REGISTER},
            {S.COMMIT},
            id="the register of requests",
        ),
        pytest.param(
            [grown(S.WAIT_CREDIT, 2), grown(S.WAIT_LISTING, 9)], {S.WAIT_CREDIT}, {S.WAIT_LISTING}, id="shaping"
        ),
        pytest.param(
            [grown(S.WAIT_PARENTS, 20), grown(S.WAIT_LISTING, 9)], {S.WAIT_PARENTS}, {S.WAIT_LISTING}, id="re-sharding"
        ),
        pytest.param(
            [grown(S.WAIT_PARENTS, 20), grown(S.PUSH, 0.06)], {S.PUSH}, {S.WAIT_PARENTS}, id="parents that are late"
        ),
        pytest.param(
            [grown(S.RENDER, 0.05), grown(S.WAIT_PACKING, 0.1)], {S.RENDER}, {S.WAIT_PACKING}, id="processors"
        ),
        pytest.param([grown(S.WAIT_LISTING, 9)], {S.WAIT_LISTING}, set(), id="a wait for which nothing is the reason"),
        pytest.param([grown(S.PUSH, 0.06, from_s=0.045)], set(), set(), id="grown by less than half"),
        pytest.param([grown(S.PUSH, 0.004)], set(), set(), id="grown much, by little"),
    ],
)
def test_what_waits_for_a_slow_stage_is_its_consequence(
    seen: list[StageTimes], causes: set[EventStage], consequences: set[EventStage]
) -> None:
    """Of slow stages those that wait for another slow one follow from it, and the rest are causes, which come first."""
    found = slow_stages(seen)

    assert {each.times.stage for each in found if each.is_cause} == causes
    assert {each.times.stage for each in found if not each.is_cause} == consequences
    assert [each.is_cause for each in found] == sorted((each.is_cause for each in found), reverse=True)


def test_few_times_say_nothing() -> None:
    """A stage that took place less than five times, now or then, is not called slow."""
    many, few = counts(0.06), counts(0.06, FEWEST - 1)

    assert not StageTimes(S.PUSH, "kafka", few, counts(0.0008)).is_slow
    assert not StageTimes(S.PUSH, "kafka", many, counts(0.0008, FEWEST - 1)).is_slow
    assert not StageTimes(S.PUSH, "kafka", many).is_slow


def test_a_sentence_names_the_cause_what_follows_and_what_to_look_at() -> None:
    """It has both medians, how long ago the other one was, the consequences and a hint."""

    def said(before_s: float) -> list[str]:
        seen = [grown(S.PUSH, 0.06), grown(S.WAIT_TURN, 0.4)]
        return stage_sentences(slow_stages(replace(each, before_s=before_s) for each in seen))

    assert said(HOUR_S) == [
        "push (kafka) takes 60 ms, and took 800 us an hour ago; from it follow wait_turn: " + WHAT_TO_DO[S.PUSH]
    ]
    assert "12 minutes ago" in said(720)[0]


def test_each_stage_has_a_hint_and_no_two_wait_for_each_other() -> None:
    """Whatever is slow, at least one stage is a cause."""
    assert set(WHAT_TO_DO) == set(EventStage)
    everything = [grown(stage, 1) for stage in EventStage]
    assert any(each.is_cause for each in slow_stages(everything))
    for stage, reasons in WAITS_FOR.items():
        assert all(stage not in WAITS_FOR.get(each, ()) for each in reasons), stage


def test_a_quantile_is_of_the_bucket_that_it_falls_into() -> None:
    """It lies within the bucket's bounds, grows with the part, and is unknown where there are no times."""
    both = counts(0.0008).and_those_of(counts(0.03))

    assert quantile_s(counts(0.0008, 0), 0.5) is None
    assert quantile_s(both, 0.5) == 0.001
    assert quantile_s(both, 0.75) == pytest.approx(0.0375)
    assert quantile_s(both, 1.0) == 0.05
    assert quantile_s(counts(1000), 0.5) == BOUNDS_S[-1]


def played(history: StageHistory, until_s: int, of: dict[int, float], since_s: int = 0) -> None:
    """Note ten pushes a second; from each of these seconds on they take so long."""
    made = NONE
    for now in range(until_s):
        seconds = next(each for begin, each in sorted(of.items(), reverse=True) if begin <= now)
        made = made.and_those_of(counts(seconds, 10))
        if now >= since_s:
            history.note(float(now), {(S.PUSH, "kafka"): made})


@pytest.mark.parametrize("began_s", [61, 600, 4000, 20_000])
def test_a_stage_that_became_slow_is_seen_within_half_a_minute(began_s: int) -> None:
    """After a minute or after hours, and then compared with the time of an hour ago or with the beginning."""
    history = StageHistory()

    played(history, began_s + 30, {0: 0.0008, began_s: 0.06})

    (found,) = slow_stages(history.seen())
    assert found.times.stage == S.PUSH
    assert found.times.before_s == pytest.approx(min(HOUR_S, began_s), abs=320)


@pytest.mark.parametrize("idle_s", [20, 300, 3000])
def test_a_process_that_began_idle_compares_with_its_first_load(idle_s: int) -> None:
    """A stage that took place for the first time after minutes is compared with how long it took then."""
    history, made = StageHistory(), NONE
    for now in range(idle_s + 700):
        if now > idle_s:
            made = made.and_those_of(counts(0.06 if now > idle_s + 670 else 0.0008, 10))
        history.note(float(now), {(S.PUSH, "kafka"): made})

    (found,) = slow_stages(history.seen())
    assert found.times.before_s is not None
    assert found.times.before_s < 700


def test_what_was_always_so_is_not_slow() -> None:
    """A stage that has taken as long for more than an hour is no news, and neither is anything in the first seconds."""
    long, young = StageHistory(), StageHistory()

    played(long, 3 * int(HOUR_S), {0: 0.0008, 3600: 0.06})
    played(young, int(NOW_S) - 1, {0: 0.06})

    assert slow_stages(long.seen()) == []
    assert [each.before_s for each in young.seen()] == [None]


def test_a_history_keeps_little() -> None:
    """However long a process runs, what is kept is bounded."""
    history = StageHistory()
    played(history, 6 * int(HOUR_S), {0: 0.0008})

    assert len(history._fine) <= NOW_S + 2
    assert len(history._coarse) <= 20
