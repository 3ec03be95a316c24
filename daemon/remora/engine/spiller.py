"""Moves entries of queues that fail and fill to objects beside them, so that senders find room for days.

It looks at the heads of such queues by itself, whatever their sessions wait for, and as often as their growth demands.
What it moves sessions read first, and notice nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from remora.codec.topic import spills
from remora.engine.backlog import ShardOwner
from remora.engine.delivery.scope import WorkerContext
from remora.engine.rooms import Rooms
from remora.engine.status import ShardStatus
from remora.model.errors import CodecError, StoreError
from remora.model.shard import LockToken, Shard
from remora.model.spill import SpillLook, SpillUsage
from remora.model.topic import Topic
from remora.model.traffic import Priority
from remora.policy.delivery.retry import ShardFailure
from remora.policy.queues.mends import Growth, should_mend
from remora.policy.queues.spill import (
    STALLED_S,
    SpillRules,
    is_urgent,
    look_again_s,
    near_bound,
    should_go_on,
    should_guard,
    should_start,
    why_refused,
)
from remora.policy.status.stages import EventStage

_IDLE_S = 1.0
_FAILED_S = 1.0
_USAGE_EVERY_S = 30.0
_USAGE_AGAIN_S = 5.0
_AT_ONCE = 4


@dataclass(slots=True)
class _Watched:
    """What is known of a queue that may be spilled.

    What arrives are the bytes in ring and runs together, so that neither a move nor the end of one looks like growth.
    """

    arrivals: Growth = field(default_factory=Growth)
    due_at: float = 0.0
    is_moving: bool = False
    has_runs: bool = False
    is_guarded: bool = False


class Spiller:
    """See the module. `rules` are as configured; `rooms` mends what leaks, and names the topic of a queue.

    Moves take credit of the traffic with the store, which may have them wait for the next look.
    """

    def __init__(self, context: WorkerContext, held: ShardOwner, rules: SpillRules, rooms: Rooms) -> None:
        self._store, self._catalogue, self._telemetry = context.store, context.catalogue, context.telemetry
        self._gate, self._held, self._rules, self._rooms = context.gate, held, rules, rooms
        self._watched: dict[Shard, _Watched] = {}
        self._usage = SpillUsage({})
        self._usage_at = -math.inf
        self._seen_topics: Mapping[Shard, Topic] = {}
        self._is_wanted = False

    async def run(self) -> None:
        """Look again and again until cancelled; nothing is asked of the store while no topic may spill."""
        while self._store.spill.may_spill:
            if self._wanted():
                await self.look()
            now = asyncio.get_running_loop().time()
            due = min((each.due_at for each in self._watched.values()), default=math.inf)
            await asyncio.sleep(min(_IDLE_S, max(0.05, due - now)))

    def _wanted(self) -> bool:
        """Whether any topic may spill."""
        topics = self._catalogue.topics
        if topics is not self._seen_topics:
            self._seen_topics = topics
            self._is_wanted = any(self._may_spill(topic) for topic in topics.values())
        return self._is_wanted or self._rules.enabled

    def _may_spill(self, topic: Topic | None) -> bool:
        return spills(topic.target.args, self._rules.enabled) if topic is not None else self._rules.enabled

    async def look(self) -> None:
        """Look once at each queue that is due."""
        now = asyncio.get_running_loop().time()
        if now - self._usage_at >= _USAGE_EVERY_S:
            await self._look_at_usage(now)
        tokens = self._candidates()
        await self._leave({shard for shard in self._watched if shard not in tokens}, now)
        for shard in tokens:
            self._watched.setdefault(shard, _Watched())
        todo = iter([token for shard, token in tokens.items() if self._watched[shard].due_at <= now])

        async def work() -> None:
            for token in todo:
                await self._look_at(token, self._watched[token.shard])

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(work(), name="spilling")

    async def _leave(self, shards: set[Shard], now: float) -> None:
        """Watch these queues no longer: they are delivered again, or held by others.

        One whose guard cannot be lifted now stays watched.
        """
        held = {each.shard: each for each in self._held.tokens} if shards else {}
        for shard in shards:
            known = self._watched[shard]
            if known.is_guarded and shard in held:
                try:
                    await self._store.spill.unguard(held[shard])
                except (StoreError, CodecError):
                    known.due_at = now + _FAILED_S
                    continue
            del self._watched[shard]

    def _candidates(self) -> dict[Shard, LockToken]:
        """The held queues that fail, stand still, or have spilled entries, as far as their topics may spill."""
        stuck = {each.queue for each in self._held.active() if _is_stuck(each)}
        if not (stuck or self._usage.by_shard or self._watched):
            return {}
        return {
            each.shard: each
            for each in self._held.tokens
            if (each.shard.queue in stuck or self._has_runs(each.shard))
            and self._may_spill(self._catalogue.topic(each.shard))
        }

    def _has_runs(self, shard: Shard) -> bool:
        known = self._watched.get(shard)
        return known.has_runs if known is not None else shard in self._usage.by_shard

    async def _look_at_usage(self, now: float) -> None:
        try:
            self._usage = await self._store.spill.usage()
        except (StoreError, CodecError):
            self._usage_at = now - _USAGE_EVERY_S + _USAGE_AGAIN_S  # what is known stands
            return
        self._usage_at = now
        for topic in {self._rooms.label(each) for each, known in self._watched.items() if known.has_runs}:
            self._show_bound(topic, self._of_topic(topic))

    async def _look_at(self, token: LockToken, known: _Watched) -> None:
        """Look at one queue, and move what has to be moved."""
        loop = asyncio.get_running_loop()
        try:
            seen = await self._store.spill.look(token)
            self._note(token, known, seen)
            if should_mend(self._rooms.heal, seen.room, 0.0, has_runs=known.has_runs):
                await self._rooms.mend_one(token)
            lasts_s = known.arrivals.lasts_s(seen.room)
            if not known.is_moving and should_start(self._rules, seen.room, lasts_s):
                known.is_moving = True
                self._telemetry.spill_began(self._rooms.label(token.shard), token.shard.queue)
            may_move = False
            if known.has_runs or should_guard(self._rules, seen.room, lasts_s):
                known.is_guarded = True
                may_move = await self._store.spill.guard(token)
            if known.is_moving and (may_move or seen.spill.entries):
                seen = await self._move(token, known, seen)
                lasts_s = known.arrivals.lasts_s(seen.room)
            elif not should_go_on(self._rules, seen.room):
                known.is_moving = False
        except (StoreError, CodecError) as exc:
            self._telemetry.spill_refused(self._rooms.label(token.shard), token.shard.queue, str(exc))
            known.due_at = loop.time() + _FAILED_S
        else:
            known.due_at = loop.time() + look_again_s(seen.room, lasts_s)

    def _note(self, token: LockToken, known: _Watched, seen: SpillLook) -> None:
        now = asyncio.get_running_loop().time()
        known.arrivals = known.arrivals.after(now, seen.room.taken_bytes + seen.spill.nbytes)
        if known.has_runs and not seen.spill.entries:
            self._telemetry.spill_ended(self._rooms.label(token.shard), token.shard.queue)
        known.has_runs = seen.spill.entries > 0

    async def _move(self, token: LockToken, known: _Watched, seen: SpillLook) -> SpillLook:
        """Move page after page until there is room enough, or no credit; returns the last look. Raises StoreError."""
        topic, queue = self._rooms.label(token.shard), token.shard.queue
        while should_go_on(self._rules, seen.room):
            of_topic = self._of_topic(topic)
            self._show_bound(topic, of_topic)
            if why := why_refused(self._rules, of_topic, self._usage.total_bytes, self._usage.full):
                self._telemetry.spill_refused(topic, queue, why)
                return seen
            has_haste = is_urgent(seen.room)
            priority = Priority.MAX if has_haste else Priority.IDLE
            if not (self._gate.use_store(priority, 0) or has_haste):
                return seen
            began = asyncio.get_running_loop().time()
            count = await self._store.spill.move(token)
            if not count:
                break
            took_s = asyncio.get_running_loop().time() - began
            self._telemetry.spill_moved(topic, count)
            self._telemetry.stage_took(EventStage.SPILL, self._store.kind, took_s)
            before, seen = seen, await self._store.spill.look(token)
            self._note(token, known, seen)
            nbytes = max(0, seen.spill.nbytes - before.spill.nbytes)
            usage, shard = self._usage, token.shard  # what was moved counts at once, also before the next reading
            self._usage = SpillUsage({**usage.by_shard, shard: usage.by_shard.get(shard, 0) + nbytes}, usage.full)
            self._gate.use_store(priority, 2 * nbytes)  # it is listed, and written
            await asyncio.sleep(0 if is_urgent(seen.room) else took_s)
        known.is_moving = False
        return seen

    def _of_topic(self, topic: str) -> int:
        """The bytes of all runs of a topic's queues."""
        return sum(n for each, n in self._usage.by_shard.items() if self._rooms.label(each) == topic)

    def _show_bound(self, topic: str, of_topic: int) -> None:
        self._telemetry.spill_near_bound(topic, near_bound(self._rules, of_topic, self._usage.total_bytes))


def _is_stuck(status: ShardStatus) -> bool:
    """Whether a queue's entries cannot be delivered now; what the store itself fails at cannot be moved either."""
    if status.failure in (ShardFailure.STORE, ShardFailure.DAMAGED):
        return False
    return status.failure is not None or (status.has_work and status.progress_age_s > STALLED_S)
