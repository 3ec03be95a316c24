"""Entries of queues that are moved from their rings to objects beside them, so that their senders find room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeAlias

from remora.model.shard import LockToken, Shard
from remora.model.spill import SpilledRun, SpillLook, SpillUsage

OnSeam: TypeAlias = Callable[[Shard, int], None]
"""Called with a queue that is taken after somebody else delivered behind so many of its spilled entries."""


def seam_unseen(_shard: Shard, _entries: int) -> None:
    """Nobody wants to know."""


class Spilling(Protocol):
    """What delivering asks for: moves in queues that this worker holds. What was moved `Queue.read` reads first."""

    @property
    def may_spill(self) -> bool:
        """Whether this store can; nothing else is asked for where it cannot."""
        ...

    async def look(self, token: LockToken) -> SpillLook:
        """The room of a queue, and what is spilled of it. Raises OwnershipLost and ShardGone."""
        ...

    async def guard(self, token: LockToken) -> bool:
        """Keep workers that know nothing of moves from the queue; returns whether moves may begin now.

        Asked again until it answers True, some seconds later; it never does for a queue that is released.
        """
        ...

    async def unguard(self, token: LockToken) -> None:
        """Undo that where nothing was moved; no error where entries stand moved."""
        ...

    async def move(self, token: LockToken) -> int:
        """Move a page of the oldest entries of the ring, behind all that were moved; returns how many, 0 for none.

        Each entry is in the ring or moved, never both or neither, whatever fails. Raises StoreFull.
        """
        ...

    async def usage(self) -> SpillUsage:
        """What moved entries take of the store, of all queues."""
        ...


class Spills(Spilling, Protocol):
    """What commands ask for."""

    async def runs(self, shard: Shard) -> Sequence[SpilledRun]:
        """The runs of a queue, the oldest first; the first one may be delivered in part. Raises ShardGone."""
        ...

    def entries(self, shard: Shard) -> AsyncIterator[tuple[str, bytes]]:
        """Position and raw bytes of each spilled entry, the oldest first; those that leave meanwhile are left out."""
        ...

    async def exported(self, shard: Shard, upto: str) -> None:
        """Note that the spilled entries before a position stand in a file."""
        ...

    async def drop(self, token: LockToken) -> int:
        """Give up the spilled entries that were exported; returns how many."""
        ...
