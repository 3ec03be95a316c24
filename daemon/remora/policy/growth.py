"""How fast a queue grows, and how long its room lasts at that. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from remora.model.shard import QueueRoom

WINDOW_S = 600.0
"""Growth is that over this long."""

_APART_S = WINDOW_S / 60
"""Looks that are kept lie so far apart at least, however often a queue is looked at; the last one is always kept."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Looks of the last ten minutes at what a queue has taken, as times and bytes; as far as was seen."""

    looks: tuple[tuple[float, int], ...] = ()

    def after(self, now: float, nbytes: int) -> Growth:
        """What is known after another look. One look older than the window stays, or a slow look would see nothing."""
        kept = self.looks
        if len(kept) >= 2 and kept[-1][0] - kept[-2][0] < _APART_S:
            kept = kept[:-1]
        looks = (*kept, (now, nbytes))
        while len(looks) > 2 and looks[1][0] <= now - WINDOW_S:
            looks = looks[1:]
        return Growth(looks)

    def lasts_s(self, room: QueueRoom) -> float:
        """How long the room lasts at this growth; infinite where it does not grow, 0 where there is none."""
        if not room.room_bytes or not self.looks:
            return math.inf if room.room_bytes else 0.0
        (began, first), (ended, last) = self.looks[0], self.looks[-1]
        return room.room_bytes * (ended - began) / (last - first) if last > first else math.inf
