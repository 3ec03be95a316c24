"""Room that a store keeps of queues for nobody, and how they get it back."""

from __future__ import annotations

from typing import Protocol

from remora.model.shard import LockToken, Mend, Shard


class Mending(Protocol):
    """What delivering asks for: mends of queues that this worker holds."""

    async def mend(self, token: LockToken) -> Mend:
        """Give the queue back what it has leaked, if nobody writes to it meanwhile; harms nobody who does.

        Raises OwnershipLost and ShardGone, as each operation with a token.
        """
        ...


class Mends(Mending, Protocol):
    """What commands ask for: mends of queues whose lock somebody else may hold."""

    async def look(self, shard: Shard) -> Mend:
        """What a mend would find; nothing is written. Raises ShardGone."""
        ...

    async def mend_unheld(self, shard: Shard, *, patient: bool = False) -> Mend:
        """As `mend`, without the lock; one that is `patient` tries for some seconds while others write to the queue."""
        ...
