"""A shard that is held, and until when this may be believed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from remora.model.errors import StoreUnavailable
from remora.model.shard import Hold, Shard
from remora.policy.lease import LeaseTimes, Term


class LeaseUncertain(StoreUnavailable):
    """The lock could not be renewed in time: nothing may be started until it is."""


class Tenure:
    """The hold of one shard with its current term; ownership extends it, everything else asks it."""

    def __init__(self, hold: Hold, term: Term, owned: Callable[[], int]) -> None:
        """`owned` tells how many shards this worker holds in all."""
        self.hold = hold
        self.term = term
        self.owned = owned

    @property
    def shard(self) -> Shard:
        """The shard that is held."""
        return self.hold.shard

    def require_trust(self) -> None:
        """Raise LeaseUncertain when somebody else may hold the shard by now. Ask right before each step."""
        if not self.term.is_trusted(asyncio.get_running_loop().time()):
            raise LeaseUncertain(f"the lock of {self.shard} was not renewed in time")

    def renewed(self, times: LeaseTimes, asked_at: float) -> None:
        """A renewal that was asked for at `asked_at` succeeded."""
        self.term = Term.granted(times, asked_at)

    def renewal_failed(self, times: LeaseTimes) -> None:
        """A renewal got no answer: try again soon, and trust as long as before."""
        self.term = self.term.retry_renewal(times, asyncio.get_running_loop().time())
