"""The ledger of a queue object as it lies in its xattr: what left the queue, and how far that reaches.

The ring tells how many bytes were ever committed to it, the state how many left it for a known cause. Both count the
overhead of each entry, so they agree to the byte while no other program removes entries without saying so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from remora.codec.queue_ops import QueueHead
from remora.model.errors import CodecError
from remora.model.ledger import Cause, Tally
from remora.model.position import Position
from remora.model.spill import NO_SPILL, Cut, Spill, SpilledRun

VERSION = 2
"""Of a queue with runs. One without them is stored as version 1, which older remoras read."""

GUESSED_BYTES = 700
"""What an entry costs of a ring where nothing is known of the queue's own; a radosgw's usually cost that."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """What left a queue from position `begun` on: `nbytes` bytes, the last of them before position `reached`.

    What was moved from the ring to runs has not left the queue; it stands before `reached`, too.
    """

    begun: Position
    reached: Position
    nbytes: int = 0
    removed: Tally = Tally()  # noqa: RUF009 - frozen
    spill: Spill = NO_SPILL

    def after_cut(self, share: Cut, end: Position, tally: Tally) -> QueueState:
        """The state when what a removal takes up to `end` has been removed."""
        reached = end if share.takes_ring else self.reached
        nbytes, removed = self.nbytes + share.nbytes, self.removed + tally
        return replace(self, reached=reached, nbytes=nbytes, removed=removed, spill=share.spill)

    def after_move(self, run: SpilledRun) -> QueueState:
        """The state when the oldest entries of the ring have become a run."""
        return replace(self, reached=run.end, spill=self.spill.after_move(run))

    def unaccounted_bytes(self, head: QueueHead) -> int:
        """Bytes that left the queue and that the state knows nothing of; below 0 when some count twice."""
        return head.bytes_between(self.begun, head.front) - self.nbytes - self.spill.nbytes

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


class _StoredSpill(msgspec.Struct, frozen=True):
    """What is spilled, as it is stored; `exported` counts entries that were given up, and outlasts the runs."""

    version: int
    front: str
    nbytes: int
    entries: int
    exported: int


_decoder = msgspec.msgpack.Decoder(_Stored)
_decode_spill = msgspec.msgpack.Decoder(_StoredSpill).decode


def encode_state(state: QueueState) -> bytes:
    """The value of xattr `remora.state`. Older remoras know no entries that were exported: there they are dropped."""
    counts = {**dict(state.removed.items()), Cause.DROPPED: state.removed.dropped + state.removed.exported}
    removed = {str(cause): count for cause, count in counts.items() if count and cause is not Cause.EXPORTED}
    version = VERSION if state.spill.entries else 1
    return msgspec.msgpack.encode(_Stored(version, str(state.begun), str(state.reached), state.nbytes, removed))


def encode_spill(state: QueueState) -> bytes:
    """The value of xattr `remora.spill`; empty where nothing is spilled, or was exported."""
    spill, exported = state.spill, state.removed.exported
    if not (spill.entries or exported):
        return b""
    return msgspec.msgpack.encode(_StoredSpill(1, str(spill.front), spill.nbytes, spill.entries, exported))


def decode_state(value: bytes, spilled: bytes = b"") -> QueueState:
    """The state in both xattrs. Raises CodecError, also for one of a newer version."""
    try:
        stored = _decoder.decode(value)
        spill, exported = _spill_in(spilled)
        removed = Tally(**stored.removed)
        removed = replace(removed, dropped=removed.dropped - exported, exported=exported)
        begun, reached = Position.parse(stored.begun), Position.parse(stored.reached)
        state = QueueState(begun, reached, stored.nbytes, removed, spill)
    except (msgspec.MsgspecError, TypeError, ValueError) as exc:
        raise CodecError("remora.state", 0, str(exc)) from exc
    if stored.version > VERSION:
        raise CodecError("remora.state", 0, f"version {stored.version} is newer than this remora's {VERSION}")
    if (stored.version == VERSION) is not bool(spill.entries):
        raise CodecError("remora.state", 0, f"version {stored.version}, and {spill.entries} entries are spilled")
    return state


def spill_in(value: bytes) -> Spill:
    """What is spilled, by xattr `remora.spill` alone. Raises CodecError."""
    try:
        return _spill_in(value)[0]
    except (msgspec.MsgspecError, ValueError) as exc:
        raise CodecError("remora.spill", 0, str(exc)) from exc


def _spill_in(value: bytes) -> tuple[Spill, int]:
    """What is spilled, and how many entries were exported."""
    if not value:
        return NO_SPILL, 0
    stored = _decode_spill(value)
    if stored.version > 1:
        raise ValueError(f"remora.spill has version {stored.version}")
    spill = Spill(Position.parse(stored.front), stored.nbytes, stored.entries) if stored.entries else NO_SPILL
    return spill, stored.exported
