"""How many entries to list, when records that are not acknowledged yet are bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass

NEW_PART = 0.1


def entries_to_list(limit: int, permits: int | None, average: float | None) -> int:
    """How many entries to list, at most `limit`, for `permits` records that may be sent (None: any number).

    `average` is how many records an entry makes, as far as that is known; 0: none now.
    """
    if permits is None:
        return limit
    if permits <= 0:
        return 0
    if average is None:
        return min(limit, permits)
    return min(limit, max(1, math.ceil(permits / average))) if average else limit


def mean_records(average: float | None, records: int, entries: int) -> float | None:
    """How many records an entry makes on average, after a listing of `entries` entries made `records`.

    The first listing counts whole, and one without entries not at all.
    """
    if not entries:
        return average
    new = records / entries
    return new if average is None else (1 - NEW_PART) * average + NEW_PART * new


@dataclass(slots=True)
class Unacked:
    """Records under way, of which there may be `most` (0: any number), and entries that listings were asked for.

    Full at that number, it goes on at half of it, so that not each acknowledgement wakes a reader. What was listed is
    sent, so there may be more.
    """

    most: int = 0
    count: int = 0
    is_full: bool = False
    asked: int = 0

    @property
    def permits(self) -> int | None:
        """How many records more there may be; None: any number."""
        if not self.most:
            return None
        return 0 if self.is_full else self.most - self.count - self.asked

    def set_most(self, most: int) -> None:
        """Another bound, which counts at once."""
        self.most = most
        self._look()

    def sent(self, records: int) -> None:
        """`records` more are under way."""
        self.count += records
        self._look()

    def acked(self, records: int) -> None:
        """`records` are acknowledged."""
        self.count -= records
        self._look()

    def _look(self) -> None:
        if self.most and self.count >= self.most:
            self.is_full = True
        elif 2 * self.count <= self.most or not self.most:
            self.is_full = False


class Permits:
    """Records that one shard may still send (None: any number), and how many an entry makes on average.

    What was listed is sent, so permits may fall below 0. Of `max_unacked` records (0: any number) it is full as
    `Unacked` is.
    """

    def __init__(self, permits: int | None = None, max_unacked: int = 0, average: float | None = None) -> None:
        self.permits = permits
        self.average = average
        self._unacked = Unacked(max_unacked)

    @property
    def unacked(self) -> int:
        """How many records are under way."""
        return self._unacked.count

    @property
    def is_full(self) -> bool:
        """Whether the records under way forbid another listing."""
        return self._unacked.is_full

    def entries(self, limit: int, *, precise: bool = True, writable: bool = True) -> int:
        """How many entries to list, at most `limit`; 0: none now. Not `writable`: the endpoint takes nothing."""
        if self.is_full or (self.permits is not None and self.permits <= 0):
            return 0
        return entries_to_list(limit, self.permits if writable else 1, self.average if precise else None)

    def sent(self, records: int, entries: int) -> None:
        """A listing of `entries` entries made `records` records, which are under way now."""
        self.average = mean_records(self.average, records, entries)
        if self.permits is not None:
            self.permits -= records
        self._unacked.sent(records)

    def acked(self, records: int) -> None:
        """`records` records are acknowledged."""
        self._unacked.acked(records)
