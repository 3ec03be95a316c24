"""What may be removed from a queue: the contiguous prefix of entries that are done with.

Acks arrive in any order; a queue can only be cut from its front. An entry is done when its record was
acknowledged or its dead letter is stored, and never otherwise. Entries that are done behind one that is not
stay in the queue; they are remembered, so that they are not sent again when the queue is read anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from remora.model.ledger import Cause, Tally

_CODES = {cause: code for code, cause in enumerate(Cause, 1)}
_CAUSES = {code: cause for cause, code in _CODES.items()}
_OPEN = 0


@dataclass(frozen=True, slots=True)
class Prefix:
    """The oldest `count` entries, all those before position `upto`, and what becomes of them."""

    upto: bytes
    count: int
    tally: Tally


class PageAcks:
    """The entries of one page, each open or done, and then with its cause."""

    __slots__ = ("_done", "open", "positions")

    def __init__(self, positions: list[bytes]) -> None:
        """`positions` has one item more than there are entries, as in a Page."""
        self.positions = positions
        self._done = bytearray(len(positions) - 1)
        self.open = len(self._done)

    def mark_done(self, ordinals: Iterable[int], cause: Cause) -> None:
        """Mark entries as done for this cause, by their place in the page. Each is marked once."""
        done, code = self._done, _CODES[cause]
        for ordinal in ordinals:
            if done[ordinal]:
                raise ValueError(f"entry {ordinal} of this page was done before")
            done[ordinal] = code
            self.open -= 1

    def done_ahead(self) -> int:
        """How many entries at the front of this page are done."""
        if not self.open:
            return len(self._done)
        return self._done.index(_OPEN)

    def tally(self, start: int, end: int) -> Tally:
        """What became of the entries from place `start` up to `end`, all of which are done."""
        done = self._done
        return Tally(**{str(cause): done.count(code, start, end) for cause, code in _CODES.items()})

    def done_entries(self, start: int) -> Iterator[tuple[bytes, Cause]]:
        """The positions and causes of entries that are done, from place `start` on."""
        return ((self.positions[i], _CAUSES[code]) for i, code in enumerate(self._done) if i >= start and code)


class Window:
    """The pages between a queue's front and the place that was read up to, oldest first."""

    def __init__(self) -> None:
        self._pages: deque[PageAcks] = deque()
        self._removed = 0  # entries at the front of the oldest page that have left the queue already

    def __len__(self) -> int:
        """Entries that are not done."""
        return sum(r.open for r in self._pages)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is left to do or to remove."""
        return not self._pages

    def add(self, positions: list[bytes]) -> PageAcks:
        """Append a page that begins where the last one ended."""
        if self._pages and self._pages[-1].positions[-1] != positions[0]:
            raise ValueError(f"a page at {positions[0]!r} does not follow {self._pages[-1].positions[-1]!r}")
        added = PageAcks(positions)
        self._pages.append(added)
        return added

    def drop(self, newest: PageAcks) -> None:
        """Forget the newest page, of which nothing is done: it will be read again."""
        if not self._pages or self._pages[-1] is not newest or newest.open < len(newest.positions) - 1:
            raise ValueError(f"the page at {newest.positions[0]!r} is not the newest one, or some of it is done")
        self._pages.pop()

    def removable(self, *, whole_pages: bool) -> Prefix | None:
        """The prefix that is done, or None. With `whole_pages` it ends where a page ended.

        Whole pages make few, large removals while entries flow; a part of a page is worth its own removal
        only when nothing more will be finished soon.
        """
        count, upto = -self._removed, b""
        for each in self._pages:
            if each.open:
                ahead = 0 if whole_pages else each.done_ahead()
                if ahead:
                    count, upto = count + ahead, each.positions[ahead]
                break
            count, upto = count + len(each.positions) - 1, each.positions[-1]
        return Prefix(upto, count, self._tally(count)) if upto and count > 0 else None

    def _tally(self, count: int) -> Tally:
        """What became of the oldest `count` entries that have not left the queue."""
        total, start = Tally(), self._removed
        for each in self._pages:
            end = min(start + count, len(each.positions) - 1)
            total += each.tally(start, end)
            count, start = count - (end - start), 0
            if not count:
                break
        return total

    def removed(self, prefix: Prefix) -> None:
        """Forget a prefix that has left the queue."""
        self._removed += prefix.count
        while self._pages and self._removed >= len(self._pages[0].positions) - 1:
            self._removed -= len(self._pages.popleft().positions) - 1

    def forget(self) -> Mapping[bytes, Cause]:
        """Forget everything, because the queue will be read again from its front.

        Returns the entries that are done but still stand in the queue, by position: to be skipped.
        """
        done: dict[bytes, Cause] = {}
        start = self._removed
        for each in self._pages:
            done.update(each.done_entries(start))
            start = 0
        self._pages.clear()
        self._removed = 0
        return done
