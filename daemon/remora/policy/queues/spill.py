"""Spilling a queue: when entries are moved out of its ring, and how runs and ring are one queue. Pure.

To move an entry costs as much as to deliver it, so a topic that is merely busy is left alone: only queues that fail,
that stand still, or that have spilled entries already are looked at here.

Runs come first, in order; each holds entries that stood behind each other in the ring. Between a run and what follows
there is a gap where somebody who knows nothing of runs removed from the ring meanwhile, as a radosgw does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remora.model.position import Position
from remora.model.shard import QueueRoom
from remora.model.spill import NO_SPILL, Cut, Spill, SpilledRun

SPILL_COMMAND = "remora spill list"

STALLED_S = 5.0
"""A queue in which nothing was done for this long stands still."""

SOON_S = 600.0
"""Entries are moved when the room lasts less than this."""

_URGENT = 0.9
_LITTLE_ROOM = 0.06
_SHORTEST_S, _LONGEST_S = 0.5, 10.0
_FLOOD = 12_800_000
"""Bytes a second that no queue gets for long."""


@dataclass(frozen=True, slots=True)
class SpillRules:
    """Of topics that do not say `enabled` says whether they spill; `start` and `stop` are parts of a ring, 0 to 1."""

    enabled: bool = False
    start: float = 0.5
    stop: float = 0.25
    topic_bytes: int = 10_000_000_000
    total_bytes: int = 100_000_000_000


def refuses_soon(room: QueueRoom) -> bool:
    """Whether reservations are refused, or the next large one will be."""
    return room.room_bytes < _LITTLE_ROOM * room.capacity_bytes


def should_start(rules: SpillRules, room: QueueRoom, lasts_s: float) -> bool:
    """Whether to begin to move entries."""
    return refuses_soon(room) or (room.taken_bytes >= rules.start * room.capacity_bytes and lasts_s < SOON_S)


def should_go_on(rules: SpillRules, room: QueueRoom) -> bool:
    """Whether to move another page, once it has begun."""
    return room.used_bytes > rules.stop * room.capacity_bytes


def should_guard(rules: SpillRules, room: QueueRoom, lasts_s: float) -> bool:
    """Whether entries may have to be moved soon, which others have to know some seconds before."""
    is_half_way = room.taken_bytes >= rules.start / 2 * room.capacity_bytes
    return is_half_way or lasts_s < SOON_S or should_start(rules, room, lasts_s)


def look_again_s(room: QueueRoom, lasts_s: float) -> float:
    """When to look at the queue again: four times in what its room lasts, and before a flood could fill it."""
    return min(_LONGEST_S, max(_SHORTEST_S, min(lasts_s / 4, room.room_bytes / _FLOOD)))


def is_urgent(room: QueueRoom) -> bool:
    """Whether the ring is nearly full, so that senders are refused next: then moves come first.

    Else they leave a queue to its other readers and writers for half of the time, and the store to all others.
    """
    return room.taken_bytes > _URGENT * room.capacity_bytes


def near_bound(rules: SpillRules, topic_bytes: int, all_bytes: int) -> float:
    """How much of the bound that is reached first is used; 1 or more where nothing more may be moved."""
    of_topic = topic_bytes / rules.topic_bytes if rules.topic_bytes else 1.0
    return max(of_topic, all_bytes / rules.total_bytes if rules.total_bytes else 1.0)


def why_refused(rules: SpillRules, topic_bytes: int, all_bytes: int, full: str) -> str:
    """Why nothing more may be moved; empty where it may."""
    if topic_bytes >= rules.topic_bytes:
        return f"the topic has {topic_bytes / 1e9:.1f} GB of spilled entries (spill.topic_bytes)"
    if all_bytes >= rules.total_bytes:
        return f"all topics have {all_bytes / 1e9:.1f} GB of spilled entries (spill.total_bytes)"
    return full


def logical_front(spill: Spill, ring_front: Position) -> Position:
    """Where the oldest entry stands."""
    return spill.front if spill.entries else ring_front


def run_from(runs: Sequence[SpilledRun], at: Position) -> int:
    """The index of the first run that has something at this position or behind it; that of none behind the last."""
    return bisect_right(runs, at, key=lambda run: run.end)


def next_start(runs: Sequence[SpilledRun], index: int, ring_front: Position) -> Position:
    """Where the entry behind a run begins: at the next run, else in the ring."""
    return runs[index + 1].first if index + 1 < len(runs) else ring_front


def cut(
    runs: Sequence[SpilledRun],
    spill: Spill,
    ring_front: Position,
    removal: tuple[Position, int],
    between: Callable[[Position, Position], int],
) -> Cut:
    """What the removal of all entries before a position takes, which are so many.

    `between` tells how many bytes of the ring lie between two positions. Raises ValueError for a count that cannot be.
    """
    end, count = removal
    index = run_from(runs, end)
    gone = runs[:index]
    if index == len(runs):
        takes_ring, ring_entries = end > ring_front, count - spill.entries
        if ring_entries < 0 or (ring_entries > 0) is not takes_ring:
            raise ValueError(f"{count} entries before {end}, and {spill.entries} stand in runs before {ring_front}")
        nbytes = spill.nbytes + (between(ring_front, end) if takes_ring else 0)
        return Cut(gone, NO_SPILL, nbytes, ring_entries, takes_ring)
    if count >= spill.entries:
        raise ValueError(f"{count} entries before {end}, but only {spill.entries} in runs that reach further")
    front = max(end, runs[index].first)  # a gap may lie before it
    taken = [(max(each.first, spill.front), min(each.end, front)) for each in runs[: index + 1]]
    nbytes = sum(between(*each) for each in taken)
    return Cut(gone, Spill(front, spill.nbytes - nbytes, spill.entries - count), nbytes, 0, takes_ring=False)
