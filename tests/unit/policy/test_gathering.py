"""How long a group of requests waits for others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.policy.ingest.group_commit import MOST_S, Past, wait_s

TABLE = [
    (1, Past(), 0.0),
    (1, Past(1, 0.004), 0.0),
    (2, Past(1, 0.004), 0.0),
    (8, Past(8, 0.004), 0.0),
    (7, Past(8, 0.004), 0.002),
    (1, Past(8, 0.004), 0.002),
    (1, Past(2, 0.0), 0.0),
    (1, Past(2, 3.0), MOST_S),
]


@pytest.mark.parametrize(("joined", "past", "seconds"), TABLE)
def test_wait(joined: int, past: Past, seconds: float) -> None:
    """A group waits for as many as there were before, half as long as they took."""
    assert wait_s(joined, past) == seconds


@given(st.integers(1, 1024), st.integers(0, 1024), st.floats(0, 1e6))
def test_a_wait_is_short(joined: int, before: int, seconds: float) -> None:
    """No wait is longer than the bound or half of the transaction before, and none begins where as many have come."""
    found = wait_s(joined, Past(before, seconds))

    assert 0 <= found <= min(MOST_S, seconds / 2)
    assert not (found and joined >= before)
