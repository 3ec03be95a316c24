"""When the room that a queue has leaked is given back to it, and how long the rest of it lasts.

A mend loses the race against gateways that reserve all the time, and costs two operations each time. So a queue is
mended when nobody can write to it because it is full, or nobody does; and one that spills, which is neither, when the
leak leaves too little of its ring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

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


Heal: TypeAlias = Literal["off", "full", "calm"]

QUIET_S = 10.0
"""A queue in which nothing was reserved or committed for this long is calm."""

_LITTLE_ROOM = 0.05
_CALM_LEAK = 1_000_000
_WORN = 0.1


def is_full_by_leak(room: QueueRoom) -> bool:
    """Whether a queue refuses reservations, or will soon, and at least half of what is missing is leaked."""
    missing = room.capacity_bytes - room.room_bytes
    return room.room_bytes < _LITTLE_ROOM * room.capacity_bytes and room.leaked_bytes >= missing / 2


def should_mend(heal: Heal, room: QueueRoom, quiet_s: float, *, has_runs: bool = False) -> bool:
    """Whether the queue's holder mends it now; `quiet_s` is for how long nothing was reserved or committed in it.

    Of a queue that `has_runs` the entries leave the ring, and what leaks stays in it.
    """
    if heal == "off" or not room.leaked_bytes:
        return False
    if has_runs and room.leaked_bytes > _WORN * room.capacity_bytes:
        return True
    is_calm = heal == "calm" and quiet_s >= QUIET_S and room.leaked_bytes > _CALM_LEAK
    return is_calm or is_full_by_leak(room)


@dataclass(frozen=True, slots=True)
class RoomOverTime:
    """What is known of a queue's room: its growth, and its last pulse."""

    growth: Growth = Growth()
    pulse: tuple[int, ...] = ()
    quiet_since: float = 0.0

    def after(self, room: QueueRoom, now: float) -> RoomOverTime:
        """What is known after another look."""
        is_quiet = bool(self.growth.looks) and self.pulse == room.pulse
        growth = self.growth.after(now, room.taken_bytes)
        return RoomOverTime(growth, room.pulse, self.quiet_since if is_quiet else now)

    def after_mend(self) -> RoomOverTime:
        """What is known after room was given back: growth begins anew, since its fall is nobody's delivery."""
        return RoomOverTime(pulse=self.pulse, quiet_since=self.quiet_since)

    def quiet_s(self, now: float) -> float:
        """For how long nothing was reserved or committed, as far as was looked."""
        return now - self.quiet_since if self.growth.looks else 0.0

    def seconds_until_full(self, room: QueueRoom) -> float:
        """How long the room lasts at this growth."""
        return self.growth.lasts_s(room)


SOON_S = 86_400.0
"""People are told how long a queue lasts when it is less than this."""

LEAK_COMMAND = "remora shard heal"


def words(room: QueueRoom, seconds_until_full: float) -> str:
    """What a person should know of a queue's room, in a few words; empty while that is nothing."""
    if is_full_by_leak(room):
        leaked = room.leaked_bytes / 1e6
        return f"full by a leak of {leaked:.{0 if leaked >= 10 else 1}f} MB of Ceph < 19.2.4"
    if not seconds_until_full or seconds_until_full >= SOON_S:
        return "" if seconds_until_full else "full"
    unit_s, unit = (3600, "h") if seconds_until_full >= 7200 else (60, "min") if seconds_until_full >= 120 else (1, "s")
    return f"full in {seconds_until_full / unit_s:.0f} {unit} at its present growth"
