"""Delivers one owned shard while it has work: session after session, with a pause after each failure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random

from remora.engine.delivery.committer import Committer
from remora.engine.delivery.head_expiry import HeadExpiry
from remora.engine.delivery.lanes import LaneSender
from remora.engine.delivery.scope import DeliveryScope, WorkerContext
from remora.engine.delivery.session import Sender, Session
from remora.engine.delivery.spans import TracedExactRoute, TracedRoute
from remora.engine.delivery.transactions import TransactionSender
from remora.engine.dispatching.oldest_entry import OldestEntry
from remora.engine.dispatching.outlet import Outlet, Outlets
from remora.engine.dispatching.scope import DispatchScope
from remora.engine.dispatching.standing import Standing
from remora.engine.dispatching.succession import Succession
from remora.engine.dispatching.turn import Turn
from remora.engine.dispatching.waits import Waits
from remora.engine.lease import Lease
from remora.engine.status import ShardStatus
from remora.model.errors import (
    EndpointError,
    EntryRefused,
    NotOurs,
    OwnershipLost,
    ShardGone,
    StoreError,
    without_frames,
)
from remora.model.position import Position
from remora.model.topic import Topic
from remora.policy.status.condition import State
from remora.ports.endpoint import LateEndpoint, SucceedingRoute, TransactionalEndpoint

REREAD_S = 5.0
"""How long a queue that is gone waits for the catalogue to be read, which says whether it went with its layout."""


class Dispatcher:
    """See the module."""

    def __init__(self, context: WorkerContext, lease: Lease, outlets: Outlets, rng: Random) -> None:
        """`rng` spreads retries."""
        self._scope = scope = DispatchScope(context, lease, rng)
        self._context, self._lease, self._finishing = context, lease, scope.finishing
        self._progress, self._shaped = scope.state.progress, scope.state.shaped
        self._outlet = outlet = Outlet(context, lease, outlets)
        self._standing = standing = Standing(scope, outlet)
        self._head = HeadExpiry(context, lease, scope.state, scope.finishing.is_set)
        self._oldest = OldestEntry(scope, outlet, standing)
        self._waits = Waits(scope, outlet, standing, self._head)
        self._turn = Turn(scope, outlet, standing)
        self._succession = Succession(scope, standing)
        self._session: Session | None = None

    @property
    def topic(self) -> Topic | None:
        """Whose entries it delivers, as it found at its last session; None before the first."""
        return self._outlet.topic

    def end(self) -> None:
        """Read nothing more; `run` returns when all that is under way was delivered and removed."""
        self._finishing.set()
        self._standing.enter(State.FINISHING, "")
        if self._session is not None:
            self._session.end()

    def status(self) -> ShardStatus:
        """How this shard is doing."""
        session = self._session
        is_full = session is not None and session.reader.held.waits_for_entries
        return self._standing.status(is_open=session is not None, is_full=is_full)

    def arrived(self) -> None:
        """The store announced new entries."""
        self._progress.news.set()

    async def run(self) -> None:
        """Deliver until `end`, or until there is nothing to do before the store tells of new entries.

        Raises OwnershipLost, ShardGone or NotOurs when this worker must give the shard up.
        """
        try:
            while not self._finishing.is_set():
                if await self._attempt() and not self._progress.news.is_set():
                    return
            if self._last_done() is not None:
                await self._attempt()
        except ShardGone:
            # It may have gone with its layout, before the look that would have found it empty: the catalogue tells.
            if self._progress.has_work:
                await self._scope.first_of(REREAD_S, self._context.catalogue.next_reading())
            raise
        finally:
            self._turn.end()
            self._shaped.cancel()
            self._standing.left()

    async def _attempt(self) -> bool:
        """One session, and the pause that follows a failure; returns what `_deliver` does, False after a failure."""
        failure: EndpointError | StoreError | None = None
        try:
            return await self._deliver()
        except (OwnershipLost, ShardGone, NotOurs):
            raise
        except EntryRefused as exc:
            self._standing.failed(without_frames(exc), "poison")
        except (EndpointError, StoreError) as exc:
            failure = without_frames(exc)
        if failure is not None:
            self._shaped.cancel()
            await self._waits.pause_after(failure)
            self._turn.end()
        return False

    def _last_done(self) -> Position | None:
        """Where the last entry stands that has arrived, and that has others before it which have not.

        The shard's next owner would send it again, so one that is given back goes on until there is none; but not
        after a failure, or the shard would stay with an owner that cannot deliver.
        """
        done = self._scope.state.redelivery.done
        if not done or self._outlet.is_exact or self._standing.last_failure:
            return None
        return max(Position.parse(each.decode()) for each in done)

    async def _deliver(self) -> bool:
        """One session: find out where to, open the way, deliver until something changes or fails.

        Returns whether the queue is empty for so long, or so surely, that the shard may be passivated.
        """
        outlet, notifies = self._outlet, self._context.store.arrivals.notifies
        outlet.look()  # what a pause compares with, if this fails
        await self._head.recall_letters()
        topic = await self._oldest.find_topic()
        if topic is None:
            return notifies and not self._progress.has_work
        why = outlet.reason_to_leave(topic)
        if why is not None:
            raise NotOurs(f"{self._lease.shard} is let go: {why}")
        await outlet.aim(topic)
        if not await self._succession.may_deliver(topic):
            return False
        is_known_to_wait = self._head.has_looked and self._progress.has_work
        if self._standing.last_failure and not is_known_to_wait and not await self._oldest.waits():
            return notifies
        if not await self._turn.may_try(topic, self._oldest, self._waits):
            return notifies and not self._progress.has_work
        outlet.examine(topic)
        await self._head.recall(outlet.limits)
        if await self._turn.is_early(self._head, self._waits):
            return False
        if outlet.is_exact and not await self._oldest.waits():
            return notifies
        passivates = await self._run_session(topic)
        if self._shaped.waits:
            await self._waits.wait_for_credit()
        return passivates and notifies

    async def _run_session(self, topic: Topic) -> bool:
        """Open the way, and deliver; returns whether nothing came for long."""
        async with self._begin(topic) as (session, sender):
            self._outlet.is_opened = True
            if self._finishing.is_set():
                if (last := self._last_done()) is None:
                    return False
                session.reader.end_behind(last, session.end)
            self._session = session
            self._standing.enter(State.DELIVERING, "")
            try:
                await session.run(sender)
            finally:
                self._session = None
            if session.passivates:
                self._standing.recovered()
        return session.passivates

    @asynccontextmanager
    async def _begin(self, topic: Topic) -> AsyncIterator[tuple[Session, Sender]]:
        """A session and its sender on a route that is open as long."""
        token, endpoint, destination = self._lease.token, self._outlet.endpoint_of(topic), self._outlet.destination
        assert destination is not None
        allowance = destination.allowance(topic.label, self._context.settings.shard_bytes)
        ask = None
        if isinstance(endpoint, LateEndpoint):
            of_shard = partial(endpoint.arrived_late, token.shard, token.incarnation, topic.target)
            ask = partial(self._scope.asked, of_shard)
        publishes = endpoint.publishes_letters(topic.target)
        scope_of = partial(DeliveryScope, self._context, self._lease, topic, self._scope.state, publishes, ask)
        # A session's parts refer to each other, so one is made only when the route is open: of an attempt that fails
        # nothing must be left for the collector.
        if self._outlet.is_exact:
            assert isinstance(endpoint, TransactionalEndpoint)
            async with endpoint.exact(token.shard, token.incarnation, topic.target) as exact:
                scope = scope_of(_succession_of(exact))
                session = Session(scope, allowance, self._arrived)
                way = TracedExactRoute(exact, scope.spans) if self._context.tracer.is_on else exact
                yield session, TransactionSender(session, way, Committer(session, way))
        else:
            quick, traces = not self._outlet.limits.counts_attempts, self._context.tracer.is_on
            async with endpoint.route(token.shard, token.incarnation, topic.target, quick_retries=quick) as route:
                scope = scope_of(_succession_of(route))
                session = Session(scope, allowance, self._arrived)
                yield session, LaneSender(session, TracedRoute(route, scope.spans) if traces else route)

    def _arrived(self) -> None:
        """A page has arrived, or a transaction was committed."""
        if self._outlet.topic is not None:
            self._context.quarantines.succeeded(self._outlet.topic)
        self._standing.recovered()


def _succession_of(route: object) -> Callable[[bytes], None] | None:
    """What is told where the shards ended that a route's own took over from, if the route passes it on."""
    return route.succeeds if isinstance(route, SucceedingRoute) else None
