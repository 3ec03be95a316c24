"""The state of a queue: its ledger, in an xattr that every removal from the queue writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from remora.codec.queue_ops import QueueHead
from remora.codec.queue_state import QueueState, decode_state
from remora.model.errors import CodecError, StoreError
from remora.model.position import Position
from remora.policy.queues.spill import logical_front

STATE = "remora.state"
"""The xattr. Each change demands the value that it replaces, so that nothing is booked twice."""

SPILL = "remora.spill"
"""The xattr with what is spilled, which changes only together with the state."""


class StoredState(NamedTuple):
    """A state, its bytes in the xattr (empty where there is none yet), and the queue's head of the same moment."""

    value: bytes
    state: QueueState
    head: QueueHead

    @property
    def front(self) -> Position:
        """Where the oldest entry stands, in a run or in the ring, as far as the state tells."""
        return logical_front(self.state.spill, self.state.reached)


def stored_state(head: QueueHead, xattrs: Mapping[str, bytes], what: str) -> StoredState:
    """The state among a queue's attributes; a queue without one begins its ledger at its front. Raises StoreError."""
    value = xattrs.get(STATE, b"")
    if not value:
        return StoredState(value, QueueState(head.front, head.front), head)
    try:
        return StoredState(value, decode_state(value, xattrs.get(SPILL, b"")), head)
    except CodecError as exc:
        raise StoreError(f"{what}: its ledger cannot be read: {exc}") from exc


def queue_front(stored: StoredState) -> Position:
    """Where the oldest entry of a queue stands that was looked at, also where others removed from its ring."""
    return logical_front(stored.state.spill, stored.head.front)
