"""Group commit of the embedded store: how long a group waits for others, and what goes past the log.

Clients that wait for their answers send their next requests together, a moment after the transaction that stored the
ones before. A transaction for the first of these would leave the others to the next one, and each costs as much as it
did when it carried all of them: its sync, a page of each queue, and a look of the delivery at each queue.

The log spares a commit a page for each queue that it appends to, and an entry that is delivered while it lies there is
written once. One that is not is written twice: a backlog of large requests takes half as much again of the processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_S = 0.005
"""No group waits for longer, however slow the disk is."""

LARGE_BYTES = 32 << 10
"""Two pages. So many bytes of one queue fill pages of its own as well as they fill those of the log."""


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


def settles_at_once(nbytes: int, waiting_bytes: int, kept_bytes: int) -> bool:
    """Whether a queue's part of a transaction is better not in the log.

    Of `nbytes`, and `waiting_bytes` are those of all queues that the transaction appends to, with what it appends: when
    the part's turn comes, about as much has come behind it, and the log keeps `kept_bytes`.
    """
    return nbytes >= LARGE_BYTES and waiting_bytes > kept_bytes


def fitting(sizes: Sequence[int], left_bytes: int) -> list[bool]:
    """Which requests of these sizes are stored in a file that has so much room left: those that fit, one behind the
    other, and the first where none does.

    They get half of the room: pages are not filled to the last byte, and others are changed beside them.
    """
    left = left_bytes // 2
    found = []
    for nbytes in sizes:
        found.append(nbytes <= left)
        left -= nbytes if nbytes <= left else 0
    if not any(found):
        found[0] = True
    return found
