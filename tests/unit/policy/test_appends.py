"""What follows a write of an append, by its outcome: a table."""

from __future__ import annotations

import pytest

from remora.model.errors import StoreError, StoreFull, StoreUnavailable
from remora.model.log import Cell, LogRefused, LogUnknown, PositionTaken, PositionTrimmed, StaleEpoch
from remora.policy.logs.appends import Next, after_fill, after_look, after_write

STALE, TAKEN, TRIMMED = StaleEpoch(""), PositionTaken(""), PositionTrimmed("")
AWAY, FULL, UNKNOWN, REFUSED = StoreUnavailable(""), StoreFull(""), LogUnknown(""), LogRefused("")


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (None, Next.DONE), (STALE, Next.ANEW), (TAKEN, Next.ANEW), (TRIMMED, Next.ANEW),
        (AWAY, Next.FIND_OUT), (FULL, Next.AGAIN), (UNKNOWN, Next.FAIL), (REFUSED, Next.FAIL),
    ],
)  # fmt: skip
def test_after_write(error: StoreError | None, step: Next) -> None:
    """A write that was refused is made anew, one that found no room again, one without an answer is looked into, and no
    other error is hidden."""
    assert after_write(error) is step


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (None, Next.ANEW), (STALE, Next.LOOK), (TAKEN, Next.LOOK), (TRIMMED, Next.UNCLEAR),
        (AWAY, Next.FIND_OUT), (FULL, Next.FIND_OUT), (UNKNOWN, Next.FAIL),
    ],
)  # fmt: skip
def test_after_fill(error: StoreError | None, step: Next) -> None:
    """A fill that lands keeps the append from landing; one that is refused has the position looked at."""
    assert after_fill(error) is step


@pytest.mark.parametrize("same_epoch", [False, True])
@pytest.mark.parametrize("is_ours", [False, True])
@pytest.mark.parametrize("cell", list(Cell))
def test_after_look(cell: Cell, is_ours: bool, same_epoch: bool) -> None:
    """Only the append's own bytes, in the epoch of its position, say that it landed; anything else says that it never
    will, but for these bytes in a later epoch and for what was trimmed, which say neither."""
    step = after_look(cell, is_ours=is_ours, same_epoch=same_epoch)

    if cell is Cell.DATA and is_ours:
        assert step is (Next.DONE if same_epoch else Next.UNCLEAR)
    else:
        assert step is (Next.UNCLEAR if cell is Cell.TRIMMED else Next.ANEW)
