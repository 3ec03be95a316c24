from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heapreplace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.shard import Origin
from remora.model.topic import Target, Topic
from remora.policy.delivery.lifetime import LifetimeLimits
from remora.policy.delivery.pace import (
    ACTIVE_AT_EASE,
    PASSIVATE_AFTER_S,
    READS_PER_SECOND,
    RUNG_AT_ONCE,
    RUNG_PER_SECOND,
    Looks,
    brought_forward_s,
    idle_delay,
    passivate_after,
)
from remora.policy.delivery.retry import PROBE_ENTRIES, Backoff, Patience, Pauses, ShardFailure, due_in_s, read_limit
from remora.policy.ownership.not_owned import Schemes, reason_to_leave


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_wait_never_exceeds_its_cap_nor_its_doubled_base(failures: int, chance: float) -> None:
    """Full jitter: any wait lies between nothing and the smaller of the cap and the doubled base."""
    delay = Backoff(0.1, 30.0).delay(failures, chance)

    assert 0 <= delay < 30.0
    if failures <= 8:
        assert delay <= 0.1 * 2 ** (failures - 1)


@pytest.mark.parametrize(
    ("elapsed_s", "limited_s", "wait_s", "is_limited", "is_over"),
    [
        (0, 0, 9, False, False),
        (0, 0, 10, False, True),
        (9, 0, 1, False, True),
        (99, 90, 0.5, False, False),
        (99, 90, 1, False, True),
        (0, 0, 100, True, False),
        (0, 0, 101, True, True),
        (95, 90, 10, True, False),
        (95, 90, 11, True, True),
        (100, 90, 1, True, True),
    ],
)
def test_failures_and_limits_are_counted_apart(
    elapsed_s: float, limited_s: float, wait_s: float, is_limited: bool, is_over: bool
) -> None:
    """With 10 s for failures and 100 s for rate limits, neither's waits use up the time of the other."""
    assert Patience(10, 100).is_over(elapsed_s, limited_s, wait_s, is_limited=is_limited) is is_over


def test_waits_grow_until_the_cap() -> None:
    """The bound of the wait doubles with each failure in a row until the cap."""
    bounds = [Backoff(0.1, 1.0).delay(n, 0.5) * 2 for n in range(1, 7)]

    assert bounds == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "failures", "without", "with_1_s", "with_1_h"),
    [
        (ShardFailure.TRANSIENT, 1, 0.05, 1, 3600),
        (ShardFailure.TRANSIENT, 20, 15, 1, 3600),
        (ShardFailure.CONFIGURATION, 1, 5, 1, 3600),
        (ShardFailure.CONFIGURATION, 20, 15, 1, 3600),
        (ShardFailure.FENCED, 1, 0.05, 1, 3600),
        (ShardFailure.FENCED, 20, 15, 15, 3600),
        (ShardFailure.STORE, 20, 15, 15, 15),
        (ShardFailure.DAMAGED, 1, 30, 30, 30),
    ],
)
def test_the_pause_after_a_failure(
    kind: ShardFailure, failures: int, without: float, with_1_s: float, with_1_h: float
) -> None:
    """A topic's retry_sleep_duration is the pause after each failure of its endpoint, shorter or longer than others."""
    pauses = Pauses(Backoff(0.1, 30.0), configuration_recheck_s=5, damage_recheck_s=30)

    assert [pauses.pause_s(kind, failures, 0.5, pace) for pace in (0, 1, 3600)] == [without, with_1_s, with_1_h]


@pytest.mark.parametrize(
    ("attempts", "now", "due"),
    [
        (1, 1000, 60), (1, 1030, 30), (1, 1060, 0), (3, 1170, 10),
        (1, 1500, 0), (1, 900, 60), (100, 1000, 60),
    ],
)  # fmt: skip
def test_a_pace_goes_on_with_a_new_holder(attempts: int, now: float, due: float) -> None:
    """The next attempt is due a pause after the last one that was noted, and after one pause whatever clocks say."""
    assert due_in_s(60, attempts, 1000, now) == due


def test_reading_grows_from_a_probe_to_the_full_listing() -> None:
    """After a failure a probe is read, then eight times as much a round, up to the configured most."""
    assert [read_limit(n, 1024) for n in range(5)] == [PROBE_ENTRIES, 128, 1024, 1024, 1024]
    assert read_limit(0, 4) == 4
    assert read_limit(10**9, 1024) == 1024


def waits(idle: list[float], seconds: float) -> list[list[float]]:
    """How long each of these queues waits between its looks, which find nothing: those of the last `seconds`."""
    looks = Looks()
    made: list[list[float]] = [[] for _ in idle]
    due = [(number * 0.618 % 1.0, number) for number in range(len(idle))]
    heapify(due)
    while due[0][0] < 10 + seconds:
        now, number = due[0]
        wait_s = looks.wait_s(idle[number], now, 0.05, 1.0)
        if now >= 10:
            made[number].append(wait_s)
        heapreplace(due, (now + wait_s, number))
    return made


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=30))
def test_idle_waits_stay_in_bounds(idle: list[float]) -> None:
    """No look into an empty queue comes sooner than the least wait, or later than the longest one."""
    assert all(0.05 <= each <= 1.0 for queue in waits(idle, 1.0) for each in queue)


@pytest.mark.parametrize("queues", [1, 20, 21, 100, 399])
def test_many_quiet_queues_keep_the_budget_of_reads(queues: int) -> None:
    """Queues that all want to be looked at often make no more reads than the budget, and use it up."""
    looks = sum(map(len, waits([0.0] * queues, 10.0))) / 10

    assert looks <= min(queues / 0.05, READS_PER_SECOND) * 1.01
    assert looks >= min(queues / 0.05, READS_PER_SECOND) * 0.97


