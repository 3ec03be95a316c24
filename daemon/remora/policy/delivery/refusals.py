"""When a record that its receiver refuses becomes a dead letter, and when its topic stops instead.

A refusal of one record is told from one of everything by what else the receiver takes: a bad deploy must not turn a
queue into letters. Time is data, and records are named by anything hashable.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

T = TypeVar("T")

POISON_ANSWERS = 3
POISON_APART_S = 1.0
"""This many refusals of one record, each at least this long after the one before, are enough."""

EDGE_S = 0.002
"""A timer may come so much before its time, by the rounding of a clock that counts milliseconds."""

TAKEN_S = 600.0
"""What the receiver took counts for so long: a record that is refused for the first time later is on its own."""

MOST_REFUSED = 16
"""Of more records that are refused while none is taken none becomes a letter by what was taken before."""

MOST_KNOWN = 1024


class Finding(Enum):
    """What is to be done about a record that was refused."""

    ASK_AGAIN = "ask again"
    PARK = "park"
    STOP = "stop"


@dataclass(slots=True)
class _RefusedRecord:
    """The refusals of one record. At the first of them `acks` had been counted, the last one not long before where
    `others_fit`."""

    acks: int
    others_fit: bool
    answers: int = 0
    last_at: float = float("-inf")


class Refusals:
    """What the receiver of one topic refused and took, over all pushes of all its shards."""

    def __init__(self, apart_s: float = POISON_APART_S) -> None:
        self._apart_s = apart_s
        self._acks = 0
        self._acked_at = float("-inf")
        self._known: dict[Hashable, _RefusedRecord] = {}
        self._since_ack: set[Hashable] = set()
        self._parts: dict[Hashable, int] = {}

    @property
    def are_known(self) -> bool:
        """Whether anything is known of single records."""
        return bool(self._known or self._parts)

    def took(self, now: float, records: int = 1) -> None:
        """The receiver acknowledged records of the topic."""
        self._acks += records
        self._acked_at = now
        self._since_ack.clear()

    def forget(self, records: Iterable[Hashable]) -> None:
        """These records are done."""
        for each in records:
            self._known.pop(each, None)
            self._parts.pop(each, None)

    def refused(self, record: Hashable, now: float) -> Finding:
        """One more refusal of a record that was sent alone.

        With the last of three, another one that was taken since the first shows that the receiver takes records; or one
        that was taken not long before, where it refuses few since. Without either nothing that was refused until now
        counts any more: what is refused with everything else says nothing of one record.
        """
        if len(self._since_ack) <= MOST_REFUSED:
            self._since_ack.add(record)
        known = self._known.get(record)
        if known is None:
            _make_room(self._known)
            known = self._known[record] = _RefusedRecord(self._acks, now - self._acked_at <= TAKEN_S)
        if now - known.last_at >= self._apart_s - EDGE_S:
            known.answers, known.last_at = known.answers + 1, now
        if known.answers < POISON_ANSWERS:
            return Finding.ASK_AGAIN
        if self._acks > known.acks or (known.others_fit and len(self._since_ack) <= MOST_REFUSED):
            del self._known[record]
            return Finding.PARK
        self._known.clear()
        return Finding.STOP

    # ------------------------------------------------------------------------- several in a request

    def refused_together(self, first: Hashable, records: int) -> None:
        """Several records were refused in one request, of which this was the first: half of them go next."""
        _make_room(self._parts)
        self._parts[first] = max(1, records // 2)

    def most_together(self, first: Hashable) -> int | None:
        """How many may go in a request that begins with this record, which then stands behind no other in a request;
        None where nothing is known of it."""
        return 1 if first in self._known else self._parts.get(first)


def _make_room(known: dict[Hashable, T]) -> None:
    """Forget the oldest of too many: it begins anew."""
    if len(known) >= MOST_KNOWN:
        del known[next(iter(known))]
