"""Who gives room back when a shard of a higher priority finds none: sessions, for pages of which nothing was begun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from remora.model.traffic import Priority
from remora.policy.admission.limits import ByteLimit, EntryLimit
from remora.policy.admission.line import ReadAhead, Shortage, pages_to_turn_back
from remora.policy.delivery.acks import PageAcks

_ORDER = tuple(Priority)


@dataclass(frozen=True, slots=True)
class PageAhead:
    """A page that nothing was begun of when it was noted: its entries, what became of them, and what they hold.

    `credit` are the bytes that were granted for its records, `batches` how many batches it made.
    """

    acks: PageAcks
    nbytes: int
    credit: int = 0
    batches: int = 0

    @property
    def entries(self) -> int:
        """How many there are."""
        return len(self.acks.positions) - 1


class Giver(Protocol):
    """What one session has read ahead. `name` is that of its queue."""

    @property
    def name(self) -> str: ...

    def ahead(self) -> tuple[int, ...]:
        """The bytes of the newest pages of which nothing was begun, the oldest first; none where none can be spared."""
        ...

    def return_pages(self, pages: int, priority: Priority) -> None:
        """Return what so many of them hold, the newest first: they are read again."""
        ...


class Givers:
    """The sessions of a destination, or of the worker, that have read ahead, each with its shard's priority."""

    def __init__(self, watermark: Callable[[], int] = lambda: 100, within: Givers | None = None) -> None:
        """`watermark` is `delivery.read_ahead_watermark` as it is now. What is added here is added to `within`, too."""
        self._watermark = watermark
        self._within = within
        self._priorities: dict[Giver, Priority] = {}
        self._givers: dict[Priority, dict[Giver, None]] = {each: {} for each in Priority}

    def add(self, giver: Giver, priority: Priority) -> None:
        """This session reads ahead, at this priority from now on."""
        if self._priorities.get(giver) is not priority:
            self._drop(giver)
            self._priorities[giver] = priority
            self._givers[priority][giver] = None
        if self._within is not None:
            self._within.add(giver, priority)

    def remove(self, giver: Giver) -> None:
        """This session is over. No error where it was never added."""
        self._drop(giver)
        if self._within is not None:
            self._within.remove(giver)

    def _drop(self, giver: Giver) -> None:
        before = self._priorities.pop(giver, None)
        if before is not None:
            del self._givers[before][giver]

    def make_room(self, short: Shortage) -> None:
        """Have sessions of lower priorities turn pages back, as far as they have some to spare."""
        lower = [each for each in _ORDER[_ORDER.index(short.priority) + 1 :] if self._givers[each]]
        if not lower:
            return
        givers = {giver.name: giver for each in lower for giver in self._givers[each]}
        ahead = {name: ReadAhead(self._priorities[giver], giver.ahead()) for name, giver in givers.items()}
        for name, planned in pages_to_turn_back(ahead, short, Fraction(self._watermark(), 100)).pages.items():
            giver = givers[name]
            # What one gives back may let in another that waits, in whose name a wider budget evicts some of these.
            if pages := min(planned, len(giver.ahead())):
                giver.return_pages(pages, self._priorities[giver])


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a shard may hold of what is on its way to a destination: in its own room, and of bounds narrow to wide."""

    room: ByteLimit
    entries: tuple[EntryLimit, ...] = ()
    givers: Givers = field(default_factory=Givers)
    """Who gives some of it back."""
