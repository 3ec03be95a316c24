"""How a shard's queue is read: within its bytes and the trust in its lock, and seldom where it is empty."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress

from remora.engine.byte_budget import ByteBudget
from remora.engine.delivery.scope import Scope
from remora.model.errors import CodecError, RemoraError, StoreError
from remora.model.record import Page
from remora.policy.idle import idle_delay, passivate_after
from remora.policy.retry import read_limit

LONG = 4
"""How many times `list_entries` are read at once while all queues of a worker have a backlog. A longer listing makes
fewer and larger batches and removals, which spares a tenth of the processor time; but packing it holds up whatever
else the worker does, which matters as soon as a topic is delivered as it comes in."""

ALONE_AFTER_S = 1.0
"""How long no queue must have been read to its end for that."""


class Reader:
    """Reads for one session, which takes room before each read and gives it back when the entries are dealt with."""

    def __init__(
        self,
        scope: Scope,
        budget: ByteBudget,
        tasks: asyncio.TaskGroup,
        *,
        on_failure: Callable[[RemoraError], None],
        all_removed: Callable[[], bool],
    ) -> None:
        """`tasks` are the session's; `all_removed` tells whether everything that was read has left the queue."""
        self._context = scope.context
        self._lease = scope.lease
        self._redelivery = scope.state.redelivery
        self._reads = scope.state.reads
        self._progress = scope.state.progress
        self._label = scope.topic.label
        self._tasks = tasks
        self._ahead: asyncio.Task[Page | None] | None = None
        self._budget = budget
        self._on_failure = on_failure
        self._all_removed = all_removed

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
        page = await self._ahead
        self._ahead = None
        return page

    def stop(self) -> None:
        """Read nothing more."""
        if self._ahead is not None:
            self._ahead.cancel()

    async def _read(self, start: bytes, limit: int) -> Page | None:
        try:
            self._lease.require_trust()
            self._progress.news.clear()  # before the read: what is told of from now on may have come too late for it
            return await self._context.store.queue.read(self._lease.token, start, limit)
        except (StoreError, CodecError) as exc:
            self._on_failure(exc)
            return None

    def limit(self) -> int:
        """How many entries to read, so that a listing is at most half of what the shard may hold."""
        if self._redelivery.read_singly > 0:
            return 1
        wanted, now = self._context.settings.list_entries, asyncio.get_running_loop().time()
        if self._reads.has_backlog and now - self._context.caught_up_at > ALONE_AFTER_S:
            wanted *= LONG
        return min(read_limit(self._reads.pages_delivered, wanted), self.half)

    def learn(self, page: Page) -> None:
        """Take note of a listing that is about to be delivered."""
        reads, nbytes, entries = self._reads, page.nbytes, len(page.entries)
        self._progress.begin_work()
        mean = nbytes / entries
        reads.mean_bytes = max(mean, reads.mean_bytes + (mean - reads.mean_bytes) / 4)  # at once when they are larger
        self._redelivery.read_singly = max(0, self._redelivery.read_singly - entries)
        reads.has_backlog = page.truncated
        if not page.truncated:
            self._context.caught_up_at = asyncio.get_running_loop().time()
        self._context.telemetry.listed(self._label, entries, nbytes)

    @property
    def half(self) -> int:
        """How many entries are half of what the shard may hold as things stand, and one at least."""
        return max(1, int(min(self._context.settings.shard_bytes, self._budget.reach) / 2 / self._reads.mean_bytes))

    # ------------------------------------------------------------------------------------------ room

    async def take_room(self, entries: int | None = None) -> int:
        """Wait until so many entries, or another listing, may be held; returns the bytes that are held for them."""
        room = self._room(entries)
        await self._budget.acquire(room)
        self._progress.held_bytes += room
        return room

    def take_room_now(self, entries: int | None = None) -> int:
        """As `take_room`, without waiting; 0 when there is no room."""
        room = self._room(entries)
        if not self._budget.try_acquire(room):
            return 0
        self._progress.held_bytes += room
        return room

    def _room(self, entries: int | None) -> int:
        return int((entries or self.limit()) * self._reads.mean_bytes)

    def entries_in(self, room: int) -> int:
        """How many entries are expected to need this room."""
        return math.ceil(room / self._reads.mean_bytes)

    def hold(self, difference: int) -> None:
        """Hold so many bytes more, or less, than before."""
        self._budget.adjust(difference)
        self._progress.held_bytes += difference

    def hold_nothing(self) -> None:
        """The session is over."""
        self.hold(-self._progress.held_bytes)

    # -------------------------------------------------------------------------------- an empty queue

    def may_passivate(self, busy_at: float) -> bool:
        """Whether it is time that nothing runs for this shard until the store tells of new entries."""
        idle_s = asyncio.get_running_loop().time() - busy_at
        return self._is_told and idle_s >= passivate_after(self._lease.active()) and not self._progress.news.is_set()

    @property
    def _is_told(self) -> bool:
        """Whether there is nothing to do here before the store tells of new entries."""
        return self._context.store.arrivals.notifies and self._all_removed()

    def idle_s(self, busy_at: float) -> float:
        """Seconds until an empty queue is looked into again."""
        settings, now = self._context.settings, asyncio.get_running_loop().time()
        if self._context.store.arrivals.notifies:  # few are looked into
            return idle_delay(now - busy_at, settings.idle_min_s, settings.idle_max_s)
        return self._context.looks.wait_s(now - busy_at, now, settings.idle_min_s, settings.idle_max_s)

    async def wait_for_news(self, busy_at: float) -> None:
        """Wait until an empty queue is worth another look: after a time, or when the store tells, or to rest."""
        now, settings = asyncio.get_running_loop().time, self._context.settings
        news = self._progress.news
        if not self._is_told:
            await at_most(news, self.idle_s(busy_at))
            return
        while not (news.is_set() or self.may_passivate(busy_at)):
            left_s = passivate_after(self._lease.active()) - (now() - busy_at)
            await at_most(news, min(settings.idle_max_s, max(settings.idle_min_s, left_s)))


async def at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but no longer than this."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
