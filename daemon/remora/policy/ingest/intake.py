"""How much of requests' bodies a host takes in at once: beyond a bound new ones wait at their headers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Intake(Generic[Name]):
    """Bodies that were received or announced and are not answered yet, and the requests that wait to begin.

    One request may overshoot the limit; between the limit and half of it nothing changes. A limit of None, or none
    above 0, is off. Where several workers share a limit, each has the requests of its own here, and observes what the
    others hold.
    """

    def __init__(self, limit: int | None) -> None:
        self.own = 0
        self.is_paused = False
        self._limit = limit
        self._others = 0
        self._bodies: dict[Name, int] = {}
        self._growing: dict[Name, None] = {}
        self._waiting: dict[Name, int] = {}

    def __contains__(self, name: Name) -> bool:
        return name in self._bodies or name in self._waiting

    @property
    def pending(self) -> int:
        """Bytes of the bodies that count, of all workers."""
        return self.own + self._others

    @property
    def oldest_growing(self) -> Name | None:
        """The body without a length that began first."""
        return next(iter(self._growing), None)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def is_growing(self, name: Name) -> bool:
        """Whether this is a body under way that began without a length."""
        return name in self._growing

    def is_waiting(self, name: Name) -> bool:
        """Whether this request waits."""
        return name in self._waiting

    def begin(self, name: Name, length: int, *, has_body: bool = True) -> bool:
        """Whether a request is admitted now; else it waits. `length` is 0 for a body without one."""
        if not has_body:
            self._bodies[name] = 0
            return True
        if self.is_paused:
            self._waiting[name] = length
            return False
        self._admit(name, length)
        return True

    def may_grow(self, name: Name, *, is_oldest: bool = True) -> bool:
        """Whether a body without a length may take what has arrived: while paused only the oldest one may.

        So two of them never wait for each other. `is_oldest`: no other worker has one that began before.
        """
        return not self.is_paused or (is_oldest and self.oldest_growing == name)

    def grow(self, name: Name, amount: int, *, is_oldest: bool = True) -> bool:
        """Count what has arrived of a body without a length, if it may grow; whether it may."""
        if not self.may_grow(name, is_oldest=is_oldest):
            return False
        self._bodies[name] += amount
        self.own += amount
        self._look()
        return True

    def observe(self, others: int, *, is_paused: bool) -> list[Name]:
        """The other workers hold `others` bytes, and the host pauses or not. Returns those let in now."""
        self._others = others
        self.is_paused = is_paused
        return self._let_in()

    def end(self, name: Name) -> list[Name]:
        """A request is over, however it ended, and counts no more; a second time does nothing. Who is let in now."""
        self._waiting.pop(name, None)
        self._growing.pop(name, None)
        self.own -= self._bodies.pop(name, 0)
        return self._let_in()

    def set_limit(self, limit: int | None) -> list[Name]:
        """Another limit, which counts at once. Who is let in now."""
        self._limit = limit
        return self._let_in()

    def _let_in(self) -> list[Name]:
        self._look()
        admitted: list[Name] = []
        while self._waiting and not self.is_paused:
            name = next(iter(self._waiting))
            self._admit(name, self._waiting.pop(name))
            admitted.append(name)
        return admitted

    def _admit(self, name: Name, length: int) -> None:
        self._bodies[name] = length
        if not length:
            self._growing[name] = None
        self.own += length
        self._look()

    def _look(self) -> None:
        limit, pending = self._limit or 0, self.own + self._others
        if limit <= 0 or 2 * pending < limit:
            self.is_paused = False
        elif pending >= limit:
            self.is_paused = True
