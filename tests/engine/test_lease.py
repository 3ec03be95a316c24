"""What a shard's holder is told when its lock may not be trusted any more."""

from __future__ import annotations

import pytest

from devkit.clock import in_virtual_time
from remora.engine.lease import Lease, LeaseUncertain
from remora.model.errors import StoreAway, StoreUnavailable
from remora.model.shard import LockToken, Shard
from remora.policy.ownership.lease import LeaseTimes, Term

TIMES = LeaseTimes(lease_s=9, renew_s=3, margin_s=1)


@in_virtual_time
async def test_why_a_lock_was_not_renewed() -> None:
    """Who may not trust a lock hears why it could not be renewed, as long as that was the last that was heard of it."""
    lease = Lease(LockToken(Shard("q"), "w", "i"), Term.granted(TIMES, -100.0), lambda: 1)

    for why in (StoreUnavailable("no answer"), StoreAway("gone", "the file is gone")):
        lease.renewal_failed(TIMES, why, 0.0)
        with pytest.raises(LeaseUncertain, match=f"q was not renewed in time: {why}"):
            lease.require_trust()

    lease.renewed(Term.granted(TIMES, -50.0))
    with pytest.raises(LeaseUncertain, match=r"not renewed in time$"):
        lease.require_trust()
