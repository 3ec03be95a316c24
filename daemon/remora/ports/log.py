"""What a sequencer, and who writes to a log, need of a store.

Every adapter holds three promises for an epoch that `register` returned: no write with an earlier epoch lands any more;
the position is at or above every one that was written; no other server has got that epoch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from remora.model.errors import StoreError
from remora.model.log import Cell, Figures, LogKind, LogLock, LogName, Projection, Registered


class Logs(Protocol):
    """Shared logs of a store. What needs a lock is checked in the same operation: OwnershipLost."""

    async def create(self, log: LogName, kind: LogKind, width: int) -> Projection:
        """Make a log, with epoch 0. Raises LogRefused when there is one already, or where it cannot be."""
        ...

    async def remove(self, log: LogName) -> None:
        """Delete a log with all it holds. Raises LogUnknown, and LogLocked while a server serves it."""
        ...

    async def all(self) -> Sequence[tuple[LogName, Projection]]:
        """Every log, by name."""
        ...

    async def projection(self, log: LogName) -> Projection:
        """A log as it is now. Raises LogUnknown."""
        ...

    async def acquire(self, log: LogName, owner: str, lease_s: float) -> LogLock:
        """Take a log's lock, or extend one's own. Raises LogUnknown, and LogLocked while another server has it."""
        ...

    async def renew_all(self, locks: Sequence[LogLock], lease_s: float) -> Sequence[StoreError | None]:
        """Extend locks that are still held; for each, in order, None or its error."""
        ...

    def place(self, log: LogName) -> Hashable:
        """What the locks of logs are extended with: those of one place in one step, each place by itself.

        A place that does not answer has the whole `renew_all` wait, so locks of several are extended in calls of their
        own.
        """
        ...

    async def release(self, lock: LogLock) -> None:
        """Give a lock back; no error when it is not held any more."""
        ...

    async def register(self, lock: LogLock, address: str, reach: int) -> Registered:
        """Begin a new epoch, durably: seal all that was written before, and find where the log ends.

        A counter may hand out `reach` positions behind its last bound; a log is bound by nothing but its last position.
        """
        ...

    async def raise_bound(self, lock: LogLock, epoch: int, bound: int) -> None:
        """Let a counter hand out positions up to `bound`, durably. Raises StaleEpoch for another epoch."""
        ...

    async def settle(self, lock: LogLock, epoch: int, position: int) -> None:
        """Have a counter's next epoch begin behind `position`, the last one that was handed out."""
        ...

    async def seal(self, log: LogName) -> int:
        """Begin a new epoch that no server has, and return it: the log's server is refused from then on."""
        ...

    async def append(self, log: LogName, epoch: int, position: int, data: bytes) -> None:
        """Write a position once, durably. Raises StaleEpoch, PositionTaken, PositionTrimmed, LogRefused, LogUnknown."""
        ...

    async def fill(self, log: LogName, epoch: int, position: int) -> None:
        """Write a position off; no error where it is filled already. Raises as `append` does."""
        ...

    async def read(self, log: LogName, position: int) -> tuple[Cell, bytes]:
        """What stands at a position, and its data. Raises LogUnknown, and LogRefused for a counter."""
        ...

    async def trim(self, log: LogName, upto: int) -> None:
        """Delete all positions up to this one for good, durably."""
        ...

    async def figures(self, log: LogName) -> Figures:
        """What a log holds. Raises LogUnknown."""
        ...


class LogStore(Protocol):
    """A store as the sequencer sees it."""

    @property
    def logs(self) -> Logs: ...
