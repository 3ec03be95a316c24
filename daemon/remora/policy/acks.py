"""What may be removed from a queue: the contiguous prefix of entries that are done with.

Acks arrive in any order; a queue can only be cut from its front. An entry is done when its record was
acknowledged or its dead letter is stored, and never otherwise. Entries that are done behind one that is not
stay in the queue; they are remembered, so that they are not sent again when the queue is read anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prefix:
    """The oldest `count` entries, all those before position `upto`."""

    upto: bytes
    count: int


class Round:
    """The entries of one listing, each done or not."""

    __slots__ = ("_done", "open", "positions")

    def __init__(self, positions: list[bytes]) -> None:
        """`positions` has one item more than there are entries, as in a Listing."""
        self.positions = positions
        self._done = bytearray(len(positions) - 1)
        self.open = len(self._done)

    def finish(self, ordinals: Iterable[int]) -> None:
        """Mark entries as done, by their place in the listing. Each entry is finished once."""
        done = self._done
        for ordinal in ordinals:
            if done[ordinal]:
                raise ValueError(f"entry {ordinal} of this round was finished before")
            done[ordinal] = 1
            self.open -= 1

    def done_ahead(self) -> int:
        """How many entries at the front of this round are done."""
        if not self.open:
            return len(self._done)
        return self._done.index(0)

    def done_positions(self, start: int) -> Iterable[bytes]:
        """The positions of entries that are done, from place `start` on."""
        return (self.positions[i] for i in range(start, len(self._done)) if self._done[i])


class Window:
    """The rounds between a queue's front and the place that was read up to, oldest first."""

    def __init__(self) -> None:
        self._rounds: deque[Round] = deque()
        self._removed = 0  # entries at the front of the oldest round that have left the queue already

    def __len__(self) -> int:
        """Entries that are not done."""
        return sum(r.open for r in self._rounds)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is left to do or to remove."""
        return not self._rounds

    def add(self, positions: list[bytes]) -> Round:
        """Append a listing that begins where the last one ended."""
        if self._rounds and self._rounds[-1].positions[-1] != positions[0]:
            raise ValueError(f"a round at {positions[0]!r} does not follow {self._rounds[-1].positions[-1]!r}")
        added = Round(positions)
        self._rounds.append(added)
        return added

    def removable(self, *, whole_rounds: bool) -> Prefix | None:
        """The prefix that is done, or None. With `whole_rounds` it ends where a listing ended.

        Whole rounds make few, large removals while entries flow; a part of a round is worth its own removal
        only when nothing more will be finished soon.
        """
        count, upto = -self._removed, b""
        for each in self._rounds:
            if each.open:
                ahead = 0 if whole_rounds else each.done_ahead()
                if ahead:
                    count, upto = count + ahead, each.positions[ahead]
                break
            count, upto = count + len(each.positions) - 1, each.positions[-1]
        return Prefix(upto, count) if upto and count > 0 else None

    def removed(self, prefix: Prefix) -> None:
        """Forget a prefix that has left the queue."""
        self._removed += prefix.count
        while self._rounds and self._removed >= len(self._rounds[0].positions) - 1:
            self._removed -= len(self._rounds.popleft().positions) - 1

    def abandon(self) -> frozenset[bytes]:
        """Forget everything, because the queue will be read again from its front.

        Returns the positions of the entries that are done but still stand in the queue: to be skipped.
        """
        done: set[bytes] = set()
        start = self._removed
        for each in self._rounds:
            done.update(each.done_positions(start))
            start = 0
        self._rounds.clear()
        self._removed = 0
        return frozenset(done)
