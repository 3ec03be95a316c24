"""How a shard's queue is read: within its bytes and the trust in its lock, and seldom where it is empty."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from remora.engine.admission.givers import Allowance, Giver
from remora.engine.delivery.reservation import SessionReservation
from remora.engine.delivery.scope import DeliveryScope
from remora.model.errors import CodecError, RemoraError, StoreError
from remora.model.position import Position
from remora.model.record import Page, Record
from remora.model.traffic import Priority
from remora.policy.delivery.flow import EmptyQueue, Flow
from remora.policy.delivery.pace import brought_forward_s
from remora.policy.delivery.retry import PROBE_ENTRIES
from remora.policy.status.stages import EventStage
from remora.ports.tracing import PageTimes

REST_S = 5.0
"""How long a session goes on reading when its shard is given back, so that the next owner sends nothing again. It may
wait for room or credit that never comes."""


class Reader:
    """Reads for one session, which takes room before each read and gives it back when the entries are dealt with."""

    def __init__(
        self,
        scope: DeliveryScope,
        allowance: Allowance,
        tasks: asyncio.TaskGroup,
        *,
        on_failure: Callable[[RemoraError], None],
        all_removed: Callable[[], bool],
        on_long_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`tasks` are the session's; `all_removed` tells whether everything that was read has left the queue.

        `on_long_wait` is called when a session waits for credit that must not wait for long.
        """
        self._context = scope.context
        self._lease = scope.lease
        self._redelivery = scope.state.redelivery
        self._reads = scope.state.reads
        self._progress = scope.state.progress
        self._label = scope.topic.label
        self._tasks = tasks
        self._ahead: asyncio.Task[tuple[Page, PageTimes] | None] | None = None
        self.times = PageTimes(0, 0.0, 0.0)
        """When the page that was fetched last was asked for, and came."""
        self._givers = allowance.givers
        self._giver: Giver | None = None
        self._early_s = 0.0
        self._last: Position | None = None
        self._reached = b""
        self._end: Callable[[], None] = lambda: None
        self._on_failure = on_failure
        self._all_removed = all_removed
        self.held = SessionReservation(scope, allowance, on_long_wait)
        self._scope = scope

    @property
    def is_ahead(self) -> bool:
        """Whether a page is being read, or was read and not taken."""
        return self._ahead is not None

    def fetch(self, start: bytes, limit: int) -> None:
        """Begin to read the next page, of `limit` entries; `fetched` returns it."""
        self._ahead = self._tasks.create_task(self._read(start, limit), name=f"list {self._lease.shard}")

    async def fetched(self) -> Page | None:
        """The page that `fetch` began to read; None when that failed, which the session knows then."""
        assert self._ahead is not None
        found = await self._ahead
        self._ahead = None
        if found is None:
            return None
        page, self.times = found
        return page

    def end_behind(self, last: Position, end: Callable[[], None]) -> None:
        """Call `end`, which ends the session, when the page with the entry at this position is packed, or when that
        takes too long."""
        self._last, self._end = last, end
        asyncio.get_running_loop().call_later(REST_S, end)

    def stop(self) -> None:
        """Read nothing more."""
        if self._ahead is not None:
            self._ahead.cancel()

    async def _read(self, start: bytes, limit: int) -> tuple[Page, PageTimes] | None:
        span, clock = self._scope.spans.listing(limit), self._scope.clock
        asked, asked_ns = self._scope.spans.now()
        try:
            self._lease.require_trust()
            self._progress.news.clear()  # before the read: what is announced from now on may have come too late for it
            page = await self._context.store.queue.read(self._lease.token, start, limit)
        except (StoreError, CodecError) as exc:
            span.end(str(exc))
            self._on_failure(exc)
            return None
        if not start and page.entries:
            self._redelivery.drop_before(page.positions[0])  # a removal without an answer may have been carried out
        self._scope.spans.listed(span, page)
        times = PageTimes(asked_ns, asked, clock())
        self._scope.took(EventStage.LIST, times.came - asked)
        return page, times

    def flow(self) -> Flow:
        """What decides on the size of the next read."""
        settings, reads, redelivery = self._context.settings, self._reads, self._redelivery
        return Flow(
            list_entries=settings.list_entries,
            reach_bytes=min(settings.shard_bytes, self.held.reach),
            mean_bytes=reads.mean_bytes,
            pages_delivered=reads.pages_delivered,
            read_singly=redelivery.read_singly,
            search_entries=redelivery.search_entries,
            has_backlog=reads.has_backlog,
            caught_up_s=asyncio.get_running_loop().time() - self._context.caught_up_at,
        )

    def learn(self, page: Page) -> None:
        """Take note of a listing that is about to be delivered."""
        self.times.taken, self._reached = self._scope.clock(), page.positions[-1]
        if page.after and self._scope.succeeds is not None:
            self._scope.succeeds(page.after)
        reads, nbytes, entries = self._reads, page.nbytes, len(page.entries)
        self._progress.begin_work()
        mean = nbytes / entries
        reads.mean_bytes = max(mean, reads.mean_bytes + (mean - reads.mean_bytes) / 4)  # at once when they are larger
        self._redelivery.read_singly = max(0, self._redelivery.read_singly - entries)
        reads.has_backlog = page.truncated
        if not page.truncated:
            self._context.caught_up_at = asyncio.get_running_loop().time()
        self._context.telemetry.listed(self._label, entries, nbytes)
        self._context.traffic.read(self._lease.shard, nbytes)

    # ------------------------------------------------------------------------------------------ room

    async def take_room(self, entries: int) -> int:
        """Wait until `entries` entries may be held, which are not sent; returns the bytes that are held for them."""
        return await self._hold_room(self.bytes_for(entries))

    async def take_turn(self, entries: int | None = None) -> int:
        """Wait until `entries` entries, or another page, may be sent and held; returns the bytes held for them.

        CreditLimit comes first and room last: a session that waits for credit holds nothing that others need. A session
        with a producer for transactions does, and one with a lifetime keeps its dispatcher from looking for what
        expires.
        """
        wanted, is_exact = entries or self.flow().page_entries, entries is not None
        may_wait = not (is_exact or self._scope.limits.time_to_live_s)
        clock = self._scope.clock
        began = clock()
        credit = await self.held.credit(self.bytes_for(wanted), self.bytes_for(1), may_wait=may_wait)
        has_credit = clock()
        asked = await self.held.entries(self.entries_in(credit))
        has_entries = clock()
        room = await self._hold_room(self._room(credit, asked), for_turn=True)
        self._waited(has_credit - began, has_entries - has_credit, clock() - has_entries)
        return room

    def _waited(self, credit_s: float = 0.0, entries_s: float = 0.0, bytes_s: float = 0.0) -> None:
        """A turn was taken, for which so long was waited in each limit: mostly not at all."""
        self._scope.took(EventStage.WAIT_CREDIT, credit_s)
        self._scope.took(EventStage.WAIT_ENTRIES, entries_s)
        self._scope.took(EventStage.WAIT_BYTES, bytes_s)

    def take_turn_now(self, entries: int | None = None) -> int:
        """As `take_turn`, without waiting; 0 when there is no credit or no room."""
        credit = self.held.credit_now(self.bytes_for(entries or self.flow().page_entries), self.bytes_for(1))
        if not credit:
            return 0
        asked = self.held.entries_now(self.entries_in(credit))
        room = self._room(credit, asked)
        if not asked or not self.held.room_now(room):
            self.held.release(asked)
            self.held.cancel_last()
            return 0
        self._waited()
        return room

    def _room(self, credit: int, entries: int) -> int:
        """The bytes to hold for entries, where credit was granted for as many or more."""
        return credit if entries >= self.entries_in(credit) else self.bytes_for(entries)

    async def _hold_room(self, room: int, *, for_turn: bool = False) -> int:
        """Hold room for entries, as others turn theirs back if need be; for a turn less, where little is expected."""
        if not self.held.room_now(room):
            is_look, shaped = self._progress.empty_since is not None, self._scope.state.shaped
            if for_turn and (is_look or not shaped.is_known):
                room = min(room, self.bytes_for(PROBE_ENTRIES))
            priority = self._priority(at_tail=is_look or not shaped.is_known or shaped.at_tail)
            if self._giver is not None:
                self._givers.add(self._giver, priority)  # not its own pages for its next one
            await self.held.room(room, priority)
        return room

    def _priority(self, *, at_tail: bool) -> Priority:
        return self._context.gate.priority_of(self._scope.topic, self._lease.shard, at_tail=at_tail)

    def offer(self, giver: Giver) -> None:
        """There is a page more that can be turned back when a shard of a higher priority finds no room."""
        self._giver = giver
        self._givers.add(giver, self._priority(at_tail=self._scope.state.shaped.at_tail))
        self.held.make_room()

    def bytes_for(self, entries: int) -> int:
        """The bytes that entries are expected to need."""
        return int(entries * self._reads.mean_bytes)

    def entries_in(self, room: int) -> int:
        """How many entries are expected to need this room."""
        return math.ceil(room / self._reads.mean_bytes)

    def taken(self, page: Page, records: Sequence[Record]) -> None:
        """A page that came was triaged: these are its records."""
        if records:
            self._scope.took(EventStage.WAIT_LISTING, max(0, self.times.asked_ns - records[0].created_ns) / 1e9)
        self._scope.took(EventStage.WAIT_PACKING, self.times.taken - self.times.came)
        self._scope.spans.taken(page, self.times)

    def packed(self) -> None:
        """The page that was taken in last is packed."""
        self.times.packed = self._scope.clock()
        self._scope.took(EventStage.RENDER, self.times.packed - self.times.taken)
        if self._last is not None and Position.parse(self._reached.decode()) > self._last:
            self._end()

    def discard(self, page: Page, room: int) -> None:
        """Throw a page away that has come, with what was taken for it: what stands before it was turned back."""
        self._context.telemetry.read_in_vain(len(page.entries))
        self.held.discard(room)

    def take_in(self, page: Page, room: int) -> None:
        """Hold a page that has come, in the place of the room that was taken for it."""
        self.held.hold(page.nbytes - room)
        self.held.listed(len(page.entries))
        self.held.release()

    def pass_over(self, page: Page, part: Page) -> None:
        """Hold only this part of a page: the rest of it is another route's."""
        self.held.hold(part.nbytes - page.nbytes)
        self.held.done(len(page.entries) - len(part.entries))

    def close(self, *, keeps_place: bool) -> None:
        """The session is over, and holds nothing; `keeps_place` as in SessionReservation.close."""
        if self._giver is not None:
            self._givers.remove(self._giver)
            self._giver = None
        self.held.close(keeps_place=keeps_place)

    # -------------------------------------------------------------------------------- an empty queue

    def may_passivate(self, busy_at: float, *, keeps_watch: bool = True) -> bool:
        """Whether it is time that nothing runs for this shard; `keeps_watch` as in EmptyQueue.passivates."""
        return self._empty(busy_at).passivates(keeps_watch=keeps_watch)

    def _empty(self, busy_at: float) -> EmptyQueue:
        return EmptyQueue(
            empty_s=asyncio.get_running_loop().time() - busy_at,
            active_shards=self._lease.active(),
            notifies=self._context.store.arrivals.notifies,
            has_news=self._progress.news.is_set(),
            all_removed=self._all_removed(),
        )

    async def wait_for_look(self, busy_at: float) -> None:
        """Wait until it is time to look into an empty queue, or for news.

        A look that costs the store is taken from a budget. News brings a look forward and makes none: the next one
        is later by as much.
        """
        settings, now, empty = self._context.settings, asyncio.get_running_loop().time, self._empty(busy_at)
        began, news = now(), self._progress.news
        if empty.notifies:  # few are looked into
            await at_most(news, empty.look_s(settings.idle_min_s, settings.idle_max_s))
            return
        looks = self._context.looks
        pause_s = looks.wait_s(empty.empty_s, began, settings.idle_min_s, settings.idle_max_s)
        due = began + pause_s + self._early_s
        await at_most(news, due - began)
        if news.is_set():
            await asyncio.sleep(min(due - now(), looks.rung_s(now())))
        self._early_s = brought_forward_s(pause_s, self._early_s, now() - began)

    async def wait_for_news(self, busy_at: float) -> None:
        """Wait until an empty queue is worth another look: after a time, when the store notifies, or to passivate."""
        settings, news = self._context.settings, self._progress.news
        while (empty := self._empty(busy_at)).waits_for_news:
            if empty.has_news or empty.passivates(keeps_watch=True):
                return
            await at_most(news, empty.pause_s(settings.idle_min_s, settings.idle_max_s))
        await self.wait_for_look(busy_at)


async def at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but no longer than this."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
