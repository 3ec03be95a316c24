"""Which entries are put straight where they settle."""

from __future__ import annotations

import pytest

from remora.policy.ingest.group_commit import LARGE_BYTES, settles_at_once

KEPT = 6 << 20


@pytest.mark.parametrize(
    ("nbytes", "waiting_bytes", "expected"),
    [
        (LARGE_BYTES, KEPT + 1, True),
        (LARGE_BYTES, KEPT, False),
        (LARGE_BYTES - 1, KEPT + 1, False),
        (560, 1 << 30, False),
        (2 << 20, 2 << 20, False),
        (8 << 20, 8 << 20, True),
    ],
    ids=["a large part of a backlog", "delivered in time", "a small part", "one event", "alone", "too much alone"],
)
def test_a_large_part_of_a_backlog_settles_at_once(nbytes: int, waiting_bytes: int, expected: bool) -> None:
    """What takes no more pages in its queue's own place goes there when the log would not keep it until its turn; what
    is small, or delivered in time, goes into the log."""
    assert settles_at_once(nbytes, waiting_bytes, KEPT) is expected
