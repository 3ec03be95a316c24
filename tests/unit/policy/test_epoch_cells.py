"""Cells for epochs: none is used again while a worker may know it; and the order of the steps around one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from remora.policy.logs.epoch_cells import EpochCells


def test_a_cell_is_free_again_when_all_have_forgotten_it() -> None:
    """The cell of an epoch that is over is used again once each worker has forgotten it or has ended."""
    cells = EpochCells(1)
    cell = cells.take()
    cells.end(cell, [1, 2, 3])
    cells.forgotten(cell, 1)
    cells.forgotten(cell, 1)
    cells.ended(3)
    assert cells.free == 0

    cells.forgotten(cell, 2)

    assert (cells.free, cells.take()) == (1, cell)


def test_a_cell_that_nobody_knows_is_free_at_once() -> None:
    """Without workers a cell is used again at once, and what is said of another one means nothing."""
    cells = EpochCells(2)
    cell = cells.take()
    cells.forgotten(cell, 7)
    assert cells.free == 1

    cells.end(cell, [])

    assert cells.free == 2


# ------------------------------------------------------------------------------- the steps around a cell


@dataclass(frozen=True)
class World:
    """A cell, what the worker has at hand, what was sent, and the figure that was settled."""

    position: int = 0
    is_dead: bool = False
    taken: int = 0
    gone: bool = False
    sent: tuple[int, ...] = ()
    settled: int = -1


Step = Callable[[World], World]


@dataclass
class Steps:
    """What a worker and the process that fences do, in order; a worker that was told that the epoch is over stops."""

    worker: list[Step] = field(
        default_factory=lambda: [
            lambda w: replace(w, gone=w.is_dead),
            lambda w: w if w.gone else replace(w, position=w.position + 1, taken=w.position + 1),
            lambda w: replace(w, gone=w.gone or w.is_dead),
            lambda w: w if w.gone else replace(w, sent=(*w.sent, w.taken)),
        ]
    )
    fence: list[Step] = field(
        default_factory=lambda: [lambda w: replace(w, is_dead=True), lambda w: replace(w, settled=w.position)]
    )


def worlds(steps: Steps) -> Iterator[World]:
    """What comes of each order of the steps of a worker that answers twice and of one fence: each step of one falls
    between any two of the other, as when that one is halted there, or killed for good."""
    yield from _merged([*steps.worker, *steps.worker], steps.fence, World())


def _merged(first: list[Step], second: list[Step], world: World) -> Iterator[World]:
    if not first and not second:
        yield world
    if first:
        yield from _merged(first[1:], second, first[0](world))
    if second:
        yield from _merged(first, second[1:], second[0](world))


def is_broken(world: World) -> bool:
    """Whether a reply was sent that the settled figure does not cover."""
    return any(position > world.settled for position in world.sent)


def test_no_reply_is_above_what_is_settled() -> None:
    """Whatever the order of their steps, a reply is below the figure that is settled, or was thrown away."""
    found = list(worlds(Steps()))

    assert len(found) == 45
    assert not any(map(is_broken, found))
    assert any(world.sent for world in found)


@pytest.mark.parametrize("missing", ["the second look", "the mark before the reading"])
def test_each_step_is_needed(missing: str) -> None:
    """Without the second look, or where the figure is read before the cell is marked dead, some order breaks that."""
    steps = Steps()
    if missing == "the second look":
        del steps.worker[2]
    else:
        steps.fence.reverse()

    assert any(map(is_broken, worlds(steps)))
