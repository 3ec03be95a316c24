"""The room of queues: what they can still take, and what of it their store keeps for nobody."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueRoom:
    """What a queue can take, all of one moment, in bytes.

    `reserved_bytes` is what the store counts as reserved, `owed_bytes` the most that its open reservations will give
    back. `pulse` changes with each reservation and commit.
    """

    capacity_bytes: int
    used_bytes: int
    reserved_bytes: int
    owed_bytes: int
    pulse: tuple[int, ...] = ()

    @property
    def leaked_bytes(self) -> int:
        """What is counted as reserved and will never be given back; all of the queue for a count that went below 0."""
        return min(max(0, self.reserved_bytes - self.owed_bytes), self.capacity_bytes)

    @property
    def room_bytes(self) -> int:
        """What a reservation can still have, its overhead included."""
        return max(0, self.capacity_bytes - self.taken_bytes)

    @property
    def taken_bytes(self) -> int:
        """What no reservation can have: committed, reserved or leaked."""
        return min(self.capacity_bytes, self.used_bytes + self.reserved_bytes)


@dataclass(frozen=True, slots=True)
class Mend:
    """A look at a queue that may leak. `after` is None where nothing was written.

    `is_busy` where other clients always came between the look and the write; nothing has happened then.
    """

    before: QueueRoom
    after: QueueRoom | None = None
    is_busy: bool = False
