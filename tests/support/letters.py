"""Dead letters of entries that a test has read."""

from __future__ import annotations

from remora.model.record import DeadLetter, Page
from remora.model.shard import LockToken


def letters_of(token: LockToken, page: Page) -> list[DeadLetter]:
    """A letter for each entry of a page of the queue that is held."""
    positions = [each.decode() for each in page.positions]
    return [
        DeadLetter(
            queue=token.shard.queue,
            incarnation=token.incarnation,
            position=positions[i],
            next_position=positions[i + 1],
            cause="expired",
            reason="too old",
            attempts=0,
            first_seen=1.0,
            parked_at=2.0,
            raw=raw,
        )
        for i, raw in enumerate(page.entries)
    ]
