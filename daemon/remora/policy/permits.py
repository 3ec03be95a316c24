"""How many entries to list, when records that are not acknowledged yet are bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass

NEW_PART = 0.1


@dataclass(slots=True)
class Permits:
    """Records that may still be sent (None: any number), and how many an entry makes on average.

    What was listed is sent, so permits may fall below 0. Of `max_unacked` records (0: any number) it is full, and goes
    on at half of them, so that not each acknowledgement wakes somebody.
    """

    permits: int | None = None
    max_unacked: int = 0
    average: float | None = None
    unacked: int = 0
    is_full: bool = False

    def entries(self, limit: int, *, precise: bool = True, writable: bool = True) -> int:
        """How many entries to list, at most `limit`; 0: none now. Not `writable`: the endpoint takes nothing."""
        if self.is_full or (self.permits is not None and self.permits <= 0):
            return 0
        permits = self.permits if writable else 1
        if permits is None:
            return limit
        if self.average is None or not precise:
            return min(limit, permits)
        return min(limit, max(1, math.ceil(permits / self.average))) if self.average else limit

    def sent(self, records: int, entries: int) -> None:
        """A listing of so many entries made so many records, which are under way now."""
        if entries:
            new = records / entries
            self.average = new if self.average is None else (1 - NEW_PART) * self.average + NEW_PART * new
        if self.permits is not None:
            self.permits -= records
        self.unacked += records
        if self.max_unacked and self.unacked >= self.max_unacked:
            self.is_full = True

    def acked(self, records: int) -> None:
        """So many records are acknowledged."""
        self.unacked -= records
        if 2 * self.unacked <= self.max_unacked:
            self.is_full = False
