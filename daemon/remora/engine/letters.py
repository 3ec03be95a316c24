"""Makes dead letters: everything that is known of an entry at the moment it is given up."""

from __future__ import annotations

import time

from remora.engine.sorting import Condemned
from remora.model.record import DeadLetter, Listing
from remora.model.shard import Hold


def letter(
    hold: Hold, listing: Listing, condemned: Condemned, *, attempts: int = 0, first_tried: float | None = None
) -> DeadLetter:
    """The letter of one entry of a listing; `first_tried` is in seconds since the epoch, None for never."""
    now = time.time()
    return DeadLetter(
        queue=hold.shard.queue,
        incarnation=hold.incarnation,
        position=listing.positions[condemned.ordinal].decode(),
        next_position=listing.positions[condemned.ordinal + 1].decode(),
        cause=condemned.cause,
        reason=condemned.reason,
        attempts=attempts,
        first_seen=now if first_tried is None else first_tried,
        parked_at=now,
        raw=listing.entries[condemned.ordinal],
    )
