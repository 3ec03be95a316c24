"""How runs and the ring of a queue are one queue: where it begins, what is read next, and what a removal takes. Pure.

Runs come first, in order; each holds entries that stood behind each other in the ring. Between a run and what follows
there is a gap where somebody who knows nothing of runs removed from the ring meanwhile, as a radosgw does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from remora.model.position import Position
from remora.model.spill import NO_SPILL, Cut, Spill, SpilledRun


def logical_front(spill: Spill, ring_front: Position) -> Position:
    """Where the oldest entry stands."""
    return spill.front if spill.entries else ring_front


def run_from(runs: Sequence[SpilledRun], at: Position) -> int:
    """The index of the first run that has something at this position or behind it; that of none behind the last."""
    return bisect_right(runs, at, key=lambda run: run.end)


def next_start(runs: Sequence[SpilledRun], index: int, ring_front: Position) -> Position:
    """Where the entry behind a run begins: at the next run, else in the ring."""
    return runs[index + 1].first if index + 1 < len(runs) else ring_front


def cut(
    runs: Sequence[SpilledRun],
    spill: Spill,
    ring_front: Position,
    removal: tuple[Position, int],
    between: Callable[[Position, Position], int],
) -> Cut:
    """What the removal of all entries before a position takes, which are so many.

    `between` tells how many bytes of the ring lie between two positions. Raises ValueError for a count that cannot be.
    """
    end, count = removal
    index = run_from(runs, end)
    gone = runs[:index]
    if index == len(runs):
        takes_ring, ring_entries = end > ring_front, count - spill.entries
        if ring_entries < 0 or (ring_entries > 0) is not takes_ring:
            raise ValueError(f"{count} entries before {end}, and {spill.entries} stand in runs before {ring_front}")
        nbytes = spill.nbytes + (between(ring_front, end) if takes_ring else 0)
        return Cut(gone, NO_SPILL, nbytes, ring_entries, takes_ring)
    if count >= spill.entries:
        raise ValueError(f"{count} entries before {end}, but only {spill.entries} in runs that reach further")
    front = max(end, runs[index].first)  # a gap may lie before it
    taken = [(max(each.first, spill.front), min(each.end, front)) for each in runs[: index + 1]]
    nbytes = sum(between(*each) for each in taken)
    return Cut(gone, Spill(front, spill.nbytes - nbytes, spill.entries - count), nbytes, 0, takes_ring=False)
