"""The ledger of a shard: each committed entry left for exactly one cause, or is pending."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from remora.model.shard import QueueRoom, Shard


class Cause(StrEnum):
    """Why an entry left its queue. An expired entry counts as expired only, though a dead letter keeps it."""

    DELIVERED = "delivered"
    DEAD_LETTERED = "dead_lettered"
    EXPIRED = "expired"
    DROPPED = "dropped"
    REMOVED_ELSEWHERE = "removed_elsewhere"
    EXPORTED = "exported"

    @classmethod
    def of_letter(cls, cause: str) -> Cause:
        """The cause under which the ledger counts an entry whose dead letter has this cause."""
        return cls.EXPIRED if cause == "expired" else cls.DEAD_LETTERED


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of entries that left a queue for each cause, in one removal or in all of them."""

    delivered: int = 0
    dead_lettered: int = 0
    expired: int = 0
    dropped: int = 0
    removed_elsewhere: int = 0
    exported: int = 0

    @classmethod
    def of(cls, cause: Cause, count: int = 1) -> Tally:
        """A tally of this many entries of one cause."""
        return cls(**{str(cause): count})

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.delivered + other.delivered,
            self.dead_lettered + other.dead_lettered,
            self.expired + other.expired,
            self.dropped + other.dropped,
            self.removed_elsewhere + other.removed_elsewhere,
            self.exported + other.exported,
        )

    @property
    def total(self) -> int:
        """The entries of all causes."""
        gone = self.dead_lettered + self.expired + self.dropped + self.removed_elsewhere + self.exported
        return self.delivered + gone

    def items(self) -> Iterator[tuple[Cause, int]]:
        """Each cause with its number of entries, 0 included."""
        return ((cause, getattr(self, cause)) for cause in Cause)


@dataclass(frozen=True, slots=True)
class Balance:
    """The ledger of one incarnation of a queue at one moment, in entries, since the ledger began.

    `committed` and `pending` are measured independently of what was `removed`. `room` is that of the same look at the
    queue, None where the store keeps no reservations in it that could leak. `spilled` of the pending entries stand in
    runs beside the queue.
    """

    shard: Shard
    committed: int
    pending: int
    removed: Tally
    room: QueueRoom | None = field(default=None, compare=False)
    spilled: int = 0

    @property
    def unaccounted(self) -> int:
        """Entries that are neither pending nor left for a known cause. 0 unless the ledger is wrong; below 0 when some
        count twice.
        """
        return self.committed - self.removed.total - self.pending


@dataclass(frozen=True, slots=True)
class FormerQueue:
    """A queue that went with its layout: where its entries ended, and its final ledger.

    `end` is the position behind its last entry, as a listing has it.
    """

    name: str
    generation: int
    incarnation: str
    end: str
    committed: int
    removed: Tally
