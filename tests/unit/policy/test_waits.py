"""Waits in log-linear buckets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remora.policy.shaping.credit_flows import MOST_US, WaitCounts, bound_us, bucket_of_us

TIMES = st.integers(0, MOST_US)


@given(TIMES)
def test_a_bucket_is_narrow(time_us: int) -> None:
    """A time does not exceed the bound of its bucket, by less than an eighth; below 16 us each has its own."""
    bound = bound_us(bucket_of_us(time_us))

    assert time_us <= bound <= max(time_us, time_us * 9 / 8)
    assert bound == time_us or time_us >= 16


@given(TIMES, TIMES)
def test_buckets_are_in_the_order_of_times(a: int, b: int) -> None:
    """Of two times the longer one is in no lower bucket, and there are some hundred of them."""
    assert (bucket_of_us(a) <= bucket_of_us(b)) == (a <= b or bucket_of_us(a) == bucket_of_us(b))
    assert bucket_of_us(MOST_US) < 256


@given(st.lists(TIMES, min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_that_of_the_times(times: list[int], part: float) -> None:
    """It is the bound of the bucket of the time that so many do not exceed."""
    counts = WaitCounts()
    for each in times:
        counts.add(each)

    found = counts.quantile_us(part)

    assert found is not None
    assert sum(each <= found for each in times) >= part * len(times) - 1e-6
    assert counts.quantile_us(1.0) == bound_us(bucket_of_us(max(times)))


def test_what_is_out_of_range_counts_at_its_end() -> None:
    """A wait below nothing, which a clock that was set makes, is none; one above an hour is an hour."""
    counts = WaitCounts()
    counts.add(-5)
    counts.add(10 * MOST_US)

    assert counts.quantile_us(0.5) == 0
    assert counts.quantile_us(1.0) == MOST_US
    assert WaitCounts().quantile_us(0.5) is None
