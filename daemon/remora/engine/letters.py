"""Makes dead letters, with everything that is known of an entry at the moment it is given up, and stores them."""

from __future__ import annotations

import time

from remora.engine.shelf import Shelf, Tools
from remora.engine.sorting import Condemned
from remora.model.record import Attempt, DeadLetter, Listing
from remora.model.shard import Hold
from remora.model.topic import Topic


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


async def park(
    tools: Tools, hold: Hold, topic: Topic, shelf: Shelf, listing: Listing, condemned: Condemned
) -> DeadLetter:
    """Store the letter of one entry durably; only then may the entry leave its queue. Raises StoreError."""
    position = listing.positions[condemned.ordinal]
    parked = letter(hold, listing, condemned, shelf.attempts.get(position))
    await tools.store.park(hold, parked)
    tools.telemetry.parked(topic.label, parked.queue, parked.position, parked.cause, parked.reason)
    return parked
