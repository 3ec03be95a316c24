"""Which entries the embedded store puts straight where they settle, instead of into the log of its file.

The log spares a commit a page for each queue that it appends to, and an entry that is delivered while it lies there is
written once. One that is not is written twice: a backlog of large requests takes half as much again of the processor.
"""

from __future__ import annotations

LARGE_BYTES = 32 << 10
"""Two pages. So many bytes of one queue fill pages of its own as well as they fill those of the log."""


def settles_at_once(nbytes: int, waiting_bytes: int, kept_bytes: int) -> bool:
    """Whether a queue's part of a transaction is better not in the log.

    Of `nbytes`, and `waiting_bytes` are those of all queues that the transaction appends to, with what it appends: when
    the part's turn comes, about as much has come behind it, and the log keeps `kept_bytes`.
    """
    return nbytes >= LARGE_BYTES and waiting_bytes > kept_bytes
