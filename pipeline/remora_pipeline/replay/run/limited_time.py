"""The time in which requests of a task waited for rate limits, which is the server's and not the generator's."""

from __future__ import annotations

from collections import deque

MOST_SPANS = 10_000
"""What lies further back than this many waits is forgotten, and counts as the generator's."""


class LimitedTime:
    """The spans in which at least one request waited. Times are microseconds, and never go back."""

    def __init__(self) -> None:
        self._spans: deque[tuple[int, int]] = deque(maxlen=MOST_SPANS)
        self._waiting = 0
        self._since_us = 0

    def begin(self, now_us: int) -> None:
        """A request begins to wait."""
        if not self._waiting:
            self._since_us = now_us
        self._waiting += 1

    def end(self, now_us: int) -> None:
        """One that waited is sent again, or given up."""
        self._waiting -= 1
        if not self._waiting:
            self._spans.append((self._since_us, now_us))

    def within(self, from_us: int, to_us: int) -> int:
        """How much of the time between these two moments lies in such spans."""
        found = max(0, to_us - max(from_us, self._since_us)) if self._waiting else 0
        for begin_us, end_us in reversed(self._spans):
            if end_us <= from_us:
                break
            found += max(0, min(end_us, to_us) - max(begin_us, from_us))
        return found
