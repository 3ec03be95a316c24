"""Who gives room back when a shard of a higher priority finds none: sessions, for pages of which nothing was begun."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

from remora.model.traffic import Priority
from remora.policy.eviction import ReadAhead, Shortage, turn_back

_ORDER = tuple(Priority)


class Giver(Protocol):
    """What one session has read ahead. `name` is that of its queue."""

    @property
    def name(self) -> str: ...

    def ahead(self) -> tuple[int, ...]:
        """The bytes of the newest pages of which nothing was begun, the oldest first; none where none can be spared."""
        ...

    def turn_back(self, pages: int, priority: Priority) -> None:
        """Give back what so many of them hold, the newest first: they are read again."""
        ...


class Givers:
    """The sessions of a destination, or of the worker, that have read ahead, each with its shard's priority."""

    def __init__(self, watermark: Callable[[], int] = lambda: 100, within: Givers | None = None) -> None:
        """`watermark` is `delivery.read_ahead_watermark` as it is now. Who joins here joins `within`, too."""
        self._watermark = watermark
        self._within = within
        self._priorities: dict[Giver, Priority] = {}
        self._givers: dict[Priority, dict[Giver, None]] = {each: {} for each in Priority}

    def join(self, giver: Giver, priority: Priority) -> None:
        """This session reads ahead, at this priority from now on."""
        if self._priorities.get(giver) is not priority:
            self._drop(giver)
            self._priorities[giver] = priority
            self._givers[priority][giver] = None
        if self._within is not None:
            self._within.join(giver, priority)

    def leave(self, giver: Giver) -> None:
        """This session is over. No error where it never joined."""
        self._drop(giver)
        if self._within is not None:
            self._within.leave(giver)

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
        plan = turn_back(
            {name: ReadAhead(self._priorities[giver], giver.ahead()) for name, giver in givers.items()},
            limit=short.limit,
            held=short.held,
            need=short.need,
            priority=short.priority,
            watermark=Fraction(self._watermark(), 100),
        )
        for name, planned in plan.pages.items():
            giver = givers[name]
            # What one gives back may let in another that waits, in whose name a wider budget evicts some of these.
            if pages := min(planned, len(giver.ahead())):
                giver.turn_back(pages, self._priorities[giver])
