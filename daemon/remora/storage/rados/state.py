"""The state of a queue: its ledger, in an xattr that is written by whatever removes from the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from remora.codec.queue_ops import QueueHead
from remora.codec.queue_state import QueueState, decode_state
from remora.model.errors import CodecError, StoreError

STATE = "remora.state"
"""The xattr. Each change of it demands the value that it replaces, so that nothing is booked twice."""


class StoredState(NamedTuple):
    """A state with the very bytes that it lies in the queue as, empty where there is none yet, and the queue's head."""

    value: bytes
    state: QueueState
    head: QueueHead


def stored_state(head: QueueHead, xattrs: Mapping[str, bytes], what: str) -> StoredState:
    """The state among a queue's attributes; a queue without one begins its ledger at its front."""
    value = xattrs.get(STATE, b"")
    if not value:
        return StoredState(value, QueueState(head.front, head.front), head)
    try:
        return StoredState(value, decode_state(value), head)
    except CodecError as exc:
        raise StoreError(f"{what}: its ledger cannot be read: {exc}") from exc
