"""The committed entries of held queues. Each operation checks the lock and the incarnation itself."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from remora.codec.queue_ops import (
    HEAD_SIZE,
    decode_head,
    decode_listing,
    decode_reservations,
    encode_abort,
    encode_list,
    encode_remove,
)
from remora.codec.queue_state import QueueState, encode_state
from remora.model.entry import Time
from remora.model.errors import OwnershipLost, ShardGone, StoreError, StoreUnavailable
from remora.model.ledger import Tally
from remora.model.position import Position
from remora.model.record import Page
from remora.model.shard import LockToken
from remora.policy.reservations import Sightings
from remora.storage.librados import Operation, WriteOp
from remora.storage.rados.connection import ClusterConnection
from remora.storage.rados.old_heads import OldHeads
from remora.storage.rados.part import QUEUE_CLASS, RadosPart, decoded, held_read, held_write
from remora.storage.rados.refusals import HELD, ChangedError, Refusals
from remora.storage.rados.state import STATE, StoredState, stored_state

_AT_ONCE = 32

_TRIES = 3

_BOOKED: Refusals = MappingProxyType(
    {
        **HELD,
        errno.ECANCELED: (ChangedError, "its state or its incarnation is another one"),
    }
)


@dataclass(slots=True)
class _Progress:
    """What this process knows of a held queue.

    `listed` is how far it has listed; `front` is where the queue began when it was last listed from there or removed
    from; `stored` is the state in the queue, None before the first removal and after one without an answer.
    """

    listed: Position
    front: Position | None = None
    stored: StoredState | None = None


class Companion(Protocol):
    """Stores something beside a queue's entries that is deleted with the last of them."""

    def forget(self, operation: WriteOp, token: LockToken, end: Position) -> None:
        """Add to the removal of the entries before `end` what is deleted with them."""
        ...

    def forgotten(self, token: LockToken, end: Position) -> None:
        """Note that this removal has succeeded."""
        ...

    def let_go(self, token: LockToken) -> None:
        """Note that the lock is no longer held."""
        ...


class _OpenReservation(NamedTuple):
    """A reservation, distinct from all others of its queue: ids begin anew after 4 billion."""

    id: int
    made: Time


_NEVER_SEEN: Sightings[_OpenReservation] = Sightings()


