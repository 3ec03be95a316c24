"""What workers want of the budgets that they share, and what each of them has of these."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.shaping.split import MOST_GROUPS, Need, busiest, key_of, rounded_up, shares_of, split

NAMES = st.text("abcdef", min_size=1, max_size=4)
WANTED = st.none() | st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("grants", "now", "want"),
    [
        ([], 100.0, 0),
        ([(100.0, 4_000)], 100.0, 1_024),
        ([(100.2, 2_000), (100.9, 2_000)], 104.9, 1_024),
        ([(100.2, 2_000), (100.9, 2_000)], 105.0, 0),
        ([(100.0, 4_000), (101.0, 8_000), (104.0, 4_000)], 104.5, 4_096),
        ([(100.0, 4_000), (101.0, 8_000), (104.0, 4_000)], 105.0, 3_072),
        ([(100.0, 1)], 100.0, 0),
    ],
)
def test_a_worker_wants_a_quarter_more_than_it_was_granted(
    grants: list[tuple[float, int]], now: float, want: int
) -> None:
    """It wants the bytes per second of the last five seconds and a quarter more, rounded up to three binary digits."""
    need = Need()
    for at, nbytes in grants:
        need.grant(nbytes, at)

    assert need.want(now) == want


def test_a_worker_in_which_somebody_waits_wants_all() -> None:
    """For a second after somebody waited it wants all that it can have, and then what it was granted."""
    need = Need()
    need.grant(4_000, 100.0)
    need.wait(100.5)

    assert [need.want(at) for at in (100.5, 101.5, 101.6)] == [None, None, 1_024]


@given(st.integers(0, 10**12))
def test_a_want_is_rounded_up_by_less_than_a_quarter(want: int) -> None:
    """No want is rounded down, and none by a quarter or more of itself."""
    assert want <= rounded_up(want)
    assert 4 * (rounded_up(want) - want) < max(1, want)
    assert rounded_up(rounded_up(want)) == rounded_up(want)


@given(st.dictionaries(st.text(max_size=5), WANTED, max_size=100))
def test_the_busiest_groups_are_named_first(wants: dict[str, int | None]) -> None:
    """At most 64 groups are named, none of which nothing is wanted, and no other one has more wanted of it."""
    named = busiest(wants)

    assert len(named) == min(MOST_GROUPS, sum(want != 0 for want in wants.values()))
    amounts = [float("inf") if want is None else want for _, want in named]
    assert amounts == sorted(amounts, reverse=True)
    left = [want for group, want in wants.items() if group not in dict(named)]
    assert not left or not amounts or max(float("inf") if want is None else want for want in left) <= amounts[-1]


@given(
    st.dictionaries(NAMES, st.integers(0, 10**9), min_size=1, max_size=5),
    st.dictionaries(NAMES, st.dictionaries(NAMES, WANTED, max_size=5), min_size=1, max_size=8),
)
def test_all_workers_find_shares_that_add_up(limits: dict[str, int], wants: dict[str, dict[str, int | None]]) -> None:
    """Each worker computes its own share from the same rows, as `split` has it, and together they are the limit."""
    rows = {name: tuple((key_of(group), want) for group, want in each.items()) for name, each in wants.items()}

    shares = {name: shares_of(name, limits, rows) for name in rows}

    for group, limit in limits.items():
        expected = split(limit, {name: each.get(group, 0) for name, each in wants.items()})
        assert {name: each[group] for name, each in shares.items()} == expected
        assert sum(expected.values()) == limit
