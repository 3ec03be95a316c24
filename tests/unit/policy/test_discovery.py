"""When a change that a store tells of is read."""

from __future__ import annotations

import pytest

from remora.policy.discovery import AT_ONCE, EVERY_S, EarlyReadings


@pytest.mark.parametrize(
    ("told_at", "waits_s"),
    [
        pytest.param([0.0], [0], id="a change is read at once"),
        pytest.param([0.0] * 5, [0, 0, 0, 0, 0.5], id="four at once, and then two a second"),
        pytest.param([0.0, 0.1, 0.6, 0.7, 0.8], [0, 0, 0, 0, 0], id="the steps of a change of shards"),
        pytest.param([0.0] * 4 + [1.0] * 3, [0, 0, 0, 0, 0, 0, 0.5], id="a second gives two readings back"),
        pytest.param([0.0] * 4 + [60.0] * 5, [0] * 8 + [0.5], id="a minute gives four back and no more"),
        pytest.param([0.0] * 9, [0] * 4 + [0.5] * 5, id="who is told all the time never waits for longer"),
    ],
)
def test_when_a_change_is_read(told_at: list[float], waits_s: list[float]) -> None:
    """A change is read at once, unless there were many a moment ago."""
    readings = EarlyReadings()

    assert [readings.wait_s(now) for now in told_at] == pytest.approx(waits_s)


def test_a_store_that_tells_without_end_is_read_twice_a_second() -> None:
    """However often changes are told, readings follow each other by half a second in the long run."""
    readings, now, times = EarlyReadings(), 0.0, 0

    while now < 100:
        now += readings.wait_s(now) + 0.001
        times += 1

    assert times == pytest.approx(100 / EVERY_S + AT_ONCE, abs=2)
