"""When events are due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class DueEvent(NamedTuple):
    """An event that is to be sent. Those with the same `lane` are sent in their order, one after the other.

    A lane is a hash of bucket and key: two keys may share one, but a key is always in the same.
    """

    seq: int
    due_us: int
    op: str
    bucket: str
    key: str
    size: int
    kseq: int
    lane: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The trace's time, put on the clock of the wall: `ts0_us` of the trace is at `t0_us`, whole microseconds both.

    `speed` is by how much it goes faster than the trace; with 0 everything is due at once.
    """

    t0_us: int
    ts0_us: int
    speed: float

    def due_us(self, ts_us: int) -> int:
        """When an event of the trace is due; never before one with an earlier time stamp."""
        if not self.speed:
            return self.t0_us
        return self.t0_us + int((ts_us - self.ts0_us) / self.speed)
