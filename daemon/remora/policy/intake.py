"""How much of requests' bodies a host takes in at once: beyond a bound new ones wait at their headers."""

from __future__ import annotations


class Intake:
    """Bodies that were received or announced and are not answered yet, and the requests that wait to begin.

    One request may overshoot the limit; between the limit and half of it nothing changes. A limit of None, or none
    above 0, is off.
    """

    def __init__(self, limit: int | None) -> None:
        self.pending = 0
        self.is_paused = False
        self._limit = limit
        self._bodies: dict[str, int] = {}
        self._growing: dict[str, None] = {}
        self._waiting: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._bodies or name in self._waiting

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def is_growing(self, name: str) -> bool:
        """Whether this is a body under way that began without a length."""
        return name in self._growing

    def is_waiting(self, name: str) -> bool:
        """Whether this request waits."""
        return name in self._waiting

    def begin(self, name: str, length: int, *, has_body: bool = True) -> bool:
        """Whether a request is admitted now; else it waits. `length` is 0 for a body without one."""
        if not has_body:
            self._bodies[name] = 0
            return True
        if self.is_paused:
            self._waiting[name] = length
            return False
        self._admit(name, length)
        return True

    def grow(self, name: str, amount: int) -> bool:
        """Whether a body without a length may take what has arrived: while paused only the oldest one may.

        So two of them never wait for each other.
        """
        if self.is_paused and next(iter(self._growing)) != name:
            return False
        self._bodies[name] += amount
        self.pending += amount
        self._look()
        return True

    def end(self, name: str) -> list[str]:
        """A request is over, however it ended, and counts no more; a second time does nothing. Who is let in now."""
        self._waiting.pop(name, None)
        self._growing.pop(name, None)
        self.pending -= self._bodies.pop(name, 0)
        return self._let_in()

    def set_limit(self, limit: int | None) -> list[str]:
        """Another limit, which counts at once. Who is let in now."""
        self._limit = limit
        return self._let_in()

    def _let_in(self) -> list[str]:
        self._look()
        admitted: list[str] = []
        while self._waiting and not self.is_paused:
            name = next(iter(self._waiting))
            self._admit(name, self._waiting.pop(name))
            admitted.append(name)
        return admitted

    def _admit(self, name: str, length: int) -> None:
        self._bodies[name] = length
        if not length:
            self._growing[name] = None
        self.pending += length
        self._look()

    def _look(self) -> None:
        if self._limit is None or self._limit <= 0:
            self.is_paused = False
        elif self.pending >= self._limit:
            self.is_paused = True
        elif 2 * self.pending < self._limit:
            self.is_paused = False
