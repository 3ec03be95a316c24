"""Removes from a shard's queue what is done with, and never anything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

from remora.engine.delivery.scope import DeliveryScope
from remora.model.errors import OwnershipLost, RemoraError, StoreError, StoreFull
from remora.model.ledger import Cause
from remora.model.record import Page
from remora.policy.delivery.acks import PageAcks, Window
from remora.policy.delivery.pace import part_wait_s
from remora.policy.status.stages import EventStage


class Trimmer:
    """The window of entries between a queue's front and what was read, and the removals from its front.

    One removal at a time; whatever gets done meanwhile joins the next one. A store without room even for removals
    stops nothing else: entries that are done wait in the window, and the removal is tried again after a pause.
    """

    def __init__(
        self,
        scope: DeliveryScope,
        *,
        on_failure: Callable[[RemoraError], None],
        more_to_come: Callable[[], bool],
    ) -> None:
        """`on_failure` gets what ends the session.

        `more_to_come` tells whether more entries will be done soon, so that a whole page is worth waiting for.
        """
        self._scope, self._context = scope, scope.context
        self._lease = scope.lease
        self._label = scope.topic.label
        self._spans = scope.spans
        self._redelivery = scope.state.redelivery
        self._on_failure = on_failure
        self._more_to_come = more_to_come
        self._full = False
        self._window = Window()
        self._dirty = asyncio.Event()
        self._part_due: asyncio.TimerHandle | None = None
        self._takes_part = False
        self._took_s = 0.0
        self._removing = asyncio.Lock()
        self._stopped = False

    @property
    def is_empty(self) -> bool:
        """Whether everything that was read has left the queue."""
        return self._window.is_empty

    def add(self, page: Page) -> PageAcks:
        """Take in a page that begins where the last one ended."""
        return self._window.add(page.positions)

    def drop(self, newest: PageAcks) -> None:
        """Forgets the newest page; none of its entries is done."""
        self._window.drop(newest)

    def mark_done(self, of: PageAcks, ordinals: Sequence[int], cause: Cause) -> None:
        """Mark entries as done: acknowledged, dead-lettered, or done in an earlier session."""
        of.mark_done(ordinals, cause)
        self._dirty.set()

    def nudge(self) -> None:
        """Look again whether something can be removed."""
        self._dirty.set()

    def stop(self) -> None:
        """Remove nothing more: the queue is not ours. What is acknowledged from now on is another owner's affair."""
        self._stopped = True

    async def run(self) -> None:
        """Remove until cancelled."""
        try:
            await self._run()
        finally:
            self._wait_for_no_part()

    async def _run(self) -> None:
        pauses = _pauses()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._remove()
            except StoreFull as exc:
                self._full = True
                self._context.telemetry.failed(self._label, "store", str(exc), queue=self._lease.shard.queue)
                await asyncio.sleep(next(pauses))
                self._dirty.set()
            except StoreError as exc:
                self._fail(exc)
            else:
                pauses = _pauses()

    async def trim(self) -> None:
        """Remove what is done, now. A removal without an answer counts as a failure and may be repeated."""
        try:
            await self._remove()
        except StoreError as exc:
            self._fail(exc)

    def _fail(self, exc: StoreError) -> None:
        """Nothing was removed. A refusal is said apart: it shows that the store kept a former owner away."""
        if isinstance(exc, OwnershipLost):
            self._context.telemetry.removal_refused(self._lease.shard.queue, str(exc))
        self._on_failure(exc)

    async def _remove(self) -> None:
        async with self._removing:
            waits = self._more_to_come() and not self._takes_part
            prefix = self._window.removable(whole_pages=waits)
            if prefix is None or self._stopped:
                if waits and self._part_due is None and not self._stopped:
                    self._part_due = asyncio.get_running_loop().call_later(part_wait_s(self._took_s), self._take_part)
                return
            self._wait_for_no_part()
            span, began = self._spans.removal(prefix.upto, prefix.count), self._scope.clock()
            try:
                await self._context.store.queue.remove(self._lease.token, prefix.upto, prefix.count, prefix.tally)
            except StoreError as exc:
                span.end(str(exc))
                raise
            span.end()
            self._took_s = self._scope.clock() - began
            self._scope.took(EventStage.REMOVE, self._took_s)
            self._window.removed(prefix)
            if waits:
                self._dirty.set()  # part of the next page may be done already, and waits from now on
            self._redelivery.removed(prefix.upto)
            self._context.telemetry.removed(self._label, prefix.count)
            gate, state = self._context.gate, self._scope.state
            if gate.is_on:
                priority = gate.priority_of(self._scope.topic, self._lease.shard, at_tail=state.shaped.at_tail)
                gate.use_store(priority, round(prefix.count * state.reads.mean_bytes))
            if self._full:
                self._full = False
                self._context.telemetry.recovered(self._label, self._lease.shard.queue)

    def _take_part(self) -> None:
        self._part_due, self._takes_part = None, True
        self._dirty.set()

    def _wait_for_no_part(self) -> None:
        self._takes_part = False
        if self._part_due is not None:
            self._part_due.cancel()
            self._part_due = None

    def forget(self) -> Mapping[bytes, Cause]:
        """Forget the window; returns the entries that are done but stand in the queue yet, by position."""
        return self._window.forget()


def _pauses() -> Iterator[float]:
    """Seconds between attempts to remove from a full store: doubling, since only an operator makes room."""
    pause = 1.0
    while True:
        yield pause
        pause = min(2 * pause, 30.0)
