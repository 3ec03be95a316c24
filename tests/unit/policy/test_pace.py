"""When a queue that had little, or the catalogue, is looked into again; the budget that pauses are computed from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.delivery.pace import (
    BURST_S,
    GAP_S,
    LEAST_PER_SECOND,
    LONGEST_S,
    MOST_PER_SECOND,
    READ_EVERY_S,
    READS_AT_ONCE,
    UNDER_WAY,
    CellRate,
    EarlyReadings,
    Pace,
    most_per_second,
    part_wait_s,
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

    assert times == pytest.approx(100 / READ_EVERY_S + READS_AT_ONCE, abs=2)


@pytest.mark.parametrize(
    ("is_told", "before", "pause_s"),
    [
        (True, 0, GAP_S),  # as little as there is
        (False, 0, 0.0),  # nobody tells when it is worth a look: the queue has to be looked into
        (True, 10_000, LONGEST_S),  # the budget is overdrawn by more
    ],
)
def test_a_queue_that_is_told_of_is_left_to_itself_for_a_moment(is_told: bool, before: int, pause_s: float) -> None:
    """After a short page a queue is left alone for the gap where the store tells of entries, or as the budget asks."""
    pace = Pace()
    pace.pause_s(before, 0.0)

    assert pace.pause_s(1, 0.0, is_told=is_told) == pause_s


@pytest.mark.parametrize(("removal_s", "wanted"), [(0, 0.25), (0.005, 0.25), (0.01, 0.5), (0.02, 1.0), (3, 1.0)])
def test_how_long_part_of_a_page_waits(removal_s: float, wanted: float) -> None:
    """Fifty times as long as a removal took, but a quarter of a second at least, and a second at most."""
    assert part_wait_s(removal_s) == wanted
