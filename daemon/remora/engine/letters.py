"""Makes dead letters: everything that is known of an entry at the moment it is given up."""

from __future__ import annotations

import time

from remora.engine.sorting import Condemned
from remora.model.record import Attempt, DeadLetter, Listing
from remora.model.shard import Hold


def letter(hold: Hold, listing: Listing, condemned: Condemned, tried: Attempt | None = None) -> DeadLetter:
    """The letter of one entry of a listing; `tried` is None for one that never failed."""
    now = time.time()
    return DeadLetter(
        queue=hold.shard.queue,
        incarnation=hold.incarnation,
        position=listing.positions[condemned.ordinal].decode(),
        next_position=listing.positions[condemned.ordinal + 1].decode(),
        cause=condemned.cause,
        reason=condemned.reason,
        attempts=tried.count if tried else 0,
        first_seen=tried.first_tried if tried else now,
        parked_at=now,
        raw=listing.entries[condemned.ordinal],
    )
