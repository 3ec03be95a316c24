from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remora.model.log import LogName
from remora.policy.logs.sequence import LogShares

STEPS = st.lists(st.tuples(st.sampled_from(["admit", "drop"]), st.integers(0, 9), st.integers(0, 3)), max_size=80)


def log(number: int) -> LogName:
    return LogName(b"pool", b"%d" % number)


def test_a_client_has_its_share_and_others_theirs() -> None:
    """Beyond its share a client's logs are not counted; another's still are, and the first's when one was dropped."""
    shares = LogShares(most=4, most_of_one=2)

    assert [shares.admit(log(number), 1) for number in (1, 2, 3)] == [True, True, False]
    assert shares.admit(log(3), 2)
    shares.drop(log(1))
    assert shares.admit(log(4), 1)


@given(STEPS)
def test_what_is_counted_stays_within_both_bounds(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is asked for and dropped: a log is refused exactly when its client's share or the room is used up."""
    shares, held = LogShares(most=5, most_of_one=3), dict[int, int]()
    for step, number, client in steps:
        if step == "drop":
            shares.drop(log(number))
            held.pop(number, None)
            continue
        fits = len(held) < 5 and list(held.values()).count(client) < 3
        assert shares.admit(log(number), client) == (number in held or fits)
        if fits:
            held.setdefault(number, client)
