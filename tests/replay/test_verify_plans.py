"""Into how many tasks a verification divides its rows."""

from __future__ import annotations

import pytest

from remora_pipeline.replay.verify.record_frames import tasks


@pytest.mark.parametrize(
    ("rows", "slots", "least", "expected"),
    [
        (3_000, 200, None, 1),
        (50_000, 200, None, 3),
        (50_000, 2, None, 2),
        (10_000_000, 8, None, 34),
        (3_000, 8, 2, 2),
        (10_000_000, 8, 500, 500),
        (0, 8, None, 1),
    ],
)
def test_rows_are_divided_by_their_number(rows: int, slots: int, least: int | None, expected: int) -> None:
    """Few rows make few tasks on a large cluster, many rows make enough, and what somebody set is the least."""
    assert tasks(rows, slots, least) == expected
