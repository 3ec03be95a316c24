"""The budget of things per second that pauses are computed from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.gcra import CellRate


def test_a_budget_that_is_not_used_is_not_saved_up() -> None:
    """After any quiet time one thing overdraws the budget by its own cost."""
    rate = CellRate()

    assert [rate.charge(0.5, now) for now in (0.0, 0.25, 100.0)] == [0.5, 0.75, 0.5]


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 1)), min_size=1, max_size=30), st.floats(0.01, 3))
def test_who_waits_as_long_keeps_the_rate(charges: list[tuple[float, float]], most_s: float) -> None:
    """The overdraft is all that was charged since the budget was last even, and never more than its bound."""
    rate, bounded, now, owed, owed_at_most = CellRate(), CellRate(), 0.0, 0.0, 0.0

    for quiet_s, cost_s in charges:
        now += quiet_s
        owed = max(0.0, owed - quiet_s) + cost_s
        owed_at_most = min(most_s, max(0.0, owed_at_most - quiet_s) + cost_s)

        assert rate.charge(cost_s, now) == pytest.approx(owed, abs=1e-9)
        assert bounded.charge(cost_s, now, most_s) == pytest.approx(owed_at_most, abs=1e-9)
