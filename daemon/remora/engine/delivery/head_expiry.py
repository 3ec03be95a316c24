"""Enforces time_to_live and max_retries at the head of a queue while its endpoint is down.

While the way to an endpoint does not open nothing is read, so no session sees that an entry has outlived its time or
its attempts. This looks at the head at the pace of the pauses, and when the oldest entry is about to expire; it
dead-letters what is given up, and removes it. This happens between two sessions, so nothing else touches the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from remora.engine.delivery.letters import dead_letter_all, without_late_all
from remora.engine.delivery.scope import WorkerContext
from remora.engine.delivery.shard_state import ShardState
from remora.engine.delivery.triage import Rejected, own_part, triage
from remora.engine.lease import Lease
from remora.model.ledger import Cause, Tally
from remora.model.position import Position
from remora.model.record import Attempt, Page
from remora.model.topic import Topic
from remora.policy.admission.limits import ByteLimit
from remora.policy.admission.line import Demand
from remora.policy.delivery.lifetime import LifetimeLimits
from remora.policy.delivery.retry import PROBE_ENTRIES, due_in_s, read_limit
from remora.ports.delivery import MOST_ATTEMPTS

TRIED_AT_ONCE = 256
"""How many entries count an attempt when the way to the endpoint does not open: those that would have gone next."""

LEAST_S = 1.0
"""How soon the head is looked at again at most: what expires meanwhile goes together."""

FOR_EVER_S = float("inf")


class HeadExpiry:
    """Looks at the head of one shard's queue. `is_finishing` tells that it is to stop soon."""

    def __init__(
        self, context: WorkerContext, lease: Lease, state: ShardState, is_finishing: Callable[[], bool]
    ) -> None:
        self._context = context
        self._lease = lease
        self._redelivery = state.redelivery
        self._reads = state.reads
        self._progress = state.progress
        self._shaped = state.shaped
        self._is_finishing = is_finishing
        self._recalled = self._knows_letters = False
        self._noted: dict[bytes, Attempt] = {}
        self.has_looked = False
        """Whether it has read since this was last set to False."""

    # ------------------------------------------------------------------- letters and attempts

    async def recall_letters(self) -> None:
        """Learn once which entries that stand in the queue have letters by earlier holders: these are done."""
        if not self._knows_letters:
            self._lease.require_trust()
            self._redelivery.recall(await self._context.store.letters.standing(self._lease.token))
            self._knows_letters = True

    async def recall(self, limits: LifetimeLimits) -> None:
        """Learn what earlier holders noted, once, where attempts are limited or have a pace."""
        if limits.counts_attempts and not self._recalled:
            self._lease.require_trust()
            noted = await self._context.store.attempts.noted(self._lease.token)
            self._redelivery.attempts = {**noted, **self._redelivery.attempts}
            self._noted, self._recalled = dict(noted), True

    async def due_in_s(self, pace_s: float) -> float:
        """Seconds until the oldest entry may be tried again which an earlier holder tried, where a pace is set."""
        if not pace_s or not self._redelivery.attempts:
            return 0.0
        page = await self._read(1)
        attempt = self._redelivery.attempts.get(page.positions[0]) if page.entries else None
        return due_in_s(pace_s, attempt.count, attempt.first_tried, time.time()) if attempt else 0.0

    async def note(self, limits: LifetimeLimits) -> None:
        """Have the store keep the attempts of the oldest entries for the shard's next owner."""
        if not limits.counts_attempts or not self._recalled:
            return
        oldest = sorted(self._redelivery.attempts, key=lambda each: Position.parse(each.decode("ascii")))[
            :MOST_ATTEMPTS
        ]
        attempts = {position: self._redelivery.attempts[position] for position in oldest}
        if attempts != self._noted:
            self._lease.require_trust()
            await self._context.store.attempts.note(self._lease.token, attempts)
            self._noted = dict(attempts)

    # --------------------------------------------------------------------------------------- looks

    async def look(self, topic: Topic, within: ByteLimit, *, tried: bool, publishes: bool) -> float | None:
        """Dead-letter and remove what is given up at the head; answers in how many seconds there may be more of that.

        With `tried` the first entries count one more attempt. Where the endpoint `publishes` dead letters, an entry
        whose letter is stored is left to a session, which has the route for it. None when what stands there now has
        another target.
        """
        limits = self._context.settings.limits.of(topic)
        tried = tried and limits.counts_attempts
        if not limits and not tried and self._progress.has_work:
            return FOR_EVER_S
        rounds, again_s = 0, FOR_EVER_S
        while not self._is_finishing():
            room = int(self._limit(limits, rounds, tried=tried) * self._reads.mean_bytes)
            at_tail = self._shaped.at_tail or not self._shaped.is_known
            priority = self._context.gate.priority_of(topic, self._lease.shard, at_tail=at_tail)
            request = Demand(priority, within.chain, room)
            await self._context.gate.admit(request)
            try:
                page = await self._read(self._limit(limits, rounds, tried=tried))
                part = own_part(page, topic)
                if page.entries and not part.entries:
                    return None
                if tried:
                    self._redelivery.count_attempt(p for p in part.positions[:-1] if p not in self._redelivery.done)
                    tried = False
                left, again_s = await self._give_up(topic, limits, part, publishes=publishes)
            finally:
                self._context.gate.release(request)
            if not left and not page.truncated and part is page:
                self._progress.end_work()
            if left or not page.truncated or not limits:
                break
            rounds += 1
        return max(LEAST_S, again_s)

    def _limit(self, limits: LifetimeLimits, rounds: int, *, tried: bool) -> int:
        """How many entries to read: few while nothing is given up."""
        if not limits:
            return 1
        settings = self._context.settings
        fitting = max(1, int(settings.shard_bytes / 2 / self._reads.mean_bytes))
        wanted = TRIED_AT_ONCE if tried else read_limit(rounds, max(PROBE_ENTRIES, settings.list_entries))
        return min(wanted, fitting)

    async def _read(self, limit: int) -> Page:
        self._lease.require_trust()
        page = await self._context.store.queue.read(self._lease.token, b"", limit)
        self.has_looked = True
        if page.entries:
            self._redelivery.drop_before(page.positions[0])  # what an earlier holder noted may have gone
            self._progress.begin_work()
        else:
            self._progress.end_work()
        return page

    async def _give_up(
        self, topic: Topic, limits: LifetimeLimits, page: Page, *, publishes: bool
    ) -> tuple[bool, float]:
        """Dead-letter and remove the first entries as long as they are given up or were done before.

        Answers whether others are left behind them, and when the first of these expires.
        """
        redelivery, renderer = self._redelivery, self._context.renderer
        if not limits:
            return bool(page.entries), FOR_EVER_S
        triaged = triage(page, topic, limits, redelivery, renderer)
        left = triaged.records[0] if triaged.records else None
        known = [each.ordinal for each in triaged.rejected if page.positions[each.ordinal] in redelivery.letters]
        kept = known if publishes else []
        count = min([left.ordinal if left else len(page.entries), *kept])
        await self._dead_letter(topic, page, [each for each in triaged.rejected if each.ordinal < count])
        if count:
            await self._remove(topic, page, count)
        if left is None or count != left.ordinal:
            return bool(kept), limits.time_to_live_s or FOR_EVER_S
        return True, limits.expires_in_s(left.created_ns, time.time_ns())

    async def _dead_letter(self, topic: Topic, page: Page, rejected: list[Rejected]) -> None:
        """Store dead letters, but of what arrived late; from then on their entries are done, whatever becomes of their
        removal."""
        redelivery = self._redelivery
        given_up, late = await without_late_all(self._context, topic, redelivery, page, rejected)
        for ordinal in late:
            redelivery.done[page.positions[ordinal]] = Cause.DELIVERED
        await dead_letter_all(self._context, self._lease, topic, redelivery, page, given_up)
        for each in given_up:
            redelivery.done[page.positions[each.ordinal]] = Cause.of_letter(each.cause)
        redelivery.forget(page.positions[each.ordinal] for each in rejected)
        if rejected:
            self._progress.progress_at = asyncio.get_running_loop().time()

    async def _remove(self, topic: Topic, page: Page, count: int) -> None:
        """Removes the first entries of a listing; all of them are done."""
        positions = page.positions[:count]
        tally = sum((Tally.of(self._redelivery.done[each]) for each in positions), Tally())
        self._lease.require_trust()
        await self._context.store.queue.remove(self._lease.token, page.positions[count], count, tally)
        for each in positions:
            del self._redelivery.done[each]
        self._redelivery.removed(page.positions[count])
        self._context.telemetry.removed(topic.label, count)
