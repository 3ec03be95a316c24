"""Positions from cells of shared memory: several cores hand out one epoch, and a fence ends it for all of them."""

from __future__ import annotations

import mmap
from typing import Any

import pytest

from remora.codec import speedups
from remora.codec.sequencer import INIT_LOG, Result, reply
from remora.model.log import MOST_POSITION
from support.sequencer import FAR, LOG

pytestmark = pytest.mark.skipif(speedups.SequencerCells is None, reason="the codec is not compiled")

EPOCH, CELL = 3, 5


def frame(body: str) -> bytes:
    """A request for LOG with these fields behind its names."""
    names = b"\x12%c%b\x1a%c%b" % (len(LOG.pool), LOG.pool, len(LOG.name), LOG.name)
    made = b"\x08%c" % EPOCH + names + bytes.fromhex(body)
    return len(made).to_bytes(4, "big") + made


NEXT, TAIL = frame("2001"), frame("2000")


class Shared:
    """A cell, and two cores that take positions from it, each with what it missed."""

    def __init__(self, position: int = 0, bound: int = FAR, trusted_s: float = 3600) -> None:
        assert speedups.SequencerCells is not None
        memory = mmap.mmap(-1, 64 * 16)
        self.cells = speedups.SequencerCells(memory)
        self.cells.begin(CELL, position, bound)
        self.cells.trust(CELL, trusted_s)
        self.missed: list[Result] = []
        self.cores: list[Any] = [self.core(), self.core()]

    def core(self) -> Any:
        """One more process's core."""
        made: Any = speedups.SequencerCore(lambda _, result: self.missed.append(result), 4096, 2)
        made.share(LOG, EPOCH, self.cells, CELL)
        return made


def test_cores_take_turns() -> None:
    """Each position is handed out by one of the cores, in order, by single requests, ranges and counts alike."""
    shared = Shared()
    one, other = shared.cores

    assert one.answer(NEXT * 2).replies == reply(1) + reply(2)
    assert other.answer(NEXT).replies == reply(3)
    assert one.answer(frame("2001 3805")).replies == reply(4, granted=5)
    assert other.answer(TAIL).replies == reply(8)
    assert other.answer(frame("2001 4001")).replies == reply(9, epoch=EPOCH)
    assert (shared.cells.position(CELL), shared.cells.requests(CELL)) == (9, 5)


def test_a_fence_ends_the_epoch_for_all() -> None:
    """Behind a fence nothing is handed out, by known frames and others, and the fence tells the last position."""
    shared = Shared()
    one, other = shared.cores
    one.answer(NEXT * 3)
    other.answer(NEXT)

    assert shared.cells.fence(CELL) == 4

    for each in (NEXT, TAIL, frame("2001 3805"), frame("2001 2802")):
        assert one.answer(each).replies == other.answer(each).replies == INIT_LOG
    assert set(shared.missed) == {Result.INIT_LOG}
    assert shared.cells.position(CELL) == 4


def test_nothing_is_handed_out_when_trust_is_over() -> None:
    """A cell whose lock is not trusted any more is as one that is dead, until it is trusted again."""
    shared = Shared(trusted_s=-1)

    assert shared.cores[0].answer(NEXT).replies == INIT_LOG
    assert shared.cores[0].answer(TAIL).replies == INIT_LOG
    shared.cells.trust(CELL, 3600)
    assert shared.cores[0].answer(NEXT).replies == reply(1)


def test_a_bound_holds_for_all() -> None:
    """At the bound each core waits and says that it is low, also one that never came near it, and goes on behind it."""
    shared = Shared(bound=3)
    one, other = shared.cores
    assert one.answer(NEXT * 3).replies == reply(1) + reply(2) + reply(3)

    for each in (NEXT, frame("2001 3805")):
        found = other.answer(each)
        assert (found.replies, found.consumed, found.waits) == (b"", 0, LOG)
    assert other.low == one.low == {LOG}

    shared.cells.raise_bound(CELL, 10)
    assert other.answer(NEXT).replies == reply(4)


def test_more_than_a_log_has_left_is_not_waited_for() -> None:
    """At the end of a log, whose bound is never raised, a request for more is answered, one that fits granted."""
    shared = Shared(position=MOST_POSITION - 2, bound=MOST_POSITION)
    one, other = shared.cores

    assert one.answer(frame("2001 2803")).replies == INIT_LOG
    assert other.answer(frame("2001 3805")).replies == reply(MOST_POSITION - 1, granted=2)
    assert one.answer(NEXT).replies == other.answer(NEXT).replies == INIT_LOG


def test_a_cell_beyond_the_memory_is_refused() -> None:
    """A number that is no cell raises IndexError."""
    with pytest.raises(IndexError):
        Shared().cells.fence(16)
