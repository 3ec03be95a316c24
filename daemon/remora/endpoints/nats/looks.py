"""Which messages of a route a stream may have already, and is asked for first. Pure.

A stream drops a message whose id it has had within its duplicate window. An earlier attempt may lie further back: that
of a host which was away for an hour, or of another one. Where each object has a subject of its own, the last message of
the subject tells how far the object's events have come, since they arrive in their order.

A lane's messages are begun in their order, at most WINDOW of them without an answer. So of all that any owner of the
queue has ever begun in a lane, at most WINDOW have not arrived. Once a route has found more than that, what it begins
from then on was never begun by anybody, and it asks no longer. All owners must have the same LANES and WINDOW for this.
"""

from __future__ import annotations

from enum import Enum, auto

from remora.endpoints.nats.streams import read_position
from remora.endpoints.runs import WINDOW
from remora.model.record import Record

LANES = 64
"""Lanes of a shard, each with messages of up to WINDOW keys under way. See above before you change it."""

PART_OF_WINDOW = 2
"""An entry that is younger than half of the window was never sent before the window began. The other half is for
clocks, since the age is counted from when a gateway or a host committed it."""

Place = tuple[int, int]


class Before(Enum):
    """What is known of a message before it is sent."""

    NEW = auto()
    ARRIVED = auto()
    UNKNOWN = auto()


class SubjectLooks:
    """What one route has found out."""

    def __init__(self, window_s: float) -> None:
        self._window_ns = int(window_s * 1e9)
        self._left = [WINDOW + 1] * LANES
        self._places: list[dict[bytes, Place | None]] = [{} for _ in range(LANES)]

    def before(self, lane: int, record: Record, now_ns: int) -> Before:
        """What is known of this message; `now_ns` is in nanoseconds since the epoch."""
        if not self._left[lane]:
            return Before.NEW
        if record.key in self._places[lane]:
            return self._compared(lane, record, self._places[lane][record.key])
        is_young = 0 <= now_ns - record.created_ns < self._window_ns // PART_OF_WINDOW
        return Before.NEW if is_young else Before.UNKNOWN

    def found(self, lane: int, record: Record, place: Place | None) -> Before:
        """What is known now that the stream was asked: `place` is the position that its key has reached, if any."""
        if self._left[lane]:
            self._places[lane][record.key] = place
        return self._compared(lane, record, place)

    def _compared(self, lane: int, record: Record, place: Place | None) -> Before:
        own = read_position(record.position)
        if place is not None and own is not None and own <= place:
            return Before.ARRIVED
        if self._left[lane]:
            self._left[lane] -= 1
            if not self._left[lane]:
                self._places[lane].clear()
        return Before.NEW
