from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.ingest.reservations import Sightings

LIMIT_S = 120.0


@pytest.mark.parametrize(
    ("looks", "stale"),
    [
        ([(0, {1})], []),
        ([(0, {1}), (119, {1})], []),
        ([(0, {1}), (120, {1})], [1]),
        ([(1e9, {1})], []),
        ([(0, {1}), (60, {1, 2}), (130, {1, 2})], [1]),
        ([(0, {1}), (60, {1, 2}), (200, {1, 2})], [1, 2]),
        ([(0, {1}), (60, set()), (130, {1})], []),
        ([(0, {1}), (300, {2})], []),
    ],
    ids=[
        "just seen",
        "not yet",
        "as long ago as the limit",
        "late, but for the first time",
        "only the older of two",
        "both, the older first",
        "it had ended in between: another one",
        "another one in its place",
    ],
)
def test_age_counts_from_the_first_sight(looks: list[tuple[float, set[int]]], stale: list[int]) -> None:
    """What was first seen long enough ago, and at each look since, is given up; nothing else is."""
    seen: Sightings[int] = Sightings()
    for now, found in looks:
        seen = seen.after_look(sorted(found), now)

    assert seen.seen_for(LIMIT_S, looks[-1][0]) == stale


@given(
    st.lists(st.tuples(st.floats(0, 100), st.frozensets(st.integers(0, 5))), min_size=1, max_size=20),
    st.dictionaries(st.integers(0, 5), st.floats(0, 2000)),
)
def test_nothing_is_given_up_before_its_time(
    steps: list[tuple[float, frozenset[int]]], made_before: dict[int, float]
) -> None:
    """Whatever is seen when, nothing is given up that has been open for less than the limit by a true clock."""
    seen: Sightings[int] = Sightings()
    now, open_since = 0.0, dict[int, float]()
    for pause, found in steps:
        now += pause
        # By the true clock each one is at least as old as since the look before it was first there.
        open_since = {each: open_since.get(each, now - made_before.get(each, 0.0)) for each in found}
        seen = seen.after_look(found, now)

        given_up = seen.seen_for(LIMIT_S, now)

        assert all(now - open_since[each] >= LIMIT_S for each in given_up)
        assert set(seen.first_seen) == found


@given(st.lists(st.floats(0.1, 30), min_size=1, max_size=50))
def test_what_stays_open_is_given_up_by_the_first_look_after_the_limit(pauses: list[float]) -> None:
    """A worker that looks again and again gives a reservation up at the first look a limit after the first one."""
    seen: Sightings[int] = Sightings()
    seen, now = seen.after_look([7], 0.0), 0.0
    for pause in pauses:
        now += pause
        seen = seen.after_look([7], now)

        assert seen.seen_for(LIMIT_S, now) == ([7] if now >= LIMIT_S else [])
