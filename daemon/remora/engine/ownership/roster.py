"""The shards of this worker: those that it owns, with what runs for them, and of the others why it does not own them.

Whatever ends a shard's service, its lock is released only after the service has returned, and only then is the shard
not owned any more. So no operation of an earlier lease can be under way in a later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from remora.engine.lease import Lease, LeaseReleaser, release_all
from remora.engine.ownership.owned import OwnedShard, Phase, ShardService
from remora.engine.ownership.taker import TakenLock
from remora.metrics import Telemetry
from remora.model.errors import LockLetGo, NotOurs, OwnershipLost, ShardGone, StoreError, without_frames
from remora.model.shard import Shard
from remora.policy.ownership.not_owned import Broken, Deferred, Errored, GivenBack, NotOwned

CRASH_PAUSE_S = 30.0
EVICTED_PAUSE_S = 45.0

WAVE_S = 0.05
"""The pause between two waves of shards that become active."""

ACTIVE_AT_ONCE = 1000
LEAST_WAVE = 32
"""A wave brings the active shards up to the former number; it is never smaller than the latter, so that shards behind
broken endpoints, which stay active, keep no other shard idle."""


class Roster:
    """See the module. `owned` and `observed` are for others to read; a shard is in one of them at most."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        releaser: LeaseReleaser,
        telemetry: Telemetry,
        serve: Callable[[Lease], ShardService],
        is_former: Callable[[Shard], bool] = lambda _: False,
    ) -> None:
        """Services run in `tasks`; `serve` makes one. `is_former` tells which shards go when they are delivered."""
        self.owned: dict[Shard, OwnedShard] = {}
        self.observed: dict[Shard, NotOwned] = {}
        self.named = True
        """Whether each shard is named in the log, which very many are not."""
        self.transferred = asyncio.Event()
        """Set when a shard has left for another worker, which waits to see that."""
        self._tasks = tasks
        self._releaser = releaser
        self._telemetry = telemetry
        self._serve = serve
        self._is_former = is_former
        self._active = 0
        self._is_finishing = False
        self._due: dict[Shard, None] = {}
        self._next_wave: asyncio.TimerHandle | None = None

    # --------------------------------------------------------------------------------------- looks

    @property
    def idle(self) -> list[OwnedShard]:
        """The shards for which nothing runs."""
        return [each for each in self.owned.values() if each.is_idle]

    def active(self) -> int:
        """For how many shards a service runs."""
        return self._active

    # --------------------------------------------------------------------------------------- life

    def add(self, taken: TakenLock) -> OwnedShard:
        """Own a shard whose lock was acquired; it is idle."""
        lease = Lease(taken.token, taken.term, self.active)
        owned = self.owned[lease.shard] = OwnedShard(lease, asyncio.get_running_loop().time())
        self.observed.pop(lease.shard, None)
        return owned

    def activate(self, owned: OwnedShard) -> None:
        """Serve an idle shard; nothing, when all are being given back."""
        if self._is_finishing or not owned.is_idle:
            return
        owned.enter(Phase.STARTING)
        owned.service = service = self._serve(owned.lease)
        owned.task = self._tasks.create_task(self._run(owned, service), name=f"shard {owned.shard}")
        self._active += 1

    def notify(self, shards: Iterable[Shard]) -> None:
        """These queues have entries, or had some a moment ago: idle shards become active, and services are notified."""
        for shard in shards:
            owned = self.owned.get(shard)
            if owned is None:
                continue
            if owned.is_idle:
                self._due[shard] = None
            elif owned.service is not None:
                owned.service.arrived()
        if self._next_wave is None:
            self._activate_some()

    def _activate_some(self) -> None:
        """Activate a wave of the shards that are due, and the next one soon: thousands at once take much memory."""
        for shard in list(islice(self._due, max(LEAST_WAVE, ACTIVE_AT_ONCE - self._active))):
            del self._due[shard]
            if (owned := self.owned.get(shard)) is not None:
                self.activate(owned)
        loop = asyncio.get_running_loop()
        self._next_wave = loop.call_later(WAVE_S, self._activate_some) if self._due else None

    def release(self, shard: Shard, outcome: NotOwned) -> None:
        """Release a shard when what is in flight is done; nothing, where that is under way or it is not owned."""
        owned = self.owned.get(shard)
        if owned is None or owned.is_leaving:
            return
        if owned.phase is Phase.ACTIVE and owned.service is not None:
            owned.end(outcome)
            owned.service.end()
        else:
            self.end(owned, outcome)

    def end(self, owned: OwnedShard, outcome: NotOwned) -> None:
        """Release a shard at once; nothing, where that is under way.

        Its service is cancelled once only, so that the lock is released in peace.
        """
        has_begun = owned.phase in (Phase.ACTIVE, Phase.FINISHING)
        owned.release(outcome)
        if owned.task is None:
            owned.task = self._tasks.create_task(self._leave(owned, outcome), name=f"leave {owned.shard}")
        elif has_begun:
            owned.task.cancel()  # one that was cancelled before its first step would never run, nor release

    def lose(self, lease: Lease, why: StoreError) -> None:
        """End a shard whose lock the store says is lost, unless it was acquired anew meanwhile."""
        owned = self.owned.get(lease.shard)
        if owned is not None and owned.lease is lease and not owned.is_releasing:
            self.end(owned, self._lost(owned, why))

    def end_all(self) -> None:
        """Let every service finish and its lock be released, and start no more."""
        self._is_finishing = True
        for each in self.owned.values():
            if each.service is not None:
                each.service.end()

    async def empty(self) -> None:
        """After `end_all`: return when all shards have left."""
        for each in self.idle:
            self.end(each, GivenBack())
        while tasks := [each.task for each in self.owned.values() if each.task]:
            await asyncio.wait(tasks)

    async def release_all(self) -> None:
        """After all tasks were cancelled: release what no task of its own has released, within a few seconds."""
        self._is_finishing = True
        among = len(self.owned)
        await release_all(self._releaser.release(each.lease, among, named=self.named) for each in self.owned.values())

    # ------------------------------------------------------------------------------------ serving

    async def _run(self, owned: OwnedShard, service: ShardService) -> None:
        """Run a shard's service. Then the shard is idle, or it is released, whatever ended the service."""
        outcome: NotOwned | None = GivenBack()
        try:
            if owned.phase is Phase.STARTING:
                owned.enter(Phase.ACTIVE)
                await service.run()
            outcome = owned.outcome
            if self._is_finishing:
                outcome = outcome or GivenBack()
        except (OwnershipLost, ShardGone) as exc:
            outcome = self._lost(owned, without_frames(exc))
        except NotOurs as exc:
            outcome = Errored(reason=str(without_frames(exc)))
        except Exception as exc:  # anything at all: a defect costs its shard only
            self._telemetry.crashed(owned.shard.queue)
            without_frames(exc)
            again_at = asyncio.get_running_loop().time() + CRASH_PAUSE_S
            outcome = Errored(reason="stopped by a defect, see the log", until=again_at)
        finally:
            self._active -= 1
            if outcome is None:
                owned.passivate(asyncio.get_running_loop().time())
            else:
                with self._leaving(owned, outcome):
                    await self._release(owned)

    async def _leave(self, owned: OwnedShard, outcome: NotOwned) -> None:
        """Release a shard that has no service."""
        with self._leaving(owned, outcome):
            await self._release(owned)

    async def _release(self, owned: OwnedShard) -> None:
        await self._releaser.release(owned.lease, len(self.owned), named=self.named)

    @contextmanager
    def _leaving(self, owned: OwnedShard, outcome: NotOwned) -> Iterator[None]:
        """Around the release of a shard for which nothing runs: only after it may the shard be acquired again."""
        shard = owned.shard
        owned.release(outcome)
        try:
            yield
        except Exception as exc:  # as in `_run`; the lease ends by itself
            self._telemetry.crashed(shard.queue)
            without_frames(exc)
        finally:
            del self.owned[shard]
            self.observed[shard] = owned.outcome or outcome
            if isinstance(owned.outcome, Deferred):
                self.transferred.set()

    def _lost(self, owned: OwnedShard, why: StoreError) -> NotOwned:
        """Why a shard is not owned any more whose lock is lost, and until when to stay away from it.

        A lock that went while it was trusted was broken by another owner that wants the queue: a gateway looks for free
        queues every 30 s, so longer than that is left to it. A lock that ran out, or that the store itself let go, is
        simply acquired again.
        """
        lease = owned.lease
        if isinstance(why, ShardGone):
            had_work = owned.has_work and not self._is_former(lease.shard)
            self._telemetry.gone(lease.shard.queue, str(why), had_work=had_work)
            return Errored(reason=str(why))
        self._telemetry.lost(lease.shard.queue, str(why))
        now = asyncio.get_running_loop().time()
        was_taken = isinstance(why, OwnershipLost) and not isinstance(why, LockLetGo)
        if was_taken and lease.term.is_trusted(now):
            return Broken(until=now + EVICTED_PAUSE_S)
        return Errored(reason=str(why))
