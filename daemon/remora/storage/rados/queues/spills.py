"""Moves entries from a queue's ring to runs, by the lock's holder, and what commands do with runs.

A move is one operation on the queue object, as a removal is: it checks lock, incarnation and state, takes the page from
the ring, names its run, and books both. So no entry is ever in both places, and whoever lost the lock is refused;
docs/decisions/spill.md has the proof.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from remora.codec.queue_ops import (
    HEAD_SIZE,
    decode_head,
    encode_remove,
    open_reservations,
    room_of,
)
from remora.codec.spill import MOST_RUNS, RUN_BYTES, RUN_ENTRIES, encode_run, run_key
from remora.model.errors import StoreDamaged, StoreError, StoreFull, StoreUnavailable
from remora.model.ledger import Tally
from remora.model.position import Position
from remora.model.record import Page
from remora.model.shard import LockToken, Shard
from remora.model.spill import SpilledRun, SpillLook, SpillUsage
from remora.storage.librados import WriteOp
from remora.storage.rados.cluster.part import INCARNATION, QUEUE_CLASS, decoded, held_read, held_write
from remora.storage.rados.cluster.refusals import HELD, ChangedError, FrontMovedError
from remora.storage.rados.cluster.state import STATE, StoredState, stored_state
from remora.storage.rados.queues.queue import HeldProgress, RadosQueue
from remora.storage.rados.queues.runs import SpilledView, run_of, spilled_view

_EXPORTED = "remora.exported"
"""The xattr with the position up to which spilled entries stand in a file."""

_TRIES = 3

_SEND_WITHIN_S = 60.0
"""A move is not sent later than this after its run was named, which is swept when no queue has named it for an hour."""


class RadosSpills(RadosQueue):
    """The queue, with moves."""

    may_spill = True

    async def look(self, token: LockToken) -> SpillLook:
        """The room of a queue, and what is spilled of it."""
        what = f"looking at the room of {token.shard}"
        operation = held_read(token)
        content, xattrs = operation.read(0, HEAD_SIZE), operation.xattrs()
        await self._run(operation, token, what)
        stored = stored_state(decoded(decode_head, content.data, what), xattrs.values, what)
        reservations = decoded(lambda values: open_reservations(stored.head, values), xattrs.values, what)
        return SpillLook(room_of(stored.head, reservations), stored.state.spill)

    async def guard(self, token: LockToken) -> bool:
        """Keep older remoras from the queue; see `ports.spill`."""
        return await self._guards.set(token.shard)

    async def unguard(self, token: LockToken) -> None:
        """Lift the guard of a queue without runs."""
        if not (await self.look(token)).spill.entries:
            await self._guards.lift(token.shard)

    async def usage(self) -> SpillUsage:
        """What the runs of all queues take of their pool."""
        return await self._runs.usage()

    async def move(self, token: LockToken) -> int:
        """Move a page from the ring to a run; returns how many entries."""
        progress = self._progress.setdefault(token, HeldProgress())
        async with progress.turns.alone(), progress.changing:
            for _ in range(_TRIES):
                with contextlib.suppress(ChangedError, FrontMovedError):
                    return await self._move(token, progress)
                progress.stored = None
        raise StoreUnavailable(f"spilling of {token.shard}: its state keeps changing")

    async def _move(self, token: LockToken, progress: HeldProgress) -> int:
        """Raises ChangedError where the queue is not as it was known to be; then nothing was moved."""
        known = progress.stored if progress.is_spilled else None  # else only its state is known, not its ring's front
        stored = known or await self._look(token, progress)
        if len(progress.runs) >= MOST_RUNS:
            raise StoreFull(f"{token.shard} has {MOST_RUNS} runs of spilled entries; there cannot be more")
        front, limit = stored.head.front, _run_entries(progress, stored)
        page = _within_bytes(await self.list_from(token, front, front, limit))
        if not page.entries:
            return 0
        progress.page_bytes = page.nbytes / len(page.entries)
        end = Position.parse(page.positions[-1].decode("ascii"))
        data = await self._runs.packed(page)
        run = run_of(page, self._runs.new_name(), stored.head.bytes_between(front, end), data)
        is_first = not stored.state.spill.entries
        if not await self._stored(token, run, data, is_first=is_first):
            return 0
        progress.is_spilled = True
        operation = held_write(token).assert_xattr(STATE, stored.value)
        operation.call(QUEUE_CLASS, "2pc_queue_remove_entries", encode_remove(str(end).encode(), run.entries))
        operation.set_omap({run_key(run): encode_run(run)})
        try:
            await self.book(operation, token, progress, stored.state.after_move(run))
        except ChangedError:
            await self._runs.discard([run])
            raise
        assert progress.stored is not None
        progress.stored = progress.stored._replace(head=replace(stored.head, front=end))
        progress.runs = (*progress.runs, run)
        if is_first:
            await self._guards.confirm(token.shard)
        return run.entries

    async def _stored(self, token: LockToken, run: SpilledRun, data: bytes, *, is_first: bool) -> bool:
        """Store a run; returns whether its queue may name it now.

        One that is refused is deleted at once: each takes of the bounds while it is listed. A write without an answer
        may come late, so its run stays in the list, for the sweep.
        """
        began = asyncio.get_running_loop().time()
        try:
            await self._runs.write(token, run, data)
        except StoreUnavailable:
            raise
        except StoreError:
            await self._runs.discard([run])
            raise
        await self._old_heads.settle(token.shard)
        if asyncio.get_running_loop().time() - began > _SEND_WITHIN_S:
            raise StoreUnavailable(f"spilling of {token.shard}: storing a run took too long")
        if not is_first or await self._guards.set(token.shard):  # it may have been released since
            return True
        await self._runs.discard([run])
        return False

    # ------------------------------------------------------------------------------------------ commands

    async def runs(self, shard: Shard) -> Sequence[SpilledRun]:
        """The runs of a queue, looked at without its lock."""
        return (await self._view(shard)).runs

    async def entries(self, shard: Shard) -> AsyncIterator[tuple[str, bytes]]:
        """The spilled entries, read without the lock."""
        view, after = await self._view(shard), Position(0, 0)
        while True:
            try:
                async for position, raw in view.entries(after):
                    yield position, raw
                    place = Position.parse(position)
                    after = place._replace(offset=place.offset + 1)
            except StoreDamaged:  # unless that run was delivered meanwhile
                before, view = view, await self._view(shard)
                if view.stored.value == before.stored.value:
                    raise
                continue
            return

    async def exported(self, shard: Shard, upto: str) -> None:
        """Note on the queue how far its spilled entries stand in a file."""
        view = await self._view(shard)
        operation = WriteOp().assert_exists().assert_xattr(INCARNATION, view.incarnation).set_xattr(_EXPORTED, upto)
        what = f"noting what was exported of {shard}"
        await self._connection.run(operation, shard.queue, what, HELD, self._locator(shard))

    async def drop(self, token: LockToken) -> int:
        """Remove what was exported, under the lock; those that were moved since are kept."""
        operation = held_read(token)
        xattrs = operation.xattrs()
        await self._run(operation, token, f"looking at {token.shard}")
        upto = xattrs.values.get(_EXPORTED, b"").decode("ascii", "replace")
        if not upto:
            return 0
        progress = self._progress.setdefault(token, HeldProgress())
        async with progress.turns.alone(), progress.changing:
            stored = await self._look(token, progress)
            whole = [run for run in progress.runs if run.end <= Position.parse(upto)]
            left = sum(run.entries for run in progress.runs[len(whole) :])
            count = stored.state.spill.entries - left
            if not whole or count <= 0:
                return 0
            progress.front = stored.front
            await self._old_heads.settle(token.shard)
            with contextlib.suppress(ChangedError):
                await self.take(token, progress, whole[-1].end, Tally(exported=count))
                return count
        raise StoreUnavailable(f"dropping spilled entries of {token.shard}: its state keeps changing")

    async def _view(self, shard: Shard) -> SpilledView:
        return await spilled_view(self._connection, shard, self._locator(shard), self._runs)


def _run_entries(progress: HeldProgress, stored: StoredState) -> int:
    """How many entries to list for a run: about as many as it has room for, and not all of a ring with large ones."""
    mean = progress.page_bytes
    fitting = RUN_BYTES / mean if mean else stored.state.entries_in(RUN_BYTES, stored.head)
    return min(RUN_ENTRIES, max(1, round(1.1 * fitting)))


def _within_bytes(page: Page) -> Page:
    """The first entries of a page that fit into a run; one at least."""
    if page.nbytes <= RUN_BYTES:
        return page
    nbytes = 0
    for count, each in enumerate(page.entries):
        nbytes += len(each)
        if nbytes > RUN_BYTES:
            return page.front(max(1, count))
    return page
