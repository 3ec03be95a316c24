"""Service levels: what a text means, what is left of a budget, and how fast it may burn."""

from __future__ import annotations

import pytest

from remora.policy.status.objectives import AGE_BOUNDS_S, Objective, burn_rates, duration_text, parse_objective


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("99% < 5s over 28d", Objective(99, 5, 28)),
        ("  99.95%<250ms over 30d ", Objective(99.95, 0.25, 30)),
        ("95% < 0.5s over 7d", Objective(95, 0.5, 7)),
        ("99% < 60s over 28d", Objective(99, 60, 28)),
        ("99% < 1m over 90d", Objective(99, 60, 90)),
        ("99.9% < 6h over 28d", Objective(99.9, 21600, 28)),
        ("99% < 1d over 28d", Objective(99, 86400, 28)),
    ],
)
def test_a_service_level_is_read(text: str, expected: Objective) -> None:
    """The part, the bound in any unit and the window come out, and its own text means the same."""
    assert parse_objective(text) == expected
    assert parse_objective(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "such as 99% < 5s over 28d"),
        ("99% < 5s", "such as 99% < 5s over 28d"),
        ("99% <= 5s over 28d", "such as"),
        ("99 < 5s over 28d", "such as"),
        ("100% < 5s over 28d", "such as"),
        ("-1% < 5s over 28d", "such as"),
        ("0% < 5s over 28d", "more than 0%"),
        ("99% < 5s over 6d", "7d to 90d"),
        ("99% < 5s over 91d", "7d to 90d"),
        ("99% < 5s over 4w", "such as"),
        ("99% < 1.2.3s over 28d", "a bound such as"),
        ("99% < 3s over 28d", "not counted at 3s; the nearest bounds are 2.5s and 5s"),
        ("99% < 1ms over 28d", "not counted at 1ms; the nearest bounds are 5ms"),
        ("99% < 2m over 28d", "the nearest bounds are 1m and 5m"),
        ("99% < 2d over 28d", "the nearest bounds are 1d"),
    ],
)
def test_what_is_no_service_level_is_refused(text: str, why: str) -> None:
    """The reason says what is expected; a bound that is no bucket is refused with the nearest ones."""
    with pytest.raises(ValueError, match=why.replace("(", r"\(")):
        parse_objective(text)


@pytest.mark.parametrize("bound_s", AGE_BOUNDS_S)
def test_each_bucket_can_be_a_bound(bound_s: float) -> None:
    """A bound that is named as a nearest one is taken."""
    assert parse_objective(f"99% < {duration_text(bound_s)} over 28d").bound_s == bound_s


@pytest.mark.parametrize(
    ("good", "total", "left"), [(0, 0, 1.0), (100, 100, 1.0), (995, 1000, 0.5), (990, 1000, 0.0), (980, 1000, -1.0)]
)
def test_what_is_left_of_a_budget(good: int, total: int, left: float) -> None:
    """Of 1,000 events at 99 % ten may be late: five of them leave half, twenty leave less than nothing."""
    assert Objective(99, 5, 28).left(good, total) == pytest.approx(left)


def test_the_alerts_of_thirty_days_are_the_usual_ones() -> None:
    """The rates over 30 days are those of the workbook: 14.4, 6, 3 and 1 times what uses the budget up evenly."""
    found = [
        (each.long, each.short, round(each.threshold / 0.01, 6), each.severity)
        for each in burn_rates(Objective(99, 5, 30))
    ]

    assert found == [
        ("1h", "5m", 14.4, "critical"), ("6h", "30m", 6, "critical"), ("1d", "2h", 3, "warning"),
        ("3d", "6h", 1, "warning"),
    ]  # fmt: skip


def test_no_alert_asks_for_more_late_events_than_there_are() -> None:
    """Where a tenth may be late, an hour cannot burn 14 times that: the slower alerts are left."""
    assert [each.long for each in burn_rates(Objective(90, 5, 30))] == ["6h", "1d", "3d"]
    assert all(0 < each.threshold < 1 for each in burn_rates(Objective(50, 5, 7)))
