"""Which requests of a group are stored where a full file has room for some of them."""

from __future__ import annotations

import pytest

from remora.policy.ingest.group_commit import fitting


@pytest.mark.parametrize(
    ("sizes", "left", "found"),
    [
        ([10, 10, 10], 60, [True, True, True]),
        ([10, 10, 10], 59, [True, True, False]),
        ([40, 10, 10], 60, [False, True, True]),  # a large one keeps none behind it from being stored
        ([40, 40], 60, [True, False]),  # one is tried in any case
        ([0, 40], 0, [True, False]),  # what stores nothing
    ],
)
def test_those_that_fit(sizes: list[int], left: int, found: list[bool]) -> None:
    """Those that fit into half of the room, and the first where none does."""
    assert fitting(sizes, left) == found