class Queue(RadosPart):
    """Lists and removes entries of held queues, and frees room there."""

    poll_cost_s = 0.0003
    """Seconds: one operation of an OSD."""

    def __init__(self, connection: ClusterConnection, old_heads: OldHeads, *companions: Companion) -> None:
        super().__init__(connection)
        self._old_heads = old_heads
        self._companions = companions
        self._progress: dict[LockToken, _Progress] = {}
        self._reserved: dict[LockToken, Sightings[_OpenReservation]] = {}

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        """Up to `limit` entries from position `start` on; from the oldest one when `start` is empty."""
        what = f"listing {token.shard}"
        operation = held_read(token)
        reply = operation.call(QUEUE_CLASS, "2pc_queue_list_entries", encode_list(limit, start))
        await self._run(operation, token, what)
        page = decoded(decode_listing, reply.data, what)
        self._note_listed(token, page, from_front=not start)
        return page

    async def remove(self, token: LockToken, upto: bytes, count: int, tally: Tally) -> None:
        """Remove the oldest `count` entries, all those before position `upto`, and book them in the queue's state.

        The OSD does not compare a position with the queue's tail, and one beyond it would damage the queue for good. So
        only what this process has listed under this lock is removed: ValueError otherwise.

        The operation demands that the state is the one that was seen last. So a removal that timed out and is carried
        out late counts once, whether it comes before its repetition or after it.
        """
        what, end = f"removing from {token.shard}", Position.parse(upto.decode("ascii"))
        if tally.total != count:
            raise ValueError(f"{what}: a tally of {tally.total} for {count} entries")
        progress = self._progress.get(token)
        if progress is None:
            raise OwnershipLost(f"{token.shard}: nothing was listed under this lock, or the lock was lost since")
        if end > progress.listed or progress.front is None:
            raise ValueError(f"{token.shard}: nothing was listed up to {end}, so nothing may be removed up to there")
        for _ in range(_TRIES):
            if end <= progress.front or (progress.stored and end <= progress.stored.state.reached):
                await self._run(held_read(token), token, what)
                progress.front = max(progress.front, end)
                return
            await self._old_heads.settle(token.shard)
            stored = progress.stored = progress.stored or await self._look(token, what)
            if end <= stored.state.reached:
                continue
            if progress.front < stored.state.reached:
                raise StoreUnavailable(f"{what}: its front is at {stored.state.reached} by now")
            state = stored.state.after(stored.head, progress.front, end, tally)
            progress.stored = None
            with contextlib.suppress(ChangedError):  # an earlier removal came late, or it is another queue: look again
                progress.stored = await self._remove(token, upto, count, stored, state)
                for each in self._companions:
                    each.forgotten(token, end)
                progress.front = end
                return
        raise StoreUnavailable(f"{what}: its state keeps changing")

    async def _remove(
        self, token: LockToken, upto: bytes, count: int, stored: StoredState, state: QueueState
    ) -> StoredState:
        """Remove entries and write the new state, if the stored one is unchanged."""
        operation, value = held_write(token).assert_xattr(STATE, stored.value), encode_state(state)
        operation.call(QUEUE_CLASS, "2pc_queue_remove_entries", encode_remove(upto, count)).set_xattr(STATE, value)
        for each in self._companions:
            each.forget(operation, token, state.reached)
        await self._run(operation, token, f"removing from {token.shard}", _BOOKED)
        return StoredState(value, state, stored.head)

    async def _look(self, token: LockToken, what: str) -> StoredState:
        """The state as it is now."""
        operation = held_read(token)
        content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
        await self._run(operation, token, what)
        return stored_state(decoded(decode_head, content.data, what), xattrs.values, what)

    async def _expire(self, token: LockToken, older_than_s: float) -> None:
        """Free the room of reservations that this process first saw longer ago than this.

        Where none is open this is one read. The OSD's own method of expiry is not used: it takes an absolute time, and
        so trusts this host's wall clock.
        """
        what = f"expiring reservations of {token.shard}"
        operation = held_read(token)
        reply = operation.call(QUEUE_CLASS, "2pc_queue_list_reservations")
        await self._run(operation, token, what)
        found = [_OpenReservation(each.id, each.timestamp) for each in decoded(decode_reservations, reply.data, what)]
        now = asyncio.get_running_loop().time()
        seen = self._reserved.pop(token, _NEVER_SEEN).after_look(found, now)
        if found:
            self._reserved[token] = seen
        for each in seen.seen_for(older_than_s, now):
            await self._old_heads.settle(token.shard)
            # One for each operation: a class call does not see what an earlier call of its operation wrote.
            aborting = held_write(token).call(QUEUE_CLASS, "2pc_queue_abort", encode_abort(each.id))
            await self._run(aborting, token, what)

    async def expire_all(self, tokens: Sequence[LockToken], older_than_s: float) -> Sequence[StoreError | None]:
        """Expire in several queues, 32 at a time; returns an error for each that failed."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(token: LockToken) -> StoreError | None:
            try:
                async with gate:
                    await self._expire(token, older_than_s)
            except StoreError as exc:
                return exc
            return None

        return await asyncio.gather(*map(one, tokens))

    async def _run(self, operation: Operation, token: LockToken, what: str, refusals: Refusals = HELD) -> None:
        try:
            await self._connection.run(operation, token.shard.queue, what, refusals, self._locator(token.shard))
        except (OwnershipLost, ShardGone):
            self._progress.pop(token, None)
            for each in self._companions:
                each.let_go(token)
            self._reserved.pop(token, None)
            raise

    def _note_listed(self, token: LockToken, page: Page, *, from_front: bool) -> None:
        first, end = (Position.parse(page.positions[i].decode("ascii")) for i in (0, -1))
        progress = self._progress.setdefault(token, _Progress(end))
        progress.listed = max(progress.listed, end)
        if from_front:
            progress.front = first
