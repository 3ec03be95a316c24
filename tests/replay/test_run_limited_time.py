"""The time in which requests of a task waited for rate limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remora_pipeline.replay.run.limited_time import MOST_SPANS, LimitedTime


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_a_moment_counts_once_however_many_wait(waits: list[tuple[int, int]], from_us: int, length_us: int) -> None:
    """What lies within are the microseconds in which at least one request waited, also one that still does."""
    spans = [(begin, begin + length) for begin, length in waits]
    to_us = from_us + length_us
    steps = sorted([(begin, 0) for begin, _ in spans] + [(end, 1) for _, end in spans])
    limited = LimitedTime()
    for at_us, ends in steps:
        if at_us <= to_us:
            (limited.end if ends else limited.begin)(at_us)

    moments = {us for begin, end in spans for us in range(max(begin, from_us), min(end, to_us))}
    assert limited.within(from_us, to_us) == len(moments)


def test_what_lies_far_back_is_forgotten() -> None:
    """It counts as the generator's own lateness, so that memory stays bounded."""
    limited = LimitedTime()
    for number in range(MOST_SPANS + 1):
        limited.begin(10 * number)
        limited.end(10 * number + 1)

    assert limited.within(0, 5) == 0
    assert limited.within(0, 10 * MOST_SPANS + 5) == MOST_SPANS
