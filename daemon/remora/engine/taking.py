"""Takes free shards: which ones are tried, in which order, and whose locks may be broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace

from remora.config import OwnershipSettings
from remora.engine.catalogue import Catalogue, first_known_topic
from remora.engine.dormant import Dormant
from remora.engine.held import Held, Left
from remora.engine.spread import Spread
from remora.metrics import Telemetry
from remora.model.errors import ShardGone, StoreDamaged, StoreError
from remora.model.member import CLAIM_COOKIE, WORKER_COOKIE
from remora.model.shard import LockHolder, LockToken, Shard
from remora.policy.balance import is_short, own_part_first
from remora.policy.eligible import reason_to_leave
from remora.policy.lease import Term
from remora.ports.delivery import DeliveryStore

AT_ONCE = 32
"""Locks that are asked for at once; thousands of shards must not flood an OSD."""

DAMAGE_PAUSE_S = 30.0

PORTION = 256
"""Shards that are taken together at most, where they are dormant then: beginning with few, which deliver while the
next ones are taken."""

ROUNDS_ELSEWHERE = 8
"""Readings of the catalogue within which each shard that others hold is tried once, where these are very many."""

GRACE_S = 1.0
"""How long a free shard is left to a worker that holds less than its share; then whoever comes takes it."""

RECEIVED_AT_ONCE = 64
"""Locks of offered shards that are asked for together."""

SHORT_READINGS = 2
"""Readings in a row by which the others hold less than was seen: one alone may be of a moment when something moved."""

LONGEST_REST_S = 60.0

RELEASED, RELEASED_LOOK_S = "released to radosgw until it is claimed", 10.0
"""Why a released queue is left, and how often it is looked up who holds it, for the status alone."""


class Taker:
    """Locks the shards that are ours to deliver, and notes of all others why they are left."""

    def __init__(
        self,
        store: DeliveryStore,
        catalogue: Catalogue,
        telemetry: Telemetry,
        settings: OwnershipSettings,
        cookie: str,
        schemes: frozenset[str],
        held: Mapping[Shard, Held],
        left: dict[Shard, Left],
        dormant: Dormant,
        spread: Spread,
        begin: Callable[[LockToken, Term, bool], None],
    ) -> None:
        """`begin` is called with each new hold, its term, and whether its last owner had let it run out.

        `left` is kept so that those that were tried longest ago come first.
        """
        self._store = store
        self._catalogue = catalogue
        self._telemetry = telemetry
        self._settings = settings
        self._cookie = cookie
        self._schemes = schemes
        self._held = held
        self._left = left
        self._dormant = dormant
        self._spread = spread
        self._begin = begin
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._named = True
        self._places: Mapping[Shard, int] = {}
        self._asking: set[Shard] = set()
        self._short_readings = 0
        self._received = 0
        self.beat_at = asyncio.get_running_loop().time()
        self.next_at = self.beat_at

    async def take(self, places: Mapping[Shard, int], *, changed: bool, named: bool) -> None:
        """Take what can be taken, after a reading of the catalogue; other owners are `named` in the log, or not.

        `places` has each shard's in the catalogue. `next_at` is then when something may be free that is to be tried.
        """
        self._named, self._places = named, places
        await self._take_all(*self._candidates(changed))
        now = asyncio.get_running_loop().time()
        has_room = self._spread.has_room(0)
        times = [
            now if each.waiting and has_room and not each.handed else self._next_try(each)
            for each in self._left.values()
            if (each.waiting or self._is_members(each)) and not each.released
        ]
        self.next_at = min(times, default=now + LONGEST_REST_S)

    async def receive(self, shards: Sequence[Shard]) -> None:
        """Ask for the locks of shards that their owners are about to give to this worker; some of very many."""
        start = self._received % len(shards)
        self._received = start + RECEIVED_AT_ONCE
        portion = [*shards[start:], *shards[:start]][:RECEIVED_AT_ONCE]
        await asyncio.gather(*(self._consider(shard) for shard in portion))
        if self._dormant.is_possible:
            await self._dormant.look(portion)

    def _candidates(self, changed: bool) -> tuple[Sequence[Shard], Sequence[Shard]]:
        """The shards to try now, and those to try only if one of the first was free.

        A worker that goes gives back all it had, so of very many that another one holds it is enough to try some.
        """
        if changed:
            fresh = [each for each in self._catalogue.shards if each not in self._held and each not in self._left]
            left = [(shard, each) for shard, each in self._left.items() if shard not in self._held]
        else:
            fresh, left = [], [(shard, each) for shard, each in self._left.items() if not each.settled]
        now, short, released = asyncio.get_running_loop().time(), self._is_short(), self._catalogue.released
        due = [
            (shard, each)
            for shard, each in left
            if self._is_due(each, now, short) or each.evicted or each.released is not (shard in released)
        ]
        elsewhere = [shard for shard, each in due if each.holder is not None and not self._is_free(each, now)]
        free = [shard for shard, each in due if each.holder is None or self._is_free(each, now)]
        tried = max(PORTION, len(elsewhere) // ROUNDS_ELSEWHERE)
        return fresh + free + elsewhere[:tried], elsewhere[tried:]

    def _is_due(self, left: Left, now: float, short: bool) -> bool:
        """Whether it is time to try a shard again.

        While its holder is a live worker, it is not before its lease may have ended, unless something is free that is
        not known which; anybody else's is tried at every reading, and at once when a worker has gone.
        """
        if left.waiting and not left.handed and self._spread.has_room(0):
            return True
        if left.not_before > now:
            return False
        if left.holder is None or left.waiting or now >= left.lapses_at:
            return True
        if self._is_members(left):
            return short
        return left.seen_at < self._spread.steady_since or now - left.seen_at >= self._settings.discovery_interval_s / 2

    def _is_members(self, left: Left) -> bool:
        return left.holder is not None and left.holder.cookie in self._spread.others

    def _is_free(self, left: Left, now: float) -> bool:
        """Whether a shard that was somebody else's is to be had, as far as is known."""
        return left.waiting or now >= left.lapses_at

    def _next_try(self, left: Left) -> float:
        return left.not_before if left.waiting else max(left.lapses_at, left.not_before)

    def _is_short(self) -> bool:
        """Whether the other workers hold less than was seen, reading after reading: somebody released something."""
        seen = sum(self._is_members(each) for each in self._left.values())
        short = is_short(self._spread.others.values(), seen)
        self._short_readings = self._short_readings + 1 if short else 0
        return self._short_readings >= SHORT_READINGS

    async def _take_all(self, shards: Sequence[Shard], further: Sequence[Shard]) -> None:
        if self._dormant.is_possible and len(shards) > PORTION:
            shards = await self._dormant.busy_first(shards)
        shards = own_part_first(shards, self._places, *self._spread.place)
        start, together = 0, AT_ONCE if self._dormant.is_possible else len(shards)
        while start < len(shards):
            portion = shards[start : start + together]
            start, together = start + together, min(2 * together, PORTION)
            await self._each(self._consider(shard) for shard in portion)
            if self._dormant.is_possible:
                await self._dormant.look(portion)
        if further and any(each in self._held for each in shards):
            await self._take_all(further, ())

    async def _consider(self, shard: Shard) -> None:
        """Take a shard if it is ours to deliver and free."""
        if shard in self._held or shard in self._asking:
            return
        self._asking.add(shard)
        try:
            await self._take_if_ours(shard)
        finally:
            self._asking.discard(shard)

    async def _take_if_ours(self, shard: Shard) -> None:
        left, now = self._left.get(shard), asyncio.get_running_loop().time()
        try:
            if shard in self._catalogue.released:
                await self._leave_released(shard, left, now)
                return
            if left is not None and left.released:
                del self._left[shard]
                left = None
            paused = left is not None and self._is_paused(left, shard, now)
            if paused and not await self._is_claimed(shard, left):
                return
            known = self._catalogue.topic(shard)
            why = reason_to_leave(known or await first_known_topic(self._store, shard), self._schemes)
            if why is not None:
                self._left[shard] = Left(why, settled=known is not None)
                self._telemetry.left_alone(shard.queue, why)
                return
            if not paused and not self._may_take(shard, left, now):
                return
            await self._take(shard)
            if left is not None and left.damaged:
                self._telemetry.recovered(self._label(shard))
        except ShardGone:
            self._left[shard] = Left("registered, but there is no queue object of this name")
        except StoreDamaged as exc:
            self._left[shard] = Left(str(exc), not_before=now + DAMAGE_PAUSE_S, damaged=True)
            self._telemetry.failed(self._label(shard), "damaged", str(exc))
        except StoreError as exc:
            self._left[shard] = Left(str(exc))

    async def _leave_released(self, shard: Shard, left: Left | None, now: float) -> None:
        """Note who holds a queue that is left to radosgw by command."""
        if left is None or not left.released:
            self._telemetry.left_alone(shard.queue, RELEASED)
        holder = (await self._store.inspection.stats(shard)).holder
        self._left[shard] = Left(RELEASED, holder, not_before=now + RELEASED_LOOK_S, seen_at=now, released=True)

    def _is_paused(self, left: Left, shard: Shard, now: float) -> bool:
        if left.waiting and (shard in self._spread.expects or (not left.handed and self._spread.has_room(0))):
            return False
        return left.not_before > now

    def _may_take(self, shard: Shard, left: Left | None, now: float) -> bool:
        """Whether this worker may take a shard if it is free now; else it is left to others for a moment."""
        if shard in self._spread.expects:
            return True
        has_waited = left is not None and left.waiting and left.not_before <= now
        is_promised = self._spread.is_promised(shard)
        if not is_promised and (has_waited or self._spread.has_room(len(self._asking) - 1)):
            return True
        if left is None or not left.waiting or has_waited:
            known = left if left is not None and not left.settled else Left("left to workers that hold fewer")
            self._left[shard] = replace(known, waiting=True, handed=is_promised, not_before=now + GRACE_S)
        return False

    async def _is_claimed(self, shard: Shard, left: Left | None) -> bool:
        """Whether a claim waits for a queue that this worker stays away from; notes who holds it, for the status."""
        if left is None or not left.evicted:
            return False
        holder = (await self._store.inspection.stats(shard)).holder
        self._left[shard] = replace(left, holder=holder, seen_at=asyncio.get_running_loop().time())
        return holder is not None and holder.cookie.startswith(CLAIM_COOKIE)

    async def _take(self, shard: Shard) -> None:
        times, loop = self._settings.times, asyncio.get_running_loop()
        asked_at = loop.time()
        answer = await self._store.locks.acquire(shard, self._cookie, times.lease_s)
        if isinstance(answer, LockHolder) and self._may_evict(answer):
            await self._store.locks.evict(shard, answer)
            asked_at = loop.time()
            answer = await self._store.locks.acquire(shard, self._cookie, times.lease_s)
        left = self._left.pop(shard, None)
        if isinstance(answer, LockHolder):
            self._left[shard] = Left("held by another owner", answer, seen_at=loop.time())
            if self._named and shard not in self._spread.expects:
                self._telemetry.handed_off(shard.queue, f"{answer.entity} {answer.cookie}")
        else:
            self._begin(answer, Term.granted(times, asked_at), left is not None and self._ran_out(left))

    def _may_evict(self, holder: LockHolder) -> bool:
        """Whether a lock may be broken: one that was taken for us, and a gateway's where the settings say so."""
        if holder.cookie.startswith(CLAIM_COOKIE):
            return True
        return self._settings.claim_from_radosgw == "always" and not holder.cookie.startswith(WORKER_COOKIE)

    def _ran_out(self, left: Left) -> bool:
        """Whether a lock that is free now was let run out, rather than given back or broken."""
        if left.holder is None:
            return False
        age_s = asyncio.get_running_loop().time() - left.seen_at
        return left.holder.lease_left_s <= age_s + self._settings.discovery_interval_s

    async def _each(self, jobs: Iterable[Coroutine[object, object, None]]) -> None:
        """Run jobs side by side, a bounded number at a time."""

        async def gated(job: Coroutine[object, object, None]) -> None:
            async with self._gate:
                await job
            self.beat_at = asyncio.get_running_loop().time()

        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(gated(job), name="ownership")

    def _label(self, shard: Shard) -> str:
        topic = self._catalogue.topic(shard)
        return topic.label if topic is not None else shard.queue
