"""When tokens and sessions are renewed."""

from __future__ import annotations

import pytest

from remora.policy.delivery.tokens import TokenTimes, renewal_s


def test_a_token_is_renewed_before_it_ends() -> None:
    """A token is renewed after four fifths of its life, which is counted from before it was asked for."""
    times = TokenTimes.of(1000.0, 300.0)

    assert (times.renew_at, times.ends_at) == (1240.0, 1300.0)


@pytest.mark.parametrize(
    ("session_s", "after_s"),
    [(0.0, None), (0.5, None), (1.0, None), (1.1, 1.0), (2.0, 1.7), (100.0, 85.0)],
)
def test_sessions(session_s: float, after_s: float | None) -> None:
    """A session is renewed before its end, and not within the second in which a broker refuses it."""
    assert renewal_s(session_s) == after_s
