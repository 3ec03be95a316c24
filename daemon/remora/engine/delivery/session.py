"""One shard's entries on their way through one route, from the first read to the last removal.

A session ends when it is asked to, when its topic or route changed, at the first failure, or when nothing came for
long. It never retries: the dispatcher starts another one. What keeps the order, in short:

* entries are read in queue order, and a sender sends those of a key in that order (`lanes`, `transactions`);
* after a failure nothing is begun any more, and the next session begins only when all that was under way has ended;
* the next session reads from the queue's front again and skips what had arrived (`ShardState.done`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from remora.engine.admission.givers import Allowance
from remora.engine.delivery.reader import Reader
from remora.engine.delivery.scope import DeliveryScope
from remora.engine.delivery.triage import Triaged, triage
from remora.engine.delivery.trimmer import Trimmer
from remora.model.errors import EndpointError, OwnershipLost, RemoraError, ShardGone
from remora.model.record import Page, Record
from remora.model.topic import Source
from remora.policy.delivery.acks import PageAcks


class Sender(Protocol):
    """Sends what a session reads, in lanes or in transactions."""

    @property
    def is_busy(self) -> bool:
        """Whether more entries will be done soon, so that a whole page is worth waiting for."""
        ...

    async def prepare(self) -> bytes:
        """What must be done before anything is sent; returns the position to read from. Raises RemoraError."""
        ...

    def begin(self) -> None:
        """The session's tasks run from now on."""
        ...

    async def read_on(self, start: bytes) -> None:
        """Read page after page from this position on, and send them, until the session is over."""
        ...

    def cut_short(self) -> None:
        """Begin nothing more: what is not under way is read again by the next session."""
        ...

    def wake(self) -> None:
        """The session is over: what waits for more entries goes as it is."""
        ...

    async def settle(self) -> None:
        """Wait for everything under way."""
        ...


class Session:
    """See the module. `run` is called once."""

    def __init__(self, scope: DeliveryScope, allowance: Allowance, on_progress: Callable[[], None]) -> None:
        """`on_progress` is called whenever a whole page has arrived, or a transaction was committed.

        `passivates` is true after a session that ended because nothing came for long, `leaves_waiting` after one that
        leaves the waiting for credit to its dispatcher.
        """
        self.scope = scope
        self._redelivery = scope.state.redelivery
        self.on_progress = on_progress
        self.passivates = self.leaves_waiting = False
        self.failure: RemoraError | None = None
        self.tasks, self._over = asyncio.TaskGroup(), asyncio.Event()
        self._sender: Sender | None = None
        self.trimmer = Trimmer(
            scope, on_failure=self.fail, more_to_come=lambda: self._sender is not None and self._sender.is_busy
        )
        self.reader = Reader(
            scope,
            allowance,
            self.tasks,
            on_failure=self.fail,
            all_removed=lambda: self.trimmer.is_empty,
            on_long_wait=self._leave_waiting,
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be read."""
        return self._over.is_set()

    def end(self) -> None:
        """Read nothing more; what was read is still delivered and removed."""
        self._over.set()
        if self._sender is not None:
            self._sender.wake()

    async def run(self, sender: Sender) -> None:
        """Deliver until ended; then raise what ended it, if that was a failure."""
        name, self._sender = self.scope.lease.shard.queue, sender
        try:
            start = await sender.prepare()
            async with self.tasks:
                reader = self.tasks.create_task(sender.read_on(start), name=f"read {name}")
                watcher = self.tasks.create_task(self._watch(), name=f"watch {name}")
                trimmer = self.tasks.create_task(self.trimmer.run(), name=f"trim {name}")
                sender.begin()
                await self._over.wait()
                reader.cancel()
                watcher.cancel()
                self.reader.stop()
                await sender.settle()
                await self.trimmer.trim()
                trimmer.cancel()
        finally:
            self._redelivery.done.update(self.trimmer.forget())
            self.reader.close(keeps_place=self.leaves_waiting and self.failure is None)
            self._sender = None
            del self.trimmer, self.reader  # they refer to the session: nothing of it is left for the collector
        if self.failure is not None:
            raise self.failure

    def take_in(self, page: Page) -> tuple[PageAcks, Triaged]:
        """A page that is about to be sent: it joins the window that is removed from, and is divided."""
        scope = self.scope
        self.reader.learn(page)
        triaged = triage(page, scope.topic, scope.limits, self._redelivery, scope.context.renderer)
        self.reader.taken(page, triaged.records)
        self.reader.held.sent(len(page.entries) - len(triaged.skipped), len(page.entries))
        return self.trimmer.add(page), triaged

    def count_attempts(self, records: Sequence[Record], exc: EndpointError) -> None:
        """A push of these records failed; what did not arrive was tried, which counts where attempts are limited."""
        self._redelivery.failed(records, exc, self.scope.arrived_late, counts=self.scope.limits.counts_attempts)

    def fail(self, exc: RemoraError) -> None:
        """Remember the first failure, or one that ends the ownership of the shard; begin nothing more."""
        if isinstance(exc, EndpointError):
            self.scope.context.quarantines.failed(self.scope.topic, exc.kind, exc.retry_after_s)
        if self.failure is None or isinstance(exc, OwnershipLost | ShardGone):
            self.failure = exc
        if isinstance(exc, OwnershipLost | ShardGone):
            self.trimmer.stop()
        self.cut_short()

    def cut_short(self) -> None:
        """Begin nothing more: what is not under way is read again by the next session."""
        if self._sender is not None:
            self._sender.cut_short()
        self.end()

    def _leave_waiting(self) -> None:
        """There is no credit: read nothing more, and let go of what others need."""
        self.leaves_waiting = True
        self.end()

    async def _watch(self) -> None:
        """End the session when its topic is sent otherwise by now, or is held: what was read is read anew."""
        scope = self.scope
        seen = None if scope.topic.source is Source.ENTRY else scope.topic
        await scope.context.catalogue.wait_for_change(scope.lease.shard, seen)
        self.cut_short()
