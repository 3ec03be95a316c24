"""Which shards this worker holds: takes them, keeps them, gives them back.

Every few seconds the catalogue is compared with what is held. A shard that nobody holds is locked and served;
each lock is renewed well before trust in it ends. Whatever ends a shard's service, its lock is released only
after the dispatcher has returned, and the shard is locked again only after that: no operation of an earlier
hold can be under way in a later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Protocol

from remora.config import OwnershipSettings
from remora.engine.catalogue import Catalogue, first_known_topic
from remora.engine.dispatcher import NotOurs, ShardStatus
from remora.engine.tenure import Tenure
from remora.metrics import Telemetry
from remora.model.errors import OwnershipLost, ShardGone, StoreError
from remora.model.shard import Hold, LockHolder, Shard
from remora.model.topic import Topic
from remora.policy.eligible import reason_to_leave
from remora.policy.lease import Term
from remora.ports import DeliveryStore

AT_ONCE = 32
"""Store operations that ownership has under way at once; thousands of shards must not flood an OSD."""

WORKER_COOKIE = "remora/"
"""Begins every cookie of remora: `remora/<host id>/<boot id>/<worker uuid>`."""

CLAIM_COOKIE = "remora/claim/"
"""Begins the cookie of a lock that was taken for whichever worker comes first; see `claim`."""

CRASH_PAUSE_S = 30.0

EVICTED_PAUSE_S = 45.0


class Service(Protocol):
    """What is run for a held shard: the dispatcher."""

    async def run(self) -> None: ...

    def finish(self) -> None: ...

    def status(self) -> ShardStatus: ...


@dataclass(slots=True)
class Left:
    """Why a shard is not held by this worker, for status."""

    reason: str
    holder: LockHolder | None = None
    not_before: float = 0.0
    evicted: bool = False


@dataclass(slots=True)
class _Held:
    tenure: Tenure
    service: Service
    task: asyncio.Task[None]
    expire_at: float
    ended: Left | None = None


class Ownership:
    """See the module."""

    def __init__(
        self,
        store: DeliveryStore,
        catalogue: Catalogue,
        telemetry: Telemetry,
        settings: OwnershipSettings,
        cookie: str,
        schemes: frozenset[str],
        serve: Callable[[Tenure], Service],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._telemetry = telemetry
        self._settings = settings
        self._cookie = cookie
        self._schemes = schemes
        self._serve = serve
        self._held: dict[Shard, _Held] = {}
        self._left: dict[Shard, Left] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._finishing = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self.beat_at = asyncio.get_running_loop().time()

    # -------------------------------------------------------------------------------------- looks

    @property
    def tenures(self) -> list[Tenure]:
        """The shards that are held now."""
        return [each.tenure for each in self._held.values()]

    @property
    def left(self) -> dict[Shard, Left]:
        """The shards that are not held, with the reason."""
        return self._left

    def statuses(self) -> list[ShardStatus]:
        """How each held shard is doing."""
        return [each.service.status() for each in self._held.values()]

    # --------------------------------------------------------------------------------------- life

    def finish(self) -> None:
        """Take nothing more and let every shard finish; `run` returns when all locks are released."""
        self._finishing.set()
        for each in self._held.values():
            each.service.finish()

    async def run(self) -> None:
        """Own shards until `finish`. On cancellation locks are still released, within a few seconds."""
        async with self._tasks:
            keepers = [
                self._tasks.create_task(self._take_on(), name="take shards"),
                self._tasks.create_task(self._keep_on(), name="keep locks"),
            ]
            await self._finishing.wait()
            keepers[0].cancel()
            while self._held:
                await asyncio.wait([each.task for each in self._held.values()])
            keepers[1].cancel()

    async def _take_on(self) -> None:
        """Compare the catalogue with what is held, after every reading of it."""
        while True:
            await self._each(self._consider(shard) for shard in self._catalogue.shards)
            present = set(self._catalogue.shards)
            for shard in [s for s in self._left if s not in present]:
                del self._left[shard]
            self._telemetry.owned(len(self._held))
            elsewhere = sum(left.holder is not None for left in self._left.values())
            self._telemetry.eligible(len(self._held) + elsewhere)
            await self._catalogue.next_reading()

    async def _keep_on(self) -> None:
        """Renew locks and expire stale reservations when they are due; look every tenth of an interval."""
        now = asyncio.get_running_loop().time
        while True:
            due = [each for each in self._held.values() if each.tenure.term.renew_at <= now()]
            await self._each(self._renew(each) for each in due)
            stale = [each for each in self._held.values() if each.expire_at <= now()]
            await self._each(self._expire(each) for each in stale)
            self.beat_at = now()
            await asyncio.sleep(min(1.0, self._settings.times.renew_s / 10))

    async def _each(self, jobs: Iterable[Coroutine[object, object, None]]) -> None:
        """Run jobs side by side, a bounded number at a time."""

        async def gated(job: Coroutine[object, object, None]) -> None:
            async with self._gate:
                await job
            self.beat_at = asyncio.get_running_loop().time()

        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(gated(job), name="ownership")

    # ------------------------------------------------------------------------------------- taking

    async def _consider(self, shard: Shard) -> None:
        """Take a shard if it is ours to deliver and free."""
        if shard in self._held or self._finishing.is_set():
            return
        left, now = self._left.get(shard), asyncio.get_running_loop().time()
        try:
            if left is not None and left.not_before > now and not (left.evicted and await self._is_claimed(shard)):
                return
            why = reason_to_leave(await self._topic_of(shard), self._schemes)
            if why is not None:
                self._left[shard] = Left(why)
                self._telemetry.left_alone(shard.queue, why)
                return
            await self._take(shard)
        except ShardGone:
            self._left[shard] = Left("registered, but there is no queue object of this name")
        except StoreError as exc:
            self._left[shard] = Left(str(exc))

    async def _is_claimed(self, shard: Shard) -> bool:
        holder = (await self._store.stats(shard)).holder
        return holder is not None and holder.cookie.startswith(CLAIM_COOKIE)

    async def _topic_of(self, shard: Shard) -> Topic | None:
        known = self._catalogue.topic(shard)
        if known is not None:
            return known
        return await first_known_topic(self._store, shard)

    async def _take(self, shard: Shard) -> None:
        times, loop = self._settings.times, asyncio.get_running_loop()
        asked_at = loop.time()
        answer = await self._store.acquire(shard, self._cookie, times.lease_s)
        if isinstance(answer, LockHolder) and self._may_evict(answer):
            await self._store.evict(shard, answer)
            asked_at = loop.time()
            answer = await self._store.acquire(shard, self._cookie, times.lease_s)
        if isinstance(answer, LockHolder):
            self._left[shard] = Left("held by another owner", answer)
            self._telemetry.handed_off(shard.queue, f"{answer.entity} {answer.cookie}")
            return
        left = self._left.pop(shard, None)
        self._begin(answer, Term.granted(times, asked_at), taken_over=left is not None and self._ran_out(left))

    def _may_evict(self, holder: LockHolder) -> bool:
        """Whether a lock may be broken: one that was taken for us, and a gateway's where the settings say so."""
        if holder.cookie.startswith(CLAIM_COOKIE):
            return True
        return self._settings.claim_from_radosgw == "always" and not holder.cookie.startswith(WORKER_COOKIE)

    def _ran_out(self, left: Left) -> bool:
        """Whether a lock that is free now was let run out, rather than given back or broken."""
        return left.holder is not None and left.holder.lease_left_s <= 2 * self._settings.discovery_interval_s

    def _begin(self, hold: Hold, term: Term, *, taken_over: bool) -> None:
        tenure = Tenure(hold, term, owned=lambda: len(self._held))
        service = self._serve(tenure)
        task = self._tasks.create_task(self._serve_shard(tenure, service), name=f"shard {hold.shard}")
        now = asyncio.get_running_loop().time()
        self._held[hold.shard] = _Held(tenure, service, task, expire_at=now + self._settings.reservation_interval_s)
        self._telemetry.acquired(hold.shard.queue, taken_over)
        if self._finishing.is_set():
            service.finish()

    async def _serve_shard(self, tenure: Tenure, service: Service) -> None:
        """Run the dispatcher of one shard and clear up after it, whatever ended it."""
        shard, queue = tenure.shard, tenure.shard.queue
        left = Left("given back")
        held = self._held[shard]
        try:
            await service.run()
        except (OwnershipLost, ShardGone) as exc:
            left = self._lost(tenure, exc)
        except NotOurs as exc:
            left = Left(str(exc))
        except Exception:  # the one place where anything is caught: a defect costs its shard only
            self._telemetry.crashed(queue)
            again_at = asyncio.get_running_loop().time() + CRASH_PAUSE_S
            left = Left("stopped by a defect, see the log", not_before=again_at)
        finally:
            try:
                await self._let_go(tenure)
            finally:
                del self._held[shard]
                self._left[shard] = held.ended or left

    async def _let_go(self, tenure: Tenure) -> None:
        """Release a lock, shielded and within a few seconds; if that fails the lease runs out by itself."""
        release = asyncio.ensure_future(self._release(tenure))
        try:
            await asyncio.shield(release)
        except asyncio.CancelledError:
            await asyncio.wait([release], timeout=3.0)
            raise

    async def _release(self, tenure: Tenure) -> None:
        try:
            async with asyncio.timeout(self._settings.release_timeout_s):
                await self._store.release(tenure.hold)
        except (StoreError, TimeoutError) as exc:
            self._telemetry.release_failed(tenure.shard.queue, str(exc))
        else:
            self._telemetry.released(tenure.shard.queue)

    # ------------------------------------------------------------------------------------ keeping

    async def _renew(self, held: _Held) -> None:
        times, started = self._settings.times, asyncio.get_running_loop().time()
        try:
            await self._store.renew(held.tenure.hold, times.lease_s)
        except (OwnershipLost, ShardGone) as exc:
            self._end(held, exc)
        except StoreError as exc:
            held.tenure.renewal_failed(times)
            self._telemetry.renewal_failed(held.tenure.shard.queue, str(exc))
        else:
            held.tenure.renewed(times, started)
            self._telemetry.renewed(asyncio.get_running_loop().time() - started)

    async def _expire(self, held: _Held) -> None:
        held.expire_at = asyncio.get_running_loop().time() + self._settings.reservation_interval_s
        try:
            await self._store.expire_reservations(held.tenure.hold, self._settings.reservation_age_s)
        except (OwnershipLost, ShardGone) as exc:
            self._end(held, exc)
        except StoreError as exc:
            self._telemetry.renewal_failed(held.tenure.shard.queue, str(exc))

    def _end(self, held: _Held, exc: StoreError) -> None:
        """The hold is over: stop its service at once, and once only, so that its lock is released in peace."""
        if held.ended is not None:
            return
        held.ended = self._lost(held.tenure, exc)
        held.task.cancel()

    def _lost(self, tenure: Tenure, exc: StoreError) -> Left:
        """Why a shard is not held any more, and until when to stay away from it.

        A lock that went while it was trusted was broken by somebody who wants the queue: a gateway looks for
        free queues every 30 s, so longer than that is left to it. A lock that ran out is simply taken again.
        """
        if isinstance(exc, ShardGone):
            self._telemetry.gone(tenure.shard.queue)
            return Left(str(exc))
        self._telemetry.lost(tenure.shard.queue, str(exc))
        now = asyncio.get_running_loop().time()
        if isinstance(exc, OwnershipLost) and tenure.term.is_trusted(now):
            return Left(str(exc), not_before=now + EVICTED_PAUSE_S, evicted=True)
        return Left(str(exc))
