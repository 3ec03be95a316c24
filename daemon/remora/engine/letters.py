"""Makes dead letters, with everything that is known of an entry at the moment it is given up, and stores them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from remora.engine.shelf import Shelf, Tools
from remora.engine.sorting import Condemned
from remora.model.record import Attempt, DeadLetter, Listing
from remora.model.shard import Hold
from remora.model.topic import Topic

AT_ONCE = 64
"""Letters that are stored side by side, which costs a store little more than one."""


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


async def park_all(
    tools: Tools, hold: Hold, topic: Topic, shelf: Shelf, listing: Listing, condemned: Sequence[Condemned]
) -> list[DeadLetter]:
    """Store the letters of several entries, as `park` does. The first error ends it, when those beside have ended."""
    letters: list[DeadLetter] = []
    for i in range(0, len(condemned), AT_ONCE):
        parked = await asyncio.gather(
            *(park(tools, hold, topic, shelf, listing, each) for each in condemned[i : i + AT_ONCE]),
            return_exceptions=True,
        )
        for each in parked:
            if isinstance(each, BaseException):
                raise each
            letters.append(each)
    return letters
