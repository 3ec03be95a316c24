"""An owned shard's lock, and until when its owner may trust it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from remora.model.errors import StoreDamaged, StoreError, StoreUnavailable
from remora.model.shard import LockToken, Shard
from remora.policy.lease import LeaseTimes, Term


class LeaseUncertain(StoreUnavailable):
    """The lock could not be renewed in time: nothing may be started until it is."""


class Lease:
    """The lock of one owned shard with its current term; ownership extends it, everything else asks it."""

    __slots__ = ("_why", "active", "term", "token")

    def __init__(self, token: LockToken, term: Term, active: Callable[[], int]) -> None:
        """`active` tells for how many shards of this worker a dispatcher runs, this one included."""
        self.token = token
        self.term = term
        self.active = active
        self._why: StoreError | None = None

    @property
    def shard(self) -> Shard:
        """The shard that is owned."""
        return self.token.shard

    def require_trust(self) -> None:
        """Raise LeaseUncertain when another worker may hold the shard by now. Ask right before each step.

        It says why the lock could not be renewed. Where its part of the store is damaged, that is raised instead.
        """
        if self.term.is_trusted(asyncio.get_running_loop().time()):
            return
        if isinstance(self._why, StoreDamaged):
            raise StoreDamaged(str(self._why))
        why = f": {self._why}" if self._why is not None else ""
        raise LeaseUncertain(f"the lock of {self.shard} was not renewed in time{why}")

    def renewed(self, term: Term) -> None:
        """A renewal succeeded and gave this term."""
        self.term, self._why = term, None

    def renewal_failed(self, times: LeaseTimes, why: StoreError) -> None:
        """A renewal got no answer: try again soon, and trust as long as before."""
        self.term = self.term.retry_renewal(times, asyncio.get_running_loop().time())
        self._why = why
