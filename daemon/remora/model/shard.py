"""Shards, the holders of their locks, their figures, and the room of their queues."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Origin(StrEnum):
    """Who made a queue."""

    RADOSGW = "radosgw"
    REMORA = "remora"


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """One queue of a topic: the unit that is locked, listed and removed from.

    `queue` is the queue's name exactly as the store's registry has it (`t`, `:t`, `tenant:t`, `t.3`); it is never
    derived from a topic's name.
    """

    queue: str
    origin: Origin = Origin.RADOSGW

    def __str__(self) -> str:
        return self.queue


@dataclass(frozen=True, slots=True)
class LockToken:
    """Proof of having locked a shard: every listing, removal and expiry names it, and the store checks it.

    `incarnation` distinguishes a queue from a later one of the same name; it is set once, under the lock, and lasts as
    long as the queue object.
    """

    shard: Shard
    cookie: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The holder of a shard's lock: the store's name of the client (`client.4116`), its cookie, and what is left of its
    lease.

    `lease_left_s` is 0 for a lock that has run out and that no other owner has taken.
    """

    entity: str
    cookie: str
    lease_left_s: float
    address: str = ""
    description: str = ""


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


@dataclass(frozen=True, slots=True)
class ShardStats:
    """The figures of one queue, read without its lock; each may be a moment old.

    `entries` is exact when `entries_exact`, else estimated from the bytes. `oldest_age_s` is None for an empty queue
    and for a first entry that is corrupt or undecodable. `reserved_bytes` counts open reservations, `leaked_bytes` what
    the store counts as reserved and will never give back. `spilled_entries` of the entries stand in runs beside the
    queue, which is what `spilled_bytes` of the ring were freed by.
    """

    shard: Shard
    entries: int
    entries_exact: bool
    used_bytes: int
    capacity_bytes: int
    reservations: int
    reserved_bytes: int
    oldest_age_s: float | None
    holder: LockHolder | None
    leaked_bytes: int = 0
    spilled_entries: int = 0
    spilled_bytes: int = 0

    @property
    def room(self) -> QueueRoom:
        """What the queue can still take."""
        reserved = self.reserved_bytes + self.leaked_bytes
        return QueueRoom(self.capacity_bytes, self.used_bytes, reserved, self.reserved_bytes)
