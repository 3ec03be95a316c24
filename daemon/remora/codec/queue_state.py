"""The ledger of a queue object as it lies in its xattr: what left the queue, and how far that reaches.

The ring tells how many bytes were ever committed to it, the state how many left it for a known cause. Both count the
overhead of each entry, so they agree to the byte while no other program removes entries without saying so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from remora.codec.queue_ops import QueueHead
from remora.model.errors import CodecError
from remora.model.ledger import Tally
from remora.model.position import Position

VERSION = 1

GUESSED_BYTES = 700
"""What an entry costs of a ring where nothing is known of the queue's own; a radosgw's usually cost that."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """What left a queue from position `begun` on: `nbytes` bytes, the last of them before position `reached`."""

    begun: Position
    reached: Position
    nbytes: int = 0
    removed: Tally = Tally()  # noqa: RUF009 - frozen

    def after(self, head: QueueHead, start: Position, end: Position, tally: Tally) -> QueueState:
        """The state when the entries from `start` up to `end` have been removed."""
        nbytes = self.nbytes + head.bytes_between(start, end)
        return replace(self, reached=end, nbytes=nbytes, removed=self.removed + tally)

    def unaccounted_bytes(self, head: QueueHead) -> int:
        """Bytes that left the queue and that the state knows nothing of; below 0 when some count twice."""
        return head.bytes_between(self.begun, head.front) - self.nbytes

    def entries_in(self, nbytes: int, head: QueueHead) -> int:
        """How many entries `nbytes` bytes are, by the mean of all that left the queue, else of those that wait.

        Bytes that are not 0 are one entry at least.
        """
        if self.removed.total and self.nbytes > 0:
            mean = self.nbytes / self.removed.total
        elif head.committed_entries and head.used_bytes:
            mean = head.used_bytes / head.committed_entries
        else:
            mean = GUESSED_BYTES
        count = max(1, round(abs(nbytes) / mean)) if nbytes else 0
        return count if nbytes > 0 else -count

    def settled(self, head: QueueHead) -> QueueState:
        """The state when what others removed is booked as removed elsewhere, its entries estimated from the bytes."""
        gap = self.unaccounted_bytes(head)
        if gap <= 0:
            return self
        tally = Tally(removed_elsewhere=self.entries_in(gap, head))
        return replace(self, reached=head.front, nbytes=self.nbytes + gap, removed=self.removed + tally)


class _Stored(msgspec.Struct, frozen=True):
    """The state as it is stored. A change that adds a field raises the version: an older remora would lose it."""

    version: int
    begun: str
    reached: str
    nbytes: int
    removed: dict[str, int]


_decoder = msgspec.msgpack.Decoder(_Stored)


def encode_state(state: QueueState) -> bytes:
    """The xattr's value."""
    removed = {str(cause): count for cause, count in state.removed.items() if count}
    return msgspec.msgpack.encode(_Stored(VERSION, str(state.begun), str(state.reached), state.nbytes, removed))


def decode_state(value: bytes) -> QueueState:
    """The state in an xattr. Raises CodecError, also for one of a newer version."""
    try:
        stored = _decoder.decode(value)
        removed = Tally(**stored.removed)
        state = QueueState(Position.parse(stored.begun), Position.parse(stored.reached), stored.nbytes, removed)
    except (msgspec.MsgspecError, TypeError, ValueError) as exc:
        raise CodecError("remora.state", 0, str(exc)) from exc
    if stored.version > VERSION:
        raise CodecError("remora.state", 0, f"version {stored.version} is newer than this remora's {VERSION}")
    return state
