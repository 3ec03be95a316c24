"""Carries out the acquisitions of a plan: some shards at a time, each by what is known when its turn comes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence

from remora.engine.catalogue import Catalogue
from remora.engine.ownership.idle import IdleShards
from remora.engine.ownership.situation import Situation
from remora.engine.ownership.taker import LeaseTaker, TakenLock
from remora.metrics import Telemetry
from remora.model.member import CLAIM_COOKIE
from remora.model.shard import LockHolder, Shard
from remora.policy.ownership.assignment import PORTION, Acquisitions, in_order
from remora.policy.ownership.attempt import Step, postponed, ran_out, step
from remora.policy.ownership.hosts import holder_text, names_of
from remora.policy.ownership.not_owned import Damaged, Elsewhere, Foreign, GivenBack, NotOwned, Released

AT_ONCE = 32
"""Locks that are asked for at once; thousands of shards must not flood an OSD."""

RECEIVED_AT_ONCE = 64
"""Locks of expected shards that are asked for together."""

RELEASED_LOOK_S = 10.0
"""How often the holder of a released queue is looked up, for the status alone."""


class Acquirer:
    """See the module."""

    def __init__(
        self,
        situation: Situation,
        taker: LeaseTaker,
        idle: IdleShards,
        catalogue: Catalogue,
        telemetry: Telemetry,
        interval_s: float,
    ) -> None:
        """`interval_s` is between two readings of the catalogue."""
        self._situation = situation
        self._roster = situation.roster
        self._taker = taker
        self._idle = idle
        self._catalogue = catalogue
        self._telemetry = telemetry
        self._interval_s = interval_s
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._asking: set[Shard] = set()
        self._received = 0
        self._elsewhere: dict[str, str] = {}
        self.beat_at = asyncio.get_running_loop().time()

    async def carry_out(self, plan: Acquisitions) -> None:
        """Try the plan's shards. Where shards are idle at first, it begins with few, which deliver meanwhile."""
        shards, ages = [*plan.look, *plan.acquire], dict[Shard, float]()
        if self._idle.is_possible and len(shards) > PORTION:
            ages = await self._idle.ages(shards)
        await self._try_all(shards, ages)
        if plan.further and any(shard in self._roster.owned for shard in shards):
            await self._try_all(plan.further, ages)
        self._telemetry.handed_off(self._elsewhere)
        self._elsewhere.clear()

    async def receive(self, expected: Sequence[Shard]) -> None:
        """Ask for the locks of shards that their owners are about to transfer to this worker; some of very many."""
        start = self._received % len(expected)
        self._received = start + RECEIVED_AT_ONCE
        portion = [*expected[start:], *expected[:start]][:RECEIVED_AT_ONCE]
        await asyncio.gather(*(self._consider(shard) for shard in portion))
        await self._activate_busy(portion)

    async def _try_all(self, shards: Sequence[Shard], ages: Mapping[Shard, float]) -> None:
        shards = in_order(self._situation.view(), shards, ages)
        start, together = 0, AT_ONCE if self._idle.is_possible else len(shards)
        while start < len(shards):
            portion = shards[start : start + together]
            start, together = start + together, min(2 * together, PORTION)
            await self._each(self._consider(shard) for shard in portion)
            await self._activate_busy(portion)

    async def _each(self, jobs: Iterable[Coroutine[object, object, None]]) -> None:
        """Run jobs side by side, a bounded number at a time."""

        async def gated(job: Coroutine[object, object, None]) -> None:
            async with self._gate:
                await job
            self.beat_at = asyncio.get_running_loop().time()

        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(gated(job), name="ownership")

    async def _activate_busy(self, shards: Sequence[Shard]) -> None:
        """Activate those of these shards that are idle and have entries."""
        if self._idle.is_possible:
            idle = [shard for shard in shards if (own := self._roster.owned.get(shard)) is not None and own.is_idle]
            self._roster.notify(await self._idle.poll(idle))

    # ------------------------------------------------------------------------------------ one shard

    async def _consider(self, shard: Shard) -> None:
        if shard in self._roster.owned or shard in self._asking:
            return
        self._asking.add(shard)
        try:
            match first := step(self._situation.view(), shard):
                case Step.LOOK_FOR_HOLDER:
                    await self._look_at_released(shard)
                case Step.LOOK_FOR_CLAIM | Step.ACQUIRE:
                    if first is Step.ACQUIRE or await self._is_claimed(shard):
                        await self._try(shard, is_claimed=first is Step.LOOK_FOR_CLAIM)
        finally:
            self._asking.discard(shard)

    async def _try(self, shard: Shard, *, is_claimed: bool) -> None:
        """Acquire a shard if it is remora's to deliver, and this worker's turn."""
        why = await self._taker.examine(shard)
        if why is None and not is_claimed:
            why = postponed(self._situation.view(), shard, len(self._asking) - 1)
        if why is not None:
            self.note(shard, why)
            return
        outcome = await self._taker.acquire(shard)
        known = self._roster.observed.get(shard)
        if known is not None and known.was_damaged and isinstance(outcome, TakenLock | Elsewhere):
            self._telemetry.recovered(self._label(shard), shard.queue)
        if isinstance(outcome, TakenLock):
            self._begin(outcome, known)
        else:
            self.note(shard, outcome)

    def _begin(self, taken: TakenLock, known: NotOwned | None) -> None:
        owned = self._roster.add(taken)
        self._situation.members = self._situation.members.without_offers({owned.shard})
        taken_over = ran_out(known, asyncio.get_running_loop().time(), self._interval_s)
        self._telemetry.acquired(owned.shard.queue, taken_over, named=self._roster.named)
        if taken.claimed_by is not None:
            self._telemetry.claimed(owned.shard.queue, taken.claimed_by)
        self._count_move(owned.shard, taken_over)
        if self._situation.members.draining:
            self._roster.end(owned, GivenBack())
        elif not self._idle.is_possible:
            self._roster.activate(owned)

    def _count_move(self, shard: Shard, taken_over: bool) -> None:
        if shard in self._situation.members.expects:
            self._telemetry.moved("load" if shard in self._situation.members.for_load else "planned")
            self._situation.poll_soon.set()
        elif shard in self._situation.reaped:
            self._telemetry.moved("cleared")
        elif taken_over:
            self._telemetry.moved("stale")

    # ---------------------------------------------------------------------------------- not acquired

    def note(self, shard: Shard, why: NotOwned) -> None:
        """Keep why a shard is not owned, those that were tried last at the end, and say what is worth a log line."""
        if self._roster.observed.get(shard) is why:
            return
        self._keep(shard, why)
        match why:
            case Foreign():
                self._telemetry.left_alone(shard.queue, why.reason)
            case Damaged():
                self._telemetry.failed(self._label(shard), "damaged", why.reason, queue=shard.queue)
            case Elsewhere(holder=LockHolder() as holder):
                if self._roster.named and shard not in self._situation.members.expects:
                    names = names_of(self._situation.members.others.values())
                    self._elsewhere[shard.queue] = holder_text(holder.entity, holder.cookie, names)

    def _keep(self, shard: Shard, why: NotOwned) -> None:
        self._roster.observed.pop(shard, None)
        self._roster.observed[shard] = why

    async def _look_at_released(self, shard: Shard) -> None:
        """Note who holds a queue that is left to radosgw by command."""
        if not isinstance(self._roster.observed.get(shard), Released):
            self._telemetry.left_alone(shard.queue, Released().reason)
        holder, now = await self._taker.holder(shard), asyncio.get_running_loop().time()
        if isinstance(holder, NotOwned):
            self.note(shard, holder)
        else:
            self._keep(shard, Released(holder=holder, until=now + RELEASED_LOOK_S, seen_at=now))

    async def _is_claimed(self, shard: Shard) -> bool:
        """Whether a claim waits for a queue that this worker stays away from; notes its holder, for the status."""
        holder, known = await self._taker.holder(shard), self._roster.observed.get(shard)
        if isinstance(holder, NotOwned):
            self.note(shard, holder)
            return False
        if known is not None:
            self._keep(shard, known.held_by(holder, asyncio.get_running_loop().time()))
        return holder is not None and holder.cookie.startswith(CLAIM_COOKIE)

    def _label(self, shard: Shard) -> str:
        topic = self._catalogue.topic(shard)
        return topic.label if topic is not None else shard.queue
