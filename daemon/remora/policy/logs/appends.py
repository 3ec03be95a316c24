"""What an appender does after a write of its position, so that each append lands once, or surely never does.

A write whose outcome is unknown may still be carried out. The appender fills its position, in the epoch that it was
handed out in: a position takes one write, so when the fill lands the append never will. Where the position is taken
instead, what stands there tells, as long as the epoch is the same: the position was handed out to nobody else in it.
"""

from __future__ import annotations

from enum import Enum

from remora.model.errors import StoreError, StoreFull
from remora.model.log import Cell, PositionTaken, PositionTrimmed, StaleEpoch


class Next(Enum):
    """What comes after a write, or after an attempt to find out what became of one."""

    DONE = "it landed"
    AGAIN = "it was not carried out: write the position again"
    ANEW = "it never will: take another position"
    FIND_OUT = "its outcome is unknown"
    LOOK = "look at what stands at the position"
    UNCLEAR = "nobody can tell"
    FAIL = "it is refused for good"


def after_write(error: StoreError | None) -> Next:
    """What follows a first write of a position, by its error."""
    if error is None:
        return Next.DONE
    if isinstance(error, StaleEpoch | PositionTaken | PositionTrimmed):  # a reader has filled it, or the epoch is over
        return Next.ANEW
    if isinstance(error, StoreFull):
        return Next.AGAIN
    return Next.FIND_OUT if error.retriable else Next.FAIL


def after_fill(error: StoreError | None) -> Next:
    """What follows the fill of a position whose write has an unknown outcome, by the fill's error."""
    if error is None:
        return Next.ANEW
    if isinstance(error, PositionTaken | StaleEpoch):
        return Next.LOOK
    if isinstance(error, PositionTrimmed):  # it may have landed before
        return Next.UNCLEAR
    return Next.FIND_OUT if error.retriable else Next.FAIL


def after_look(cell: Cell, *, is_ours: bool, same_epoch: bool) -> Next:
    """What follows a look at the position: `is_ours` where these are the append's very bytes, and `same_epoch` where
    the fill was refused in the epoch of the position.

    In a later epoch an unwritten position may be handed out again, and written with the same bytes by somebody else.
    """
    if cell is Cell.TRIMMED:
        return Next.UNCLEAR
    if cell is not Cell.DATA or not is_ours:
        return Next.ANEW
    return Next.DONE if same_epoch else Next.UNCLEAR
