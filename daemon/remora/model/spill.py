"""What was moved from the front of a queue's ring to objects beside it: runs of entries, delivered before the ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remora.model.position import Position
from remora.model.shard import QueueRoom, Shard


@dataclass(frozen=True, slots=True)
class SpilledRun:
    """Entries that stood behind each other in a ring, from position `first` up to `end`, in an object of this name.

    `nbytes` is what they cost of the ring. `digest` is of the object's bytes, `stored_bytes` counts them. `pool` is
    where the object lies; empty for the pool of the queues.
    """

    name: str
    first: Position
    end: Position
    entries: int
    nbytes: int
    stored_bytes: int
    digest: str
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Spill:
    """What is left in the runs of a queue: from `front` on, `nbytes` of the ring, and `entries`; none when it is 0."""

    front: Position = Position(0, 0)  # noqa: RUF009 - frozen
    nbytes: int = 0
    entries: int = 0

    def after_move(self, run: SpilledRun) -> Spill:
        """What is spilled when this run was added behind all others."""
        front = self.front if self.entries else run.first
        return Spill(front, self.nbytes + run.nbytes, self.entries + run.entries)


NO_SPILL = Spill()


@dataclass(frozen=True, slots=True)
class Cut:
    """What a removal takes: the runs that are `gone`, and of the ring so many entries, which cost so many bytes.

    `spill` is what the runs have left, `nbytes` what all that was removed has cost of the ring.
    """

    gone: Sequence[SpilledRun]
    spill: Spill
    nbytes: int
    ring_entries: int
    takes_ring: bool


@dataclass(frozen=True, slots=True)
class SpillLook:
    """The room of a queue, and what is spilled of it, of one moment."""

    room: QueueRoom
    spill: Spill


@dataclass(frozen=True, slots=True)
class SpillUsage:
    """What the runs of all queues take of the store, and why their pool takes no further ones, where it does not."""

    by_shard: Mapping[Shard, int]
    full: str = ""

    @property
    def total_bytes(self) -> int:
        """The bytes of all runs."""
        return sum(self.by_shard.values())
