"""What a worker wants of each budget that it shares with all workers of the store, by what it sent of late."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

WINDOW_S = 5
"""Grants of this many seconds count."""

WAITED_S = 1.0
"""For so long after a listing waited, a worker wants all that it can have."""

MOST_GROUPS = 64
"""The most groups of which a worker says what it wants of them; of all others it wants nothing."""

_DIGITS = 3


class Need:
    """What was granted in one group, second by second, and when a listing last waited there."""

    __slots__ = ("_granted", "_seconds", "_waited_at")

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()
        self._granted = 0
        self._waited_at = float("-inf")

    def grant(self, nbytes: int, now: float) -> None:
        """`nbytes` were granted."""
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += nbytes
        else:
            self._seconds.append([second, nbytes])
        self._granted += nbytes

    def wait(self, now: float) -> None:
        """A listing waits now, or has waited until now."""
        self._waited_at = now

    def want(self, now: float) -> int | None:
        """Bytes per second: a quarter more than was granted over the window; None, for all, where a listing waited.

        Rounded up to three binary digits, so that a row that says it does not change with every second.
        """
        while self._seconds and self._seconds[0][0] <= int(now) - WINDOW_S:
            self._granted -= self._seconds.popleft()[1]
        if now - self._waited_at <= WAITED_S:
            return None
        return rounded_up(self._granted * 5 // (4 * WINDOW_S))


def rounded_up(number: int) -> int:
    """The least number with three binary digits, and then zeros, that is not below this one."""
    shift = max(0, number.bit_length() - _DIGITS)
    return -(-number >> shift) << shift


def busiest(wants: Mapping[str, int | None]) -> list[tuple[str, int | None]]:
    """The groups of which most is wanted, those first of which all is; without those of which nothing is."""
    wanted = [(group, want) for group, want in wants.items() if want != 0]
    return sorted(wanted, key=lambda each: (each[1] is not None, -(each[1] or 0), each[0]))[:MOST_GROUPS]
