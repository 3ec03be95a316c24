"""When a queue that had little is looked into again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remora.policy.pace import BURST_S, LONGEST_S, PARCELS_PER_SECOND, Pace


def test_few_parcels_never_wait() -> None:
    """As long as parcels stay within the budget nobody waits, also after hours."""
    pace = Pace()

    assert [pace.pause_s(1, second / 100) for second in range(10_000)] == [0.0] * 10_000


def test_many_parcels_wait_for_the_budget() -> None:
    """What goes beyond the budget and its burst is waited for, and quiet makes good for it."""
    pace = Pace()
    burst = int(PARCELS_PER_SECOND * BURST_S)

    assert pace.pause_s(burst, 0.0) == 0.0
    assert round(pace.pause_s(10, 0.0), 6) == 10 / PARCELS_PER_SECOND
    assert pace.pause_s(1, 1.0) == 0.0


@given(st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 1))))
def test_a_pause_is_bounded(steps: list[tuple[int, float]]) -> None:
    """No pause is negative or longer than the bound, whatever happened before."""
    pace, now = Pace(), 0.0
    for parcels, passed in steps:
        now += passed
        assert 0.0 <= pace.pause_s(parcels, now) <= LONGEST_S
