"""The committed entries of held queues. Each operation checks the lock and the incarnation itself."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

from remora.bounded import each_of
from remora.codec.queue_ops import (
    FRONT_AT,
    HEAD_SIZE,
    decode_head,
    decode_listing,
    decode_reservations,
    encode_abort,
    encode_front,
    encode_list,
    encode_remove,
)
from remora.codec.queue_state import QueueState, encode_spill, encode_state
from remora.codec.spill import run_key
from remora.model.entry import Time
from remora.model.errors import OwnershipLost, ShardGone, StoreDamaged, StoreError, StoreUnavailable
from remora.model.ledger import Tally
from remora.model.position import Position
from remora.model.record import Page
from remora.model.shard import LockToken, Origin
from remora.model.spill import Cut, SpilledRun
from remora.model.topic import generation_of
from remora.policy.ingest.reservations import Sightings
from remora.policy.queues.spill import cut, next_start, run_from
from remora.storage.librados import MISMATCH, ObjectOperation, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import QUEUE_CLASS, RadosPart, decoded, held_read, held_write
from remora.storage.rados.cluster.refusals import HELD, ChangedError, FrontMovedError, Refusals
from remora.storage.rados.cluster.state import SPILL, STATE, StoredState, stored_state
from remora.storage.rados.queues.old_heads import OldHeads
from remora.storage.rados.queues.releases import Guards
from remora.storage.rados.queues.runs import Runs, look_with_runs
from remora.storage.rados.queues.sealed_queues import NOTHING_BEFORE, Parents

_TRIES = 3
_READ_TRIES = 10

_BOOKED: Refusals = MappingProxyType(
    {
        **HELD,
        errno.ECANCELED: (ChangedError, "its state or its incarnation is another one"),
    }
)


_AT_FRONT: Refusals = MappingProxyType(
    {
        **HELD,
        **{MISMATCH + byte: (FrontMovedError, "its front has moved") for byte in range(16)},
    }
)


class MoveTurns:
    """Lets reads and removals of a queue go on beside each other, and a move only alone."""

    def __init__(self) -> None:
        self._shared = 0
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._entrance = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Beside others of this kind. It ends without waiting, so that who is cancelled meanwhile keeps nobody out."""
        async with self._entrance:
            self._shared += 1
            self._is_free.clear()
        try:
            yield
        finally:
            self._shared -= 1
            if not self._shared:
                self._is_free.set()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """When all that is under way has ended; what comes meanwhile waits."""
        async with self._entrance:
            await self._is_free.wait()
            yield


@dataclass(slots=True)
class HeldProgress:
    """What this process knows of a held queue.

    `listed` is how far it has listed; `front` is where the queue began when it was last listed from there or removed
    from; `stored` is the state in the queue, None before the first look and after a change without an answer, and
    `runs` are those of that state. `replaced` is the state that a change under way replaces. `is_known` once it was
    looked for runs under this lock. `is_spilled` while there are runs, or may be: then its ring begins elsewhere than
    the queue, and is listed only from where it is known to begin.
    It `is_empty` if the last read found no entry. `page_bytes` is the mean of the entries that were moved last.
    `after` is where its parents ended, None until nothing has to be delivered before it; `begun` is where the queue
    begins, if nothing has left it.
    Who changes the queue holds `changing` until the outcome is known.
    """

    listed: Position | None = None
    front: Position | None = None
    stored: StoredState | None = None
    replaced: StoredState | None = None
    runs: Sequence[SpilledRun] = ()
    is_known: bool = False
    is_spilled: bool = False
    after: bytes | None = None
    begun: Position | None = None
    is_empty: bool = False
    page_bytes: float = 0.0
    turns: MoveTurns = field(default_factory=MoveTurns)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


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


class QueueParts(NamedTuple):
    """The parts of the store that a queue uses."""

    old_heads: OldHeads
    runs: Runs
    guards: Guards
    parents: Parents


class _OpenReservation(NamedTuple):
    """A reservation, distinct from all others of its queue: ids begin anew after 4 billion."""

    id: int
    made: Time


_NEVER_SEEN: Sightings[_OpenReservation] = Sightings()


