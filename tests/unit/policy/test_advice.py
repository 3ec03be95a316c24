"""How many shards a topic would take: for what is watched, and for the last days."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.model.peaks import KEPT_HOURS, HourPeak, merged
from remora.model.topic import MOST_SHARDS
from remora.policy.queues.advice import Advice, History, Peak, ShardBounds, advise

MOST = Peak(30_000, 100_000_000)
NOW = 494_000
HOURS = st.builds(
    HourPeak,
    st.integers(NOW + 1 - KEPT_HOURS, NOW),
    st.integers(1, MOST_SHARDS),
    st.integers(0, 200_000) | st.integers(0, 300),
    st.integers(0, 10**9) | st.integers(0, 10**6),
)
HISTORIES = st.builds(
    lambda hours, days: History(NOW, merged(*hours, *(HourPeak(NOW - 24 * day, 1, 0, 0) for day in range(days)))),
    st.lists(HOURS, max_size=3),
    st.integers(0, 7),
)
PEAKS = st.lists(st.builds(Peak, st.integers(0, 200_000), st.integers(0, 10**9)), max_size=1)
BOUNDS = st.builds(
    ShardBounds, st.just(MOST), st.integers(1, MOST_SHARDS) | st.integers(1, 16), st.sampled_from([0.0, 0.001, 0.02])
)


def days(*peaks: int, shards: int = 64) -> History:
    """A history of one hour a day, newest first, in which the busiest of so many shards had these events a second."""
    return History(NOW, [HourPeak(NOW - 24 * day, shards, events, 0) for day, events in enumerate(peaks)])


@pytest.mark.parametrize(
    ("shards", "watched", "history", "fewest", "commit_s", "advised"),
    [
        # now
        (11, 30_000, days(), 1, 0, Advice(11)),
        (11, 30_001, days(), 1, 0, Advice(23, "events")),
        (1024, 30_001, days(), 1, 0, Advice(1024, "events")),
        # within the week, by what as many shards would have had
        (64, 0, days(0, 0, 0, 0, 0, 0, 45_000), 1, 0, Advice(192, "events")),
        (64, 0, days(0, 0, 0, 0, 0, 0, 0, 45_000), 1, 0, Advice(64)),
        (192, 0, days(45_000), 1, 0, Advice(192)),
        (32, 0, days(20_000), 1, 0, Advice(86, "events")),
        # fewer, by all days that are kept, of which the week must be known
        (64, 0, days(*[10] * 6), 1, 0, Advice(64)),
        (64, 0, days(*[10] * 7), 1, 0, Advice(1, "quiet")),
        (64, 0, days(*[10] * 7), 11, 0, Advice(11, "quiet")),
        (21, 0, days(*[10] * 7, shards=21), 11, 0, Advice(21)),
        (22, 0, days(*[10] * 7, shards=22), 11, 0, Advice(11, "quiet")),
        (64, 0, days(*[10] * 7, 7500), 1, 0, Advice(32, "quiet")),
        (64, 0, days(*[10] * 7, 7501), 1, 0, Advice(64)),
        (64, 7500, days(*[10] * 7), 1, 0, Advice(32, "quiet")),
        # as many as single requests need: 8 x requests x latency
        (64, 0, days(*[50] * 7), 1, 0.005, Advice(64)),
        (64, 0, days(*[50] * 7), 1, 0.001, Advice(26, "quiet")),
        (1, 0, days(*[0] * 30, shards=1), 1, 0, Advice(1)),
    ],
)
def test_what_is_advised(
    shards: int, watched: int, history: History, fewest: int, commit_s: float, advised: Advice
) -> None:
    """The number follows from the hottest shard, now and in the days that are known."""
    assert advise(shards, [Peak(watched, 0)], ShardBounds(MOST, fewest, commit_s), history) == advised


def test_bytes_are_a_reason_of_their_own() -> None:
    """The larger of the two ratios decides, and is named."""
    assert advise(4, [Peak(40_000, 250_000_000)], ShardBounds(MOST)) == Advice(20, "bytes")
    assert advise(4, [Peak(75_000, 250_000_000)], ShardBounds(MOST)) == Advice(20, "events")


@settings(max_examples=60)
@given(shards=st.integers(1, MOST_SHARDS), peaks=PEAKS, bounds=BOUNDS, history=HISTORIES)
def test_whoever_follows_the_advice_is_given_none(
    shards: int, peaks: list[Peak], bounds: ShardBounds, history: History
) -> None:
    """The number lies between 1 and the most; busy topics get more shards and quiet ones half as many at most; with
    that number the same load is in no need of another one, unless there can be no more shards."""
    found = advise(shards, peaks, bounds, history)

    assert 1 <= found.shards <= MOST_SHARDS
    if found.because in ("events", "bytes"):
        assert found.shards > shards or shards == MOST_SHARDS
    elif found.because:
        assert bounds.fewest <= found.shards <= shards / 2
    else:
        assert found.shards == shards
    part = Fraction(shards, found.shards)
    after = [Peak(each.events * part, each.bytes * part) for each in peaks]
    if found.shards < MOST_SHARDS:
        assert not found.because or advise(found.shards, after, bounds, history) == Advice(found.shards)


@given(shards=st.integers(1, 2_000), events=st.integers(0, 10**7) | st.floats(0, 1e7))
def test_advice_halves_the_hottest(shards: int, events: float) -> None:
    """With the advised shards the hottest one is at half of its limit at most, unless that takes too many."""
    found = advise(shards, [Peak(events, 0)], ShardBounds(Peak(30_000, 1)))

    assert found.shards >= shards
    assert bool(found.because) == (events > 30_000)
    if found.because and found.shards < MOST_SHARDS:
        assert events * shards <= found.shards * 15_000


def test_a_day_is_24_hours() -> None:
    """Days count back from this hour; an hour of a clock that was ahead counts as now; rows of other numbers of shards
    are compared as the present number would have had them."""
    before = HourPeak(NOW - 24, 8, 40_000, 0)
    history = History(NOW, [HourPeak(NOW + 5, 4, 60_000, 0), HourPeak(NOW - 23, 4, 1, 0), before])

    assert set(history.days(4)) == {0, 1}
    assert (history.week(4, MOST), history.week(16, MOST)) == ((2, 2), (2, 0))
    assert history.busiest(MOST, 7) == before
    assert history.busiest(MOST, 1) == HourPeak(NOW + 5, 4, 60_000, 0)
    assert (History().busiest(MOST, 7), History().week(3, MOST)) == (None, (0, 0))


def test_peaks_of_an_hour_merge() -> None:
    """Of the same hour and number of shards one is left, with the higher figures; others stay, in order."""
    low, high, other = HourPeak(NOW, 3, 5, 90), HourPeak(NOW, 3, 9, 50), HourPeak(NOW, 6, 1, 1)

    assert merged(other, low, high) == (HourPeak(NOW, 3, 9, 90), other)
    assert low.day == NOW // 24
