"""Turns back pages that one session has read ahead, so that a shard of a higher priority finds room.

Only the newest pages are turned back, whole, and only while nothing of them was begun: so whatever of their keys is
sent stood before them, and what is read again is sent in its order. What is read while that happens is thrown away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from remora.engine.admission.givers import PageAhead
from remora.engine.delivery.reader import Reader
from remora.engine.delivery.scope import DeliveryScope
from remora.engine.delivery.trimmer import Trimmer
from remora.model.record import Page
from remora.model.traffic import Priority
from remora.policy.delivery.acks import PageAcks


class Packed(Protocol):
    """What a sender has made of its pages."""

    def untouched(self, pages: Sequence[PageAhead]) -> int:
        """How many of the newest of these pages nothing was begun of."""
        ...

    def take_out(self, pages: Sequence[PageAhead]) -> None:
        """Forget these pages, the newest ones."""
        ...


class PagesAhead:
    """The newest pages of a session that may be turned back, and where it reads on. It is a Giver."""

    def __init__(
        self, scope: DeliveryScope, reader: Reader, trimmer: Trimmer, packed: Packed, *, is_over: Callable[[], bool]
    ) -> None:
        """`is_over` tells whether the session ends."""
        self._scope = scope
        self._reader = reader
        self._trimmer = trimmer
        self._packed = packed
        self._is_over = is_over
        self._state = scope.state
        self._pages: deque[PageAhead] = deque()
        self._next = b""
        self._is_joining = False
        self._was_turned_back = False

    @property
    def name(self) -> str:
        """The queue's."""
        return self._scope.lease.shard.queue

    # -------------------------------------------------------------------------------- for the sender

    def begin_at(self, start: bytes) -> None:
        """Read from this position on."""
        self._next = start

    def next_read(self) -> bytes:
        """Where the read begins that is asked for now."""
        self._was_turned_back = False
        return self._next

    def follows(self, page: Page) -> bool:
        """Whether a page that has come follows what is sent; else what stands before it was turned back meanwhile.

        Where it follows it must be added soon: nothing is turned back before, or it would overtake that.
        """
        if self._was_turned_back:
            return False
        if page.entries:
            self._next, self._is_joining = page.positions[-1], True
        return True

    def add(self, page: PageAhead, *, is_clean: bool) -> None:
        """The page that has come is handed on; `is_clean` when nothing of it was begun or decided."""
        self._is_joining = False
        if not is_clean:
            self._pages.clear()  # nothing before it can be turned back: only the newest pages can
            return
        self._pages.append(page)
        self._reader.offer(self)

    def begun(self, acks: PageAcks | None = None) -> None:
        """This page is done with, or all of them are begun."""
        self._pages = deque(each for each in self._pages if acks is not None and each.acks is not acks)

    # ------------------------------------------------------------------------------------ as a giver

    def ahead(self) -> tuple[int, ...]:
        """The bytes of the pages that can be turned back, the oldest first; none of a probe after a failure."""
        if self._is_joining or self._is_over() or not self._state.reads.pages_delivered:
            return ()
        count = self._packed.untouched(self._pages)
        return tuple(each.nbytes for each in self._pages)[len(self._pages) - count :]

    def return_pages(self, pages: int, priority: Priority) -> None:
        """Forget so many of the newest pages, and read on where they began."""
        newest = [self._pages.pop() for _ in range(pages)]
        self._packed.take_out(newest)
        for page in newest:
            self._trimmer.drop(page.acks)
            self._next = page.acks.positions[0]
        self._was_turned_back = True
        self._state.reads.has_backlog = True
        self._state.progress.news.set()
        entries, nbytes = sum(each.entries for each in newest), sum(each.nbytes for each in newest)
        self._scope.context.telemetry.turned_back(priority, entries)
        self._reader.held.return_newest(entries, nbytes, sum(each.credit for each in newest))
