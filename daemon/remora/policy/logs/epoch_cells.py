"""Which cells of the shared memory an epoch may have: never one that a process may still take for an earlier epoch's.

A worker that stands still between two steps goes on with the cell that it knew. Were that another epoch's by then, it
would hand out positions of the new epoch under the old one. So a cell is free again once every worker that was told of
it has forgotten it or has ended.
"""

from __future__ import annotations

from collections.abc import Iterable


class EpochCells:
    """The cells by their numbers."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._awaited: dict[int, set[int]] = {}

    @property
    def free(self) -> int:
        """How many an epoch may have now."""
        return len(self._free)

    def take(self) -> int:
        """A cell for an epoch; there must be a free one."""
        return self._free.pop()

    def end(self, cell: int, workers: Iterable[int]) -> None:
        """The epoch of a cell is over; these workers know the cell."""
        self._awaited[cell] = set(workers)
        self._look(cell)

    def forgotten(self, cell: int, worker: int) -> None:
        """A worker knows nothing of a cell any more."""
        if cell in self._awaited:
            self._awaited[cell].discard(worker)
            self._look(cell)

    def ended(self, worker: int) -> None:
        """A worker has ended, and with it all that it knew."""
        for cell in list(self._awaited):
            self.forgotten(cell, worker)

    def _look(self, cell: int) -> None:
        if not self._awaited[cell]:
            del self._awaited[cell]
            self._free.append(cell)
