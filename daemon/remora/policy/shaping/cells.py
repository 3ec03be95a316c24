"""Credit as numbers that the one who deals it out and those who spend it share, without waiting for each other.

Each cell has one writer, which counts and never sets what another one has counted: a level is what was granted less
what was spent. A level that is read late is too high by what was spent meanwhile, so a deposit can be too small and
never too large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from remora.model.traffic import Priority

PRIORITIES: tuple[str, ...] = tuple(str(each) for each in Priority)

GRANTED, CAPACITY, SPENT, RETURNED = range(4)
"""The cells of a priority of one member: the dealer writes the first two, the member the others."""

CELLS = 4
"""Cells of a priority; those of a member's priorities follow each other in their order."""

ROW = len(PRIORITIES) * CELLS
"""The cells of a member's part of a group."""


class Cells(Protocol):
    """Numbers by place: a list, or memory that several processes see."""

    def __getitem__(self, at: int, /) -> int:
        """The number at a place."""

    def __setitem__(self, at: int, value: int, /) -> None:
        """Sets the number at a place, in one piece."""


class Layout(Protocol):
    """Where a group keeps its cells."""

    @property
    def cells(self) -> Cells:
        """All cells, those of other groups too."""

    @property
    def state(self) -> int:
        """The cell of the group's state: twice how often it was disabled, and 1 while it is enabled."""

    def row(self, member: int) -> int:
        """The first cell of a member that joins as this one."""


class OwnCells:
    """Cells of one group in a list that nobody else sees."""

    def __init__(self) -> None:
        self.cells: list[int] = [0]
        self.state = 0

    def row(self, member: int) -> int:
        """The first of new cells, which are 0."""
        self.cells.extend([0] * ROW)
        return len(self.cells) - ROW


class Purse:
    """Credit of one member for one priority; the level may be negative, which is a debt.

    `taken` is how much of what was returned the dealer has dealt out again.
    """

    __slots__ = ("_cells", "at", "taken")

    def __init__(self, cells: Cells, at: int) -> None:
        """`at` is the first of its cells. It begins with what they hold."""
        self._cells = cells
        self.at = at
        self.taken = 0

    @property
    def level(self) -> int:
        """What may be spent."""
        return self._cells[self.at + GRANTED] - self._cells[self.at + SPENT]

    @property
    def capacity(self) -> int:
        """The most that it holds."""
        return self._cells[self.at + CAPACITY]

    @property
    def returned(self) -> int:
        """What was given back, did not fit, and was not taken yet."""
        return self._cells[self.at + RETURNED] - self.taken

    @property
    def used(self) -> int:
        """What its member spent so far and did not give back."""
        return self._cells[self.at + SPENT] - self._cells[self.at + RETURNED]

    # ---------------------------------------------------------------------------------- by the member

    def charge(self, amount: int) -> None:
        """Takes from any level, however far below 0 it falls."""
        self._cells[self.at + SPENT] += amount

    def release(self, amount: int) -> None:
        """Returns what was charged; what does not fit is kept for others."""
        level = self.level
        fits = max(level, min(level + amount, self.capacity)) - level
        self._cells[self.at + SPENT] -= fits
        self._cells[self.at + RETURNED] += amount - fits

    # ---------------------------------------------------------------------------------- by the dealer

    def set_level(self, level: int) -> None:
        """Grants so much that this is the level."""
        self._cells[self.at + GRANTED] = self._cells[self.at + SPENT] + level

    def set_capacity(self, capacity: int) -> None:
        """Sets the most that it holds; the level stays."""
        self._cells[self.at + CAPACITY] = capacity

    def take_returned(self) -> int:
        """What did not fit when it was given back, once."""
        amount = self.returned
        self.taken += amount
        return amount

    def clear(self) -> None:
        """Begins with neither credit nor debt."""
        self.set_level(0)
        self.take_returned()


class MemberAccount:
    """A member's part of a group: what it may spend, and what it has spent."""

    def __init__(
        self,
        layout: Layout,
        row: int,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """`count` is called with the priority and the bytes of whatever goes, and whether it was charged; `moved` after
        each movement."""
        self._cells = layout.cells
        self._state = layout.state
        self._purses = {priority: Purse(layout.cells, row + i * CELLS) for i, priority in enumerate(PRIORITIES)}
        self._moved = moved

    @property
    def enabled(self) -> bool:
        """Whether the group is shaped now."""
        return bool(self._cells[self._state] & 1)

    @property
    def times_disabled(self) -> int:
        """How often the group was disabled, which forgets all charges."""
        return self._cells[self._state] >> 1

    def level(self, bucket: str) -> int:
        """The member's credit; negative is a debt."""
        return self._purses[bucket].level

    def is_open(self, priority: str) -> bool:
        """Whether a request may pass at once, with no other one waiting before it."""
        return not self.enabled or self._purses[priority].level > 0

    def charge(self, priority: str, amount: int) -> None:
        """Takes from the member's credit, from any level."""
        self._purses[priority].charge(amount)
        self._moved()

    def release(self, priority: str, amount: int) -> None:
        """Returns credit that was charged; what does not fit serves the other members."""
        if self.enabled:
            self._purses[priority].release(amount)
            self._moved()
