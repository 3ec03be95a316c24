"""When a queue that had little is looked into again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.pace import (
    BURST_S,
    LEAST_PER_SECOND,
    LONGEST_S,
    MOST_PER_SECOND,
    UNDER_WAY,
    Pace,
    most_per_second,
)


def after(ack_s: float, *, most_per_second: float = MOST_PER_SECOND) -> Pace:
    """A pace that has known nothing but acknowledgements of this time for long."""
    pace = Pace(most_per_second)
    for _ in range(1000):
        pace.acknowledged(ack_s)
    return pace


def test_few_batches_never_wait() -> None:
    """As long as batches stay within the least budget nobody waits, also after hours and with slow brokers."""
    pace = after(10.0)

    assert [pace.pause_s(1, second / 100) for second in range(10_000)] == [0.0] * 10_000


def test_many_batches_wait_for_the_budget() -> None:
    """What goes beyond the budget and its burst is waited for, and quiet makes good for it."""
    pace = Pace(LEAST_PER_SECOND)
    burst = int(LEAST_PER_SECOND * BURST_S)

    assert pace.pause_s(burst, 0.0) == 0.0
    assert round(pace.pause_s(10, 0.0), 6) == 10 / LEAST_PER_SECOND
    assert pace.pause_s(1, 1.0) == 0.0


def test_the_budget_keeps_the_batches_under_way() -> None:
    """Acknowledgements that take four times as long leave a fourth of the budget, within its bounds."""
    assert round(after(0.004).per_second) == round(4 * after(0.016).per_second) == round(UNDER_WAY / 0.004)
    assert after(2.0).per_second == LEAST_PER_SECOND
    assert after(0.0).per_second == MOST_PER_SECOND
    assert after(0.0, most_per_second=700.0).per_second == 700.0


def test_one_late_acknowledgement_changes_little() -> None:
    """A single one that was four times as late as all others takes less than a tenth of the budget."""
    pace = after(0.004)
    before = pace.per_second

    pace.acknowledged(0.016)

    assert 0.9 * before < pace.per_second < before


@given(st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 1), st.floats(0, 1000))))
def test_a_pause_is_bounded(steps: list[tuple[int, float, float]]) -> None:
    """No pause is negative or longer than the bound, whatever happened before."""
    pace, now = Pace(), 0.0
    for batches, passed, ack_s in steps:
        now += passed
        pace.acknowledged(ack_s)
        assert 0.0 <= pace.pause_s(batches, now) <= LONGEST_S


@pytest.mark.parametrize(
    ("poll_cost_s", "most"), [(0.0, MOST_PER_SECOND), (0.00005, MOST_PER_SECOND), (0.0003, LEAST_PER_SECOND)]
)
def test_a_look_that_costs_a_server_time(poll_cost_s: float, most: float) -> None:
    """The budget is small where a server answers each look, and large where this host does in microseconds."""
    assert most_per_second(poll_cost_s) == most
