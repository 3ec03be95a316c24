"""How long a group of requests waits for others, before one transaction carries all of them out.

Clients that wait for their answers send their next requests together, a moment after the transaction that stored the
ones before. A transaction for the first of these would leave the others to the next one, and each costs as much as it
did when it carried all of them: its sync, a page of each queue, and a look of the delivery at each queue.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_S = 0.005
"""No group waits for longer, however slow the disk is."""


@dataclass(frozen=True, slots=True)
class Past:
    """The transaction before: how many requests it carried, and how long it took."""

    requests: int = 0
    seconds: float = 0.0


def wait_s(joined: int, past: Past) -> float:
    """How long to wait for as many requests as the transaction before carried: at most half as long as that took.

    A wait in vain is the last one: the next group expects no more than came.
    """
    return min(past.seconds / 2, MOST_S) if joined < past.requests else 0.0