class RadosQueue(RadosPart):
    """Lists and removes entries of held queues, and frees room there."""

    poll_cost_s = 0.0003
    """Seconds: one operation of an OSD."""

    def __init__(self, connection: ClusterConnection, parts: QueueParts, *companions: Companion) -> None:
        super().__init__(connection)
        self._old_heads, self._runs, self._guards, self._parents = parts
        self._companions = companions
        self._progress: dict[LockToken, HeldProgress] = {}
        self._reserved: dict[LockToken, Sightings[_OpenReservation]] = {}

    def taken(self, token: LockToken) -> None:
        """The lock was acquired: another owner may have moved entries to runs since this process last had it."""
        if (progress := self._progress.get(token)) is not None:
            progress.is_known, progress.stored = False, None

    def let_go(self, token: LockToken) -> None:
        """The lock is not held any more: nothing of what was known under it counts for whoever takes it next."""
        self._progress.pop(token, None)
        for each in self._companions:
            each.let_go(token)
        self._reserved.pop(token, None)
        self._guards.let_go(token.shard)

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        """Up to `limit` entries from position `start` on; from the oldest one when `start` is empty.

        They come from runs first, and then from the ring. None come while the parents of a queue are not through.
        """
        progress = self._progress.setdefault(token, HeldProgress())
        if progress.after is None and (why := await self._held_back(token, progress)):
            page = await self._list(token, progress, b"", 1)
            return Page(page.positions[:1], [], truncated=False, held_back=why)
        async with progress.turns.shared():
            if start and not progress.is_known:
                await self._look(token, progress)
            if not progress.is_spilled:
                page = await self._list(token, progress, start, limit)
            if progress.is_spilled:  # perhaps only as was seen together with that page
                page = await self._read_spilled(token, progress, start, limit)
            first, end = (Position.parse(page.positions[i].decode("ascii")) for i in (0, -1))
            progress.listed = max(progress.listed or end, end)
            if not start:
                progress.front = first
        if not page.entries and not progress.is_empty and token.shard.origin is Origin.REMORA:
            self._parents.emptied(token.shard)
        progress.is_empty = not page.entries
        return replace(page, after=progress.after) if progress.after and first == progress.begun else page

    async def _held_back(self, token: LockToken, progress: HeldProgress) -> str:
        """Why a queue is not delivered yet; empty where nothing has to be before it, which is noted."""
        precedence = NOTHING_BEFORE
        if token.shard.origin is Origin.REMORA and generation_of(token.shard.queue):
            precedence = await self._parents.before(token.shard)
        if not precedence.why:
            progress.after = precedence.after
        return precedence.why

    async def _list(self, token: LockToken, progress: HeldProgress, start: bytes, limit: int) -> Page:
        """List the ring; under a new lock looks in the same operation whether there are runs."""
        what = f"listing {token.shard}"
        operation = held_read(token)
        reply = operation.call(QUEUE_CLASS, "2pc_queue_list_entries", encode_list(limit, start))
        look = None if progress.is_known else (operation.read(0, HEAD_SIZE), operation.xattrs())
        await self._run(operation, token, what)
        if look is not None:
            stored = stored_state(decoded(decode_head, look[0].data, what), look[1].values, what)
            progress.is_known, progress.is_spilled = True, stored.state.spill.entries > 0
            progress.begun = None if stored.state.removed.total else stored.state.begun
            progress.stored = None if progress.is_spilled else stored
        return decoded(decode_listing, reply.data, what)

    async def _read_spilled(self, token: LockToken, progress: HeldProgress, start: bytes, limit: int) -> Page:
        """Read a run, or else list the ring; see `read`."""
        may_go_ahead = bool(start)  # a removal that is under way takes nothing from there on
        for _ in range(_READ_TRIES):
            stored = (progress.stored or progress.replaced) if may_go_ahead else None
            if stored is None:
                async with progress.changing:
                    stored = progress.stored or await self._look(token, progress)
            at = max(Position.parse(start.decode("ascii")), stored.front) if start else stored.front
            index = run_from(progress.runs, at)
            if index == len(progress.runs):
                with contextlib.suppress(FrontMovedError):
                    return await self.list_from(token, stored.head.front, max(at, stored.head.front), limit)
                may_go_ahead = False
                if progress.stored is stored:
                    progress.stored = None
                continue
            run, end = progress.runs[index], next_start(progress.runs, index, stored.head.front)
            try:
                page, _ = await asyncio.gather(
                    self._runs.read(run), self._run(held_read(token), token, f"reading a run of {token.shard}")
                )
            except StoreDamaged:  # unless it is gone because it was delivered, by whoever has the lock by now
                async with progress.changing:
                    await self._look(token, progress)
                if run in progress.runs:
                    raise
                continue
            return _part(page, at, limit, end)
        raise StoreUnavailable(f"listing {token.shard}: its front keeps moving")

    async def list_from(self, token: LockToken, front: Position, start: Position, limit: int) -> Page:
        """List the ring where it begins at `front`, else FrontMovedError; an OSD may hang where nothing stands."""
        what = f"listing {token.shard}"
        operation = held_read(token).assert_data(FRONT_AT, encode_front(front))
        reply = operation.call(QUEUE_CLASS, "2pc_queue_list_entries", encode_list(limit, str(start).encode()))
        await self._run(operation, token, what, _AT_FRONT)
        return decoded(decode_listing, reply.data, what)

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
        if progress is None or progress.listed is None:
            await self._run(held_read(token), token, what)  # a queue that is gone is that, and no lost lock
            raise OwnershipLost(f"{token.shard}: nothing was listed under this lock, or the lock was lost since")
        if end > progress.listed or progress.front is None:
            raise ValueError(f"{token.shard}: nothing was listed up to {end}, so nothing may be removed up to there")
        async with progress.turns.shared(), progress.changing:
            await self._remove(token, progress, end, tally)

    async def _remove(self, token: LockToken, progress: HeldProgress, end: Position, tally: Tally) -> None:
        what = f"removing from {token.shard}"
        assert progress.front is not None
        for _ in range(_TRIES):
            if end <= progress.front or (progress.stored and end <= progress.stored.front):
                await self._run(held_read(token), token, what)
                progress.front = max(progress.front, end)
                return
            await self._old_heads.settle(token.shard)
            stored = progress.stored or await self._look(token, progress)
            if end <= stored.front:
                continue
            if progress.front < stored.front:
                raise StoreUnavailable(f"{what}: its front is at {stored.front} by now")
            with contextlib.suppress(ChangedError):  # an earlier removal came late, or it is another queue: look again
                await self.take(token, progress, end, tally)
                progress.front = end
                return
        raise StoreUnavailable(f"{what}: its state keeps changing")

    async def take(self, token: LockToken, progress: HeldProgress, end: Position, tally: Tally) -> None:
        """Remove all entries before `end`, and book them, if the stored state is still the one that is known."""
        stored = progress.stored
        assert stored is not None
        front = stored.head.front if progress.is_spilled else progress.front or stored.front
        share = cut(progress.runs, stored.state.spill, front, (end, tally.total), stored.head.bytes_between)
        state = stored.state.after_cut(share, end, tally)
        operation = held_write(token).assert_xattr(STATE, stored.value)
        if share.takes_ring:
            upto = str(end).encode()
            operation.call(QUEUE_CLASS, "2pc_queue_remove_entries", encode_remove(upto, share.ring_entries))
        if share.gone:
            operation.remove_omap([run_key(each) for each in share.gone])
        for each in self._companions:
            each.forget(operation, token, end)
        await self.book(operation, token, progress, state)
        for each in self._companions:
            each.forgotten(token, end)
        await self._follow(token, progress, share, end)

    async def book(self, operation: WriteOp, token: LockToken, progress: HeldProgress, state: QueueState) -> None:
        """Carry out a change of the queue together with that of its state; then no state is known, until it is told."""
        stored, progress.stored = progress.stored, None
        assert stored is not None
        value, spilled = encode_state(state), encode_spill(state)
        operation.set_xattr(STATE, value)
        if spilled != encode_spill(stored.state):
            operation.set_xattr(SPILL, spilled)
        progress.replaced = stored
        try:
            await self._run(operation, token, f"removing from {token.shard}", _BOOKED)
        finally:
            progress.replaced = None
        progress.stored = StoredState(value, state, stored.head)

    async def _follow(self, token: LockToken, progress: HeldProgress, share: Cut, end: Position) -> None:
        """Note what a removal took of runs and ring, and delete the objects of runs that are gone."""
        if not progress.is_spilled or progress.stored is None:
            return
        stored = progress.stored
        if share.takes_ring:
            progress.stored = stored._replace(head=replace(stored.head, front=end))
        progress.runs = progress.runs[run_from(progress.runs, end) :]
        progress.is_spilled = bool(progress.runs)
        if share.gone:
            await self._runs.discard(share.gone)
        if not progress.is_spilled:
            with contextlib.suppress(StoreError):
                await self._guards.lift(token.shard)

    async def _look(self, token: LockToken, progress: HeldProgress) -> StoredState:
        """The state as it is now, and the runs."""
        what = f"looking at {token.shard}"
        found = await look_with_runs(lambda: held_read(token), lambda each: self._run(each, token, what), what)
        stored = progress.stored = found.stored
        progress.runs, progress.is_known = found.runs, True
        progress.is_spilled = progress.is_spilled or bool(progress.runs)
        progress.begun = None if stored.state.removed.total else stored.state.begun
        return stored

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
        return await each_of(tokens, lambda token: self._expire(token, older_than_s), StoreError)

    async def _run(self, operation: ObjectOperation, token: LockToken, what: str, refusals: Refusals = HELD) -> None:
        try:
            await self._connection.run(operation, token.shard.queue, what, refusals, self._locator(token.shard))
        except (OwnershipLost, ShardGone):
            self.let_go(token)
            raise


def _part(page: Page, at: Position, limit: int, end: Position) -> Page:
    """Up to `limit` entries of a run from a position on; behind the last one stands what follows the run, at `end`."""
    first = bisect_left(page.positions, at, key=lambda each: Position.parse(each.decode("ascii")))
    last = min(first + limit, len(page.entries))
    found = page.positions[first : last + 1]
    if last == len(page.entries):
        found[-1] = str(end).encode()
    return Page(found, page.entries[first:last], True)