def test_more_queues_than_reads_wait_no_longer_than_the_longest_wait() -> None:
    """With five times as many queues as the budget has reads a second, each is looked at once in that time."""
    assert {round(each, 6) for queue in waits([0.0] * 2000, 3.0) for each in queue} == {1.0}


def test_quiet_queues_take_little_from_busy_ones() -> None:
    """Beside 190 queues that nothing came into for long, ten that were just busy are looked at at their pace."""
    assert max(each for queue in waits([0.0] * 10 + [600.0] * 190, 10.0)[:10] for each in queue) < 0.06


def test_rings_have_a_budget_of_their_own() -> None:
    """A few looks that rings ask for are made at once, and half of a worker's looks at most are such."""
    looks = Looks()
    waits_s = [looks.rung_s(100.0) for _ in range(100)]

    assert waits_s[:RUNG_AT_ONCE] == [0.0] * RUNG_AT_ONCE
    assert waits_s[-1] == pytest.approx(60 / RUNG_PER_SECOND)
    assert RUNG_PER_SECOND <= READS_PER_SECOND / 2
    assert looks.rung_s(101.0) == 0.0


@pytest.mark.parametrize(
    ("early_s", "waited_s", "expected_s"),
    [(0.0, 1.0, 0.0), (0.0, 1.2, 0.0), (0.0, 0.3, 0.7), (0.7, 1.7, 0.0), (0.7, 1.6, 0.1), (0.7, 0.1, 1.0)],
    ids=["waited", "waited-longer", "rung", "made-up-for", "rung-again", "at-most-one-pause"],
)
def test_what_news_brings_forward(early_s: float, waited_s: float, expected_s: float) -> None:
    """A look that came early makes the next one later by as much, and by one pause at most."""
    assert brought_forward_s(1.0, early_s, waited_s) == pytest.approx(expected_s)


def test_a_busy_queue_is_looked_at_often() -> None:
    """The wait grows with the time that a queue has been empty."""
    assert idle_delay(0.0, 0.05, 1.0) == 0.05
    assert idle_delay(16.0, 0.05, 1.0) == 0.4
    assert idle_delay(600.0, 0.05, 1.0) == 1.0


@given(st.integers(0, 100_000))
def test_shards_are_passivated_sooner_the_more_are_active(active: int) -> None:
    """Few shards stay active for the whole time, many for less, and one more never makes it longer."""
    assert 0 < passivate_after(active + 1) <= passivate_after(active) <= PASSIVATE_AFTER_S
    assert (passivate_after(active) == PASSIVATE_AFTER_S) == (active <= ACTIVE_AT_EASE)


def test_max_retries_allows_one_attempt_more() -> None:
    """max_retries = n means n + 1 attempts, and 0 means without limit."""
    assert [LifetimeLimits(max_retries=2).is_exhausted(n) for n in range(5)] == [False, False, False, True, True]
    assert not LifetimeLimits().is_exhausted(10**9)


def test_a_time_to_live_of_nothing_never_expires() -> None:
    """Entries expire only under an explicit time_to_live."""
    assert LifetimeLimits().expires_before_ns(10**18) == 0
    assert LifetimeLimits(time_to_live_s=2).expires_before_ns(10**18) == 10**18 - 2_000_000_000


def topic(uri: str) -> Topic:
    return Topic("t", "", "t", Target(uri, "", "t"))


def test_only_kafka_topics_are_taken() -> None:
    """Queues of other schemes, without an endpoint, and of unknown topics stay with radosgw, each with its reason."""
    assert reason_to_leave(topic("kafka://b:9092"), Schemes(frozenset({"kafka"}))) is None
    assert "http endpoints stay" in str(reason_to_leave(topic("http://h/"), Schemes(frozenset({"kafka"}))))
    assert "no push-endpoint" in str(reason_to_leave(topic(""), Schemes(frozenset({"kafka"}))))
    assert "unknown" in str(reason_to_leave(None, Schemes(frozenset({"kafka"}))))


@pytest.mark.parametrize(
    ("uri", "origin", "of_radosgw", "why"),
    [
        ("http://h/", Origin.RADOSGW, {"kafka"}, "http is not among ownership.schemes"),
        ("https://h/", Origin.RADOSGW, {"kafka", "http"}, "https is not among ownership.schemes"),
        ("HTTP://h/", Origin.RADOSGW, {"kafka", "http"}, None),
        ("http://h/", Origin.REMORA, {"kafka"}, None),
        ("http://h/", Origin.REMORA, set(), None),
        ("kafka://h", Origin.RADOSGW, set(), "kafka is not among ownership.schemes"),
        ("ftp://h/", Origin.RADOSGW, {"kafka", "ftp"}, "ftp endpoints stay with radosgw"),
        ("ftp://h/", Origin.REMORA, {"kafka"}, "ftp endpoints stay with radosgw"),
    ],
)
def test_what_is_taken_over_is_the_operators_choice(
    uri: str, origin: Origin, of_radosgw: set[str], why: str | None
) -> None:
    """Of radosgw's topics only those are taken whose scheme is listed; in remora's own every built-in scheme works."""
    schemes = Schemes(frozenset({"kafka", "http", "https"}), frozenset(of_radosgw))

    said = reason_to_leave(replace(topic(uri), origin=origin), schemes)

    assert said is None if why is None else why in str(said)
