"""Delivers one held shard while it is held and has work: session after session, with a pause after each failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from remora.codec.event_entry import attributes
from remora.codec.topic import class_remarks, limit_remarks, usable_delivery
from remora.engine.byte_budget import ByteBudget
from remora.engine.delivery.committing import Committer
from remora.engine.delivery.head_expiry import FOR_EVER_S, LEAST_S, HeadExpiry
from remora.engine.delivery.lanes import LaneSender
from remora.engine.delivery.letters import dead_letter_all
from remora.engine.delivery.scope import Scope
from remora.engine.delivery.session import Sender, Session
from remora.engine.delivery.shard_state import ShardState
from remora.engine.delivery.spans import TracedExactRoute, TracedRoute
from remora.engine.delivery.transactions import TransactionSender
from remora.engine.delivery.triage import Rejected
from remora.engine.delivery.worker_context import WorkerContext
from remora.engine.destination import SPREAD_S, Destination
from remora.engine.entry_budget import Allowance
from remora.engine.lease import Lease, LeaseUncertain
from remora.engine.quarantines import Turns
from remora.engine.status import ShardStatus, State
from remora.model.errors import (
    CodecError,
    EndpointDenied,
    EndpointError,
    EndpointFenced,
    EndpointMisconfigured,
    EndpointUnavailable,
    EntryRefused,
    NotOurs,
    OwnershipLost,
    RemoraError,
    ShardGone,
    StoreDamaged,
    StoreError,
    without_frames,
)
from remora.model.ledger import Cause, Tally
from remora.model.record import Page
from remora.model.topic import Delivery, Target, Topic
from remora.policy.eligible import Schemes, reason_to_leave
from remora.policy.idle import is_quiet
from remora.policy.lifetime import Limits
from remora.policy.quarantine import COUNTED
from remora.policy.retry import Backoff, Failure, Pauses
from remora.ports.endpoint import Endpoint, TransactionalEndpoint

DAMAGE_RECHECK_S = 30.0
"""How often a queue in a damaged part of the store is looked into: only a repair can help."""


@dataclass(frozen=True, slots=True)
class Outlets:
    """The endpoints of a worker by URI scheme, and which schemes of whose topics it delivers to at the moment."""

    endpoints: Mapping[str, Endpoint]
    schemes: Callable[[], Schemes]


class Dispatcher:
    """See the module."""

    def __init__(
        self,
        context: WorkerContext,
        lease: Lease,
        outlets: Outlets,
        destination: Callable[[Target], Destination],
        rng: Random,
    ) -> None:
        """`destination` gives what all shards of a target's destination share."""
        self._context = context
        self._lease = lease
        self._endpoints, self._schemes = outlets.endpoints, outlets.schemes
        self._destination_of = destination
        self._destination: Destination | None = None
        self._rng = rng
        self._shard_state = state = ShardState()
        self._redelivery, self._reads, self._progress = state.redelivery, state.reads, state.progress
        self._shaped = state.shaped
        self._session: Session | None = None
        self._finishing = asyncio.Event()
        self._head = HeadExpiry(context, lease, self._shard_state, self._finishing.is_set)
        self._opened = False
        self._has_turn = False
        self._failures = 0
        self._failures_before = 0
        self._returns = 0
        self._last_failure = ""
        self._last_kind: Failure | None = None
        self._topic: Topic | None = None
        self._seen: Topic | None = None
        self._delivery = ""
        self._remarks: tuple[str, ...] = ()
        self._state, self._reason = State.STARTING, ""
        self._since = self._progress.progress_at = asyncio.get_running_loop().time()

    @property
    def topic(self) -> Topic | None:
        """Whose entries it delivers, as it found at its last session; None before the first."""
        return self._topic

    def finish(self) -> None:
        """Read nothing more; `run` returns when all that is under way was delivered and removed."""
        self._finishing.set()
        self._enter(State.FINISHING, "")
        if self._session is not None:
            self._session.end()

    def status(self) -> ShardStatus:
        """How this shard is doing."""
        now = asyncio.get_running_loop().time()
        state, reason, since, empty_since = self._state, self._reason, self._since, self._progress.empty_since
        if state is State.DELIVERING and empty_since is not None and is_quiet(now - empty_since):
            state = State.IDLE
        if state is State.IDLE and empty_since is not None:
            since = empty_since
        pending = self._shaped.pending
        if state is State.DELIVERING and pending is not None and pending.grant is None:
            state, reason, since = State.SHAPED, pending.reason, pending.asked_at
        if state is State.DELIVERING and self._session is not None and self._session.reader.entries.is_waiting:
            reason = "as many entries are under way as delivery.max_unacked or destination_max_unacked allow"
        remarks = self._remarks
        if state is State.IDLE and self._last_failure:
            remarks = (*remarks, f"nothing waits; the last attempt failed: {self._last_failure}")
        return ShardStatus(
            queue=self._lease.shard.queue,
            topic=self._topic.label if self._topic else "",
            endpoint=self._topic.target.redacted if self._topic else "",
            delivery=self._delivery,
            state=state,
            reason=reason,
            since_s=now - since,
            failures=self._failures,
            in_flight_bytes=self._progress.held_bytes,
            has_work=self._progress.has_work,
            progress_age_s=now - self._progress.progress_at,
            remarks=remarks,
            failure=self._last_kind,
            is_open=self._session is not None,
        )

    def arrived(self) -> None:
        """The store announced new entries."""
        self._progress.news.set()

    async def run(self) -> None:
        """Deliver until `finish`, or until there is nothing to do before the store tells of new entries.

        Raises OwnershipLost, ShardGone or NotOurs when the hold must end.
        """
        try:
            await self._run()
        finally:
            self._end_turn()
            self._shaped.cancel()

    async def _run(self) -> None:
        while not self._finishing.is_set():
            failure: EndpointError | StoreError | None = None
            try:
                rests = await self._deliver()
                if rests and not self._progress.news.is_set():
                    return
            except (OwnershipLost, ShardGone, NotOurs):
                raise
            except EntryRefused as exc:
                self._note_failure(without_frames(exc), "poison")
            except (EndpointError, StoreError) as exc:
                failure = without_frames(exc)
            if failure is not None:
                self._shaped.cancel()
                await self._pause(failure)
                self._end_turn()

    # ------------------------------------------------------------------------------- one session

    async def _deliver(self) -> bool:
        """One session: find out where to, open the way, deliver until something changes or fails.

        Returns whether the queue is empty for so long, or so surely, that the shard may be passivated.
        """
        self._seen = self._context.catalogue.topic(self._lease.shard)  # what a pause compares with, if this fails
        await self._head.recall_letters()
        topic = await self._find_topic()
        if topic is None:
            return self._context.store.arrivals.notifies and not self._progress.has_work
        why = reason_to_leave(topic, self._schemes())
        if why is not None:
            raise NotOurs(f"{self._lease.shard} is let go: {why}")
        tells = self._context.store.arrivals.notifies
        self._topic, self._destination, self._opened = topic, self._destination_of(topic.target), False
        is_known_to_wait = self._head.has_looked and self._progress.has_work
        if self._last_failure and not is_known_to_wait and not await self._entries_wait():
            return tells
        if not await self._may_try(topic.target):
            return tells and not self._progress.has_work
        endpoint = self._endpoints[topic.target.scheme]
        self._examine(endpoint, topic)
        await self._head.recall(self._limits)
        if await self._is_early():
            return False
        if self._is_exact and not await self._entries_wait():
            return tells
        passivates = await self._run_session(endpoint, topic, self._destination)
        if self._shaped.waits:
            await self._wait_for_credit()
        return passivates and tells

    async def _run_session(self, endpoint: Endpoint, topic: Topic, destination: Destination) -> bool:
        """Open the way, and deliver; returns whether nothing came for long."""
        async with self._begin(endpoint, topic, destination) as (session, sender):
            self._opened = True
            if self._finishing.is_set():
                return False
            self._session = session
            self._enter(State.DELIVERING, "")
            try:
                await session.run(sender)
            finally:
                self._session = None
            if session.passivates:
                self._recovered()
        return session.passivates

    async def _wait_for_credit(self) -> None:
        """Wait in the place of a session, which the next one takes over; what expires meanwhile is given up."""
        pending = self._shaped.pending
        if pending is None:
            return
        while pending.grant is None:
            again_s = await self._look_at_front(tried=False)
            if again_s is None or self._finishing.is_set() or not self._progress.has_work:
                break
            changed = self._context.catalogue.wait_for_change(self._lease.shard, self._seen)
            if await self._first_of(again_s, changed, pending.wait()) and pending.grant is None:
                break
        else:
            self._progress.progress_at = asyncio.get_running_loop().time()
            return
        self._shaped.cancel()

    def _examine(self, endpoint: Endpoint, topic: Topic) -> None:
        """Find out how the topic is delivered, and what works otherwise than asked. Raises EndpointMisconfigured."""
        is_transactional = isinstance(endpoint, TransactionalEndpoint)
        mode, mode_remarks = usable_delivery(
            topic.target, Delivery(self._context.settings.mode), is_transactional=is_transactional
        )
        self._delivery = str(mode)
        args = topic.target.args
        self._remarks = (*endpoint.check(topic.target), *limit_remarks(args), *class_remarks(args), *mode_remarks)
        for remark in self._remarks:
            self._context.telemetry.remark(topic.label, remark)

    async def _may_try(self, target: Target) -> bool:
        """Whether this shard may try its destination; of those that have entries one does while it is in quarantine.

        Else it has waited for its turn, or nothing waits in it.
        """
        turns = self._context.quarantines.turns(target.redacted)
        if turns is None:
            return True
        if not await self._entries_wait():
            self._end_turn()
            return False
        if turns.take(self, self._progress.progress_at, asyncio.get_running_loop().time()):
            return True
        await self._wait_for_turn(turns)
        return False

    async def _wait_for_turn(self, turns: Turns) -> None:
        """Wait while another shard tries the destination, which is in quarantine; then for a moment, if that is over.

        All its shards come back over this moment, and not at once.
        """
        self._enter(State.QUARANTINED, "its destination fails, and another queue tries it")
        try:
            await self._wait(FOR_EVER_S, turn=lambda: turns.wait(self))
        finally:
            turns.forget(self)
        if turns.is_over:
            await self._first_of(self._rng.random() * SPREAD_S)

    def _end_turn(self) -> None:
        """Let another shard try a destination that is in quarantine."""
        if self._topic is not None:
            turns = self._context.quarantines.turns(self._topic.target.redacted)
            if turns is not None:
                turns.leave(self, asyncio.get_running_loop().time())

    async def _is_early(self) -> bool:
        """Wait where an earlier holder's attempt was a moment ago and a pace is set; once, and whether it came to that.

        From then on the shard's own pauses keep the pace.
        """
        if self._has_turn:
            return False
        wait_s = await self._head.due_in_s(self._limits.retry_sleep_s)
        self._has_turn = True
        if wait_s:
            self._enter(State.RETRYING, "an earlier holder's attempt failed, and the next one is not due yet")
            await self._wait(wait_s)
        return bool(wait_s)

    @asynccontextmanager
    async def _begin(
        self, endpoint: Endpoint, topic: Topic, destination: Destination
    ) -> AsyncIterator[tuple[Session, Sender]]:
        """A session and its sender on a route that is open as long."""
        token = self._lease.token
        budget = ByteBudget(self._context.settings.shard_bytes, within=destination.budget)
        allowance = Allowance(budget, destination.entries_of(topic.label), destination.givers)
        publishes = endpoint.publishes_letters(topic.target)
        scope = Scope(self._context, self._lease, topic, self._shard_state, publishes)
        # A session's parts refer to each other, so one is made only when the route is open: of an attempt that fails
        # nothing must be left for the collector.
        if self._is_exact:
            assert isinstance(endpoint, TransactionalEndpoint)
            async with endpoint.exact(token.shard, token.incarnation, topic.target) as exact:
                session = Session(scope, allowance, self._arrived)
                way = TracedExactRoute(exact, scope.spans) if self._context.tracer.is_on else exact
                yield session, TransactionSender(session, way, Committer(session, way))
        else:
            quick, traces = not self._limits.counts_attempts, self._context.tracer.is_on
            async with endpoint.route(token.shard, token.incarnation, topic.target, quick_retries=quick) as route:
                session = Session(scope, allowance, self._arrived)
                yield session, LaneSender(session, TracedRoute(route, scope.spans) if traces else route)

    async def _entries_wait(self) -> bool:
        """Whether there is a reason to open a way that costs the endpoint a producer, or that did not open when it was
        last tried; else wait a moment for one.

        The look is checked by the store: so who lost the lock while frozen seldom comes so far as to fence its owner.
        """
        if (await self._first_entry()).entries:
            return True
        self._shaped.cancel()
        if not self._context.store.arrivals.notifies:
            changes = self._context.catalogue.wait_for_change(self._lease.shard, self._seen)
            await self._first_of(self._context.settings.idle_max_s, changes)
        return False

    @property
    def _is_exact(self) -> bool:
        return self._delivery == Delivery.EXACTLY_ONCE

    async def _first_entry(self) -> Page:
        """The oldest entry, if there is one."""
        self._lease.require_trust()
        self._progress.news.clear()
        page = await self._context.store.queue.read(self._lease.token, b"", 1)
        if page.entries:
            self._progress.begin_work()
        else:
            self._progress.end_work()
            self._emptied()
        return page

    async def _find_topic(self) -> Topic | None:
        """The topic's attributes from its metadata, else from the oldest entry's own copy; None if there is none."""
        known = self._seen = self._context.catalogue.topic(self._lease.shard)
        if known is not None:
            return known
        page = await self._first_entry()
        if not page.entries:
            if not self._context.store.arrivals.notifies:
                await self._first_of(self._context.settings.idle_max_s, self._context.catalogue.next_reading())
            return None
        if page.corrupt:
            await self._dead_letter_first(page, Rejected(0, "corrupt", page.corrupt[0]))
            return None
        try:
            return attributes(page.entries[0])
        except CodecError as exc:
            await self._dead_letter_first(page, Rejected(0, "undecodable", str(exc)))
            return None

    async def _dead_letter_first(self, page: Page, rejected: Rejected) -> None:
        """Dead-letter an entry that says nothing, at the head of a queue whose topic nothing else tells."""
        redelivery = self._redelivery
        (letter,) = await dead_letter_all(self._context, self._lease, None, redelivery, page, [rejected])
        self._lease.require_trust()
        tally = Tally.of(Cause.of_letter(letter.cause))
        await self._context.store.queue.remove(self._lease.token, page.positions[1], 1, tally)
        redelivery.removed(page.positions[1])

    # ----------------------------------------------------------------------------- after a failure

    async def _pause(self, exc: EndpointError | StoreError) -> None:
        """Wait as the failure demands. A change of the topic's attributes since the attempt began ends it at once;
        that its destination works for another shard ends it soon, where the topic asks for no pause of its own."""
        settings, kind = self._context.settings, _kind(exc)
        if isinstance(exc, EndpointError) and not self._opened and self._topic is not None:
            about = "connect" if exc.kind in COUNTED else exc.kind
            self._context.quarantines.failed(self._topic.target.redacted, about)
        if isinstance(exc, EndpointDenied) and self._topic is not None:
            self._context.telemetry.denied(self._topic.target.scheme)
        self._last_kind = kind
        self._note_failure(exc, kind)
        backoff = Backoff(settings.retry_base_s, settings.retry_cap_s)
        pauses = Pauses(backoff, settings.configuration_recheck_s, DAMAGE_RECHECK_S)
        delay = pauses.pause_s(kind, self._failed_in_a_row(), self._rng.random(), self._limits.retry_sleep_s)
        asked_s = exc.retry_after_s if isinstance(exc, EndpointUnavailable) else None
        delay = max(delay, asked_s or 0.0)
        is_stopped = kind in (Failure.CONFIGURATION, Failure.DAMAGED)
        self._enter(State.STOPPED if is_stopped else State.RETRYING, str(exc))
        if self._topic is not None:
            self._context.telemetry.retry(self._topic.label, delay)
        is_endpoint, self._head.has_looked = isinstance(exc, EndpointError), False
        hears, tried = kind == Failure.TRANSIENT and not asked_s, is_endpoint and not self._opened
        await self._wait(delay, minds_front=is_endpoint, hears=hears, tried=tried)

    async def _wait(
        self,
        delay: float,
        *,
        minds_front: bool = True,
        hears: bool = False,
        tried: bool = False,
        turn: Callable[[], Coroutine[object, object, object]] | None = None,
    ) -> None:
        """Wait so long, or until a change; look at the queue's head meanwhile, since nothing else reads it.

        `hears` that the destination works for another shard; `tried` to open a way to it in vain; `turn` ends when this
        shard may try a destination that is in quarantine.
        """
        now = asyncio.get_running_loop().time
        until = now() + delay
        while True:
            again_s = await self._look_at_front(tried=tried) if minds_front else FOR_EVER_S
            if again_s is None or self._finishing.is_set() or (minds_front and not self._progress.has_work):
                return
            tried, left_s = False, until - now()
            changes: list[Coroutine[object, object, object]] = [
                self._context.catalogue.wait_for_change(self._lease.shard, self._seen)
            ]
            if turn is not None:
                changes.append(turn())
            if hears and self._destination and not self._limits.retry_sleep_s:
                changes += [self._destination.recovery(self._rng.random()), self._back(self._destination)]
            if await self._first_of(max(0.0, min(left_s, again_s)), *changes) or left_s <= again_s:
                return

    async def _back(self, destination: Destination) -> None:
        """Wait until more of the destination answers than when this shard failed."""
        assert self._topic is not None
        endpoint, target = self._endpoints[self._topic.target.scheme], self._topic.target
        await destination.back(lambda: endpoint.up(target), self._returns, self._rng.random())

    def _failed_in_a_row(self) -> int:
        """How often in a row this shard failed since it did not, or since more of its destination answered again.

        Also when that was during the attempt that failed just now: right after an outage attempts fail for reasons
        that are gone in a moment.
        """
        returns = self._destination.returns if self._destination else 0
        if returns != self._returns:
            self._returns, self._failures_before = returns, self._failures - 1
        return self._failures - self._failures_before

    async def _look_at_front(self, *, tried: bool) -> float | None:
        """Give up what outlived its time or its attempts; answers when to look again, None for at another target.

        Nothing is given up of which only the endpoint knows whether it was committed; and nothing while there is a way
        that letters are to go, too, since that is for the sessions. What fails in the store is met by the keeper of
        the lock and by the next session too.
        """
        if self._topic is None or self._destination is None:
            return FOR_EVER_S
        budget = ByteBudget(self._context.settings.shard_bytes, within=self._destination.budget)
        try:
            again_s: float | None = FOR_EVER_S
            target = self._topic.target
            publishes = self._endpoints[target.scheme].publishes_letters(target)
            if not ((self._opened and publishes) or (self._is_exact and self._redelivery.in_doubt)):
                again_s = await self._head.look(self._topic, budget, tried=tried, publishes=publishes)
            await self._head.note(self._limits)
        except LeaseUncertain:
            return LEAST_S
        except StoreError as exc:
            self._context.telemetry.failed(self._label, "store", str(exc))
            return LEAST_S
        return again_s

    @property
    def _limits(self) -> Limits:
        limits = self._context.settings.limits
        return limits.of(self._topic) if self._topic is not None else limits

    def _note_failure(self, exc: RemoraError, kind: str) -> None:
        self._failures += 1
        self._last_failure = str(exc)
        self._reads.pages_delivered = 0
        self._context.telemetry.failed(self._label, kind, str(exc))

    def _emptied(self) -> None:
        """Nothing waits, so nothing fails any more; whether the destination works again remains to be seen."""
        self._enter(State.IDLE, "")
        self._last_kind = None
        if self._failures:
            self._failures = self._failures_before = 0
            self._context.telemetry.emptied(self._label)

    def _arrived(self) -> None:
        """A page has arrived, or a transaction was committed."""
        if self._topic is not None:
            self._context.quarantines.succeeded(self._topic.target.redacted)
        self._recovered()

    def _recovered(self) -> None:
        self._last_failure, self._last_kind = "", None
        if self._failures:
            self._failures = self._failures_before = 0
            self._context.telemetry.recovered(self._label)
            if self._destination is not None:
                self._destination.recovered()

    @property
    def _label(self) -> str:
        return self._topic.label if self._topic is not None else self._lease.shard.queue

    async def _first_of(self, at_most_s: float, *changes: Coroutine[object, object, object]) -> bool:
        """Wait for a change, for a time, or for `finish`, whichever comes first; returns whether it was not time."""
        async with asyncio.TaskGroup() as tasks:
            ends = [tasks.create_task(each, name="change") for each in changes]
            ends.append(tasks.create_task(self._finishing.wait(), name="finish"))
            done, _ = await asyncio.wait(ends, timeout=at_most_s, return_when=asyncio.FIRST_COMPLETED)
            for each in ends:
                each.cancel()
        return bool(done)

    def _enter(self, state: State, reason: str) -> None:
        if self._finishing.is_set():
            state = State.FINISHING
        if (state, reason) != (self._state, self._reason):
            self._state, self._reason = state, reason
            self._since = asyncio.get_running_loop().time()


def _kind(exc: EndpointError | StoreError) -> Failure:
    match exc:
        case EndpointMisconfigured():
            return Failure.CONFIGURATION
        case StoreDamaged():
            return Failure.DAMAGED
        case StoreError():
            return Failure.STORE
        case EndpointFenced():
            return Failure.FENCED
        case _:
            return Failure.TRANSIENT
