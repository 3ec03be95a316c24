"""Which shards this worker holds: takes them, keeps them, gives them back.

Every few seconds the catalogue is compared with what is held. A shard that nobody holds is locked (`taking`) and
served; each lock is renewed well before trust in it ends (`keeping`). Where the store tells of new entries, shards with
an empty queue are only held (`dormant`). Whatever ends a shard's service, its lock is released only after the
dispatcher has returned, and the shard is locked again only after that: no operation of an earlier hold can be
under way in a later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from remora.config import OwnershipSettings
from remora.engine.catalogue import Catalogue
from remora.engine.dispatcher import NotOurs, ShardStatus
from remora.engine.dormant import Dormant, dormant_status
from remora.engine.held import Held, Left, Service
from remora.engine.keeping import Keeper
from remora.engine.lease import Lease
from remora.engine.spread import Spread
from remora.engine.taking import RELEASED, Taker
from remora.metrics import Telemetry
from remora.model.errors import OwnershipLost, ShardGone, StoreError, without_frames
from remora.model.shard import LockToken, Shard
from remora.policy.eligible import reason_to_leave
from remora.policy.lease import Term
from remora.ports.delivery import DeliveryStore

CRASH_PAUSE_S = 30.0

EVICTED_PAUSE_S = 45.0
BROKEN = "its lock was broken, so it is not held here for a while"

CANCELLED_S = 3.0
"""What a worker that is cut short still spends on giving its locks back."""

LEAST_PAUSE_S = 0.05
"""Between two looks at what may be taken: what comes free together is taken together."""

RECEIVE_EVERY_S, RECEIVE_SELDOM_S = 0.05, 0.5
RECEIVE_PATIENCE = 20
"""How often the lock of a shard is asked for that another worker is about to give to this one, at first and in the end;
between these after a pause that is this part of the time for which nothing has come."""

HANDED_PAUSE_S = 3.0
"""How long a shard is left to whom it was handed before this worker would take it again."""

RELEASES_AT_ONCE = 256
RELEASES_PER_SECOND = 1000.0
"""How many locks are given back side by side, and what a store manages at least when there are very many."""

MOST_NAMED = 100
"""Queues that are named in the log one by one when they are taken and released."""


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
        serve: Callable[[Lease], Service],
        fellows: int = 1,
    ) -> None:
        """`fellows` is how many workers start together, this one included."""
        self._store = store
        self._catalogue = catalogue
        self._telemetry = telemetry
        self._settings = settings
        self._schemes = schemes
        self._serve = serve
        self._held: dict[Shard, Held] = {}
        self._left: dict[Shard, Left] = {}
        self._awake = 0
        self._seen: tuple[object, object, object] = (None, None, None)
        self._anew = True
        self._present: Mapping[Shard, int] = {}
        self._leaving = asyncio.Semaphore(RELEASES_AT_ONCE)
        self._finishing = asyncio.Event()
        self._occasion = asyncio.Event()
        self._cleared: set[Shard] = set()
        self._tasks = asyncio.TaskGroup()
        self._dormant = Dormant(store, telemetry, self._held, self._wake, self._count_awake)
        self._keeper = Keeper(store, telemetry, settings, self._held, self._lose, self._wake)
        self._spread = Spread(
            store.members,
            telemetry,
            cookie,
            settings.lease_s,
            fellows,
            self._held,
            eligible=self._eligible,
            wants=self._wants,
            hand_over=self._hand_over,
            changed=self._occasion.set,
        )
        self._taker = Taker(
            store,
            catalogue,
            telemetry,
            settings,
            cookie,
            schemes,
            self._held,
            self._left,
            self._dormant,
            self._spread,
            self._begin,
        )

    # -------------------------------------------------------------------------------------- looks

    @property
    def shards(self) -> list[Shard]:
        """The shards that are held now."""
        return list(self._held)

    @property
    def tokens(self) -> list[LockToken]:
        """The holds of these shards."""
        return [each.lease.token for each in self._held.values()]

    @property
    def left(self) -> dict[Shard, Left]:
        """The shards that are not held, with the reason."""
        return self._left

    @property
    def others(self) -> Collection[str]:
        """The cookies of the other workers that live."""
        return self._spread.others.keys()

    @property
    def beat_at(self) -> float:
        """When one of its loops last did something."""
        return max(self._taker.beat_at, self._keeper.beat_at)

    def statuses(self) -> list[ShardStatus]:
        """How each held shard is doing."""
        now, topic = asyncio.get_running_loop().time(), self._catalogue.topic
        return [
            each.service.status() if each.service else dormant_status(each, topic(shard), now)
            for shard, each in self._held.items()
        ]

    def served(self) -> list[ShardStatus]:
        """How the held shards are doing that are not dormant."""
        return [each.service.status() for each in self._held.values() if each.service]

    def told(self, shards: Iterable[Shard]) -> None:
        """These queues have entries: whoever slept through their arrival wakes up."""
        self._dormant.told(shards)

    # ------------------------------------------------------------------------------------- commands

    async def clear(self, is_dead: Callable[[str, bool], bool]) -> None:
        """Break the locks of dead workers, forget them, and take what is free then; see Worker.clear."""
        members = {each.cookie for each in await self._store.members.live()}

        def has_ended(cookie: str) -> bool:
            """Asked of one lock after the other for as long as that takes: whoever has come meanwhile lives, too."""
            return is_dead(cookie, cookie in members or cookie in self._spread.others)

        freed = await self._store.locks.evict_all(has_ended)
        for cookie in filter(has_ended, members):
            await self._store.members.withdraw(cookie)
        self._spread.forget(has_ended)
        for shard in freed:
            self._left.pop(shard, None)
            self._cleared.add(shard)
        self._anew = True
        self._occasion.set()

    def drain(self, on: bool) -> None:
        """Hold nothing and take nothing, or take part again; see Worker.drain."""
        self._spread.drain(on)
        self._occasion.set()

    # --------------------------------------------------------------------------------------- life

    def finish(self) -> None:
        """Take nothing more and let every shard finish; `run` returns when all locks are released."""
        self._finishing.set()
        self._spread.leave()
        for each in self._held.values():
            if each.service is not None:
                each.service.finish()

    async def run(self) -> None:
        """Own shards until `finish`. On cancellation locks are still released, within a few seconds."""
        async with self._tasks:
            taking = self._tasks.create_task(self._take_on(), name="take shards")
            receiving = self._tasks.create_task(self._receive(), name="receive shards")
            keepers = [
                self._tasks.create_task(self._spread.run(), name="spread shards"),
                self._tasks.create_task(self._keeper.run(), name="keep locks"),
                self._tasks.create_task(self._mind_dormant(), name="mind dormant shards"),
            ]
            await self._finishing.wait()
            taking.cancel()
            receiving.cancel()
            for each in [held for held in self._held.values() if held.is_dormant]:
                self._end(each, Left("given back"))
            while tasks := [each.task for each in self._held.values() if each.task]:
                await asyncio.wait(tasks)
            for keeper in keepers:
                keeper.cancel()

    async def _mind_dormant(self) -> None:
        """Wake dormant shards when entries come; when cancelled, give their locks back as a service would."""
        try:
            await self._dormant.hear()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._finishing.set()  # the next wave finds nobody to wake
            releases = [
                asyncio.ensure_future(self._release(each.lease)) for each in self._held.values() if not each.begun
            ]
            if releases:
                await asyncio.wait(releases, timeout=CANCELLED_S)
            raise

    async def _take_on(self) -> None:
        """Compare the catalogue with what is held, after every reading of it and whenever something may be free."""
        await self._spread.wait_for_fellows()
        while True:
            self._occasion.clear()
            changed = self._anew or self._has_news
            self._seen, self._anew = self._reading, False
            if changed:
                self._present = {shard: place for place, shard in enumerate(self._catalogue.shards)}
                self._review_dormant()
                self._give_released_back()
                self._spread.aim()
            for shard in [s for s in self._left if s not in self._present]:
                del self._left[shard]
            before = len(self._held)
            if not self._spread.draining:
                await self._taker.take(self._present, changed=changed, named=self._are_named)
            if len(self._held) > before and not self._are_named:
                self._telemetry.acquired_many(len(self._held) - before)
            self._telemetry.owned(len(self._held))
            elsewhere = sum(
                (left.holder is not None or left.waiting) and not left.released for left in self._left.values()
            )
            self._telemetry.eligible(len(self._held) + elsewhere)
            self._cleared.clear()
            await self._next_occasion()

    @property
    def _reading(self) -> tuple[object, object, object]:
        """What the catalogue says now."""
        return self._catalogue.shards, self._catalogue.topics, self._catalogue.released

    @property
    def _has_news(self) -> bool:
        """Whether the catalogue says something else than it did at the last comparison."""
        return any(new is not old for new, old in zip(self._reading, self._seen, strict=True))

    async def _next_occasion(self) -> None:
        """Wait for a reading of the catalogue, until somebody asks for a look, or until something may be free."""
        await asyncio.sleep(LEAST_PAUSE_S)
        if self._has_news:
            return
        within_s = max(0.0, self._taker.next_at - asyncio.get_running_loop().time())
        async with asyncio.TaskGroup() as tasks:
            ends = [
                tasks.create_task(self._catalogue.next_reading(), name="next reading"),
                tasks.create_task(self._occasion.wait(), name="occasion"),
            ]
            await asyncio.wait(ends, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            for each in ends:
                each.cancel()

    # ------------------------------------------------------------------------------------- sharing

    def _eligible(self) -> int:
        """How many shards the workers share, as far as is known here."""
        now = asyncio.get_running_loop().time()
        return len(self._present) - sum(each.is_apart(now) for each in self._left.values())

    def _wants(self, shard: Shard) -> bool:
        """Whether this worker would take a shard that is offered to it."""
        left = self._left.get(shard)
        if left is None:
            return shard in self._present
        is_out = left.settled or left.released
        return left.waiting or (not is_out and left.not_before <= asyncio.get_running_loop().time())

    async def _receive(self) -> None:
        """Ask for the locks of shards that others are about to give to this worker, again and again.

        Less and less often where nothing comes: the owner may have been frozen, or wait for an endpoint that hangs.
        """
        now = asyncio.get_running_loop().time
        while True:
            await self._spread.expected.wait()
            self._spread.expected.clear()
            came_at, missing = now(), 0
            while expected := [each for each in self._spread.expects if each not in self._held]:
                if len(expected) != missing:
                    came_at, missing = now(), len(expected)
                await self._taker.receive(expected)
                pause_s = (now() - came_at) / RECEIVE_PATIENCE
                await asyncio.sleep(min(RECEIVE_SELDOM_S, max(RECEIVE_EVERY_S, pause_s)))

    def _hand_over(self, shard: Shard, to: str) -> None:
        """Give a shard back when what is in flight is done, for one other worker or, without a name, for anybody."""
        held = self._held.get(shard)
        if held is None or held.is_leaving:
            return
        now = asyncio.get_running_loop().time()
        left = Left("given back")
        if to:
            left = Left(f"handed to {to}", not_before=now + HANDED_PAUSE_S, waiting=True, handed=True)
        self._part_with(held, left)

    def _part_with(self, held: Held, left: Left) -> None:
        """Give a held shard back when what is in flight is done."""
        if held.service is None:
            self._end(held, left)
        else:
            held.parting = left
            held.service.finish()

    def _give_released_back(self) -> None:
        """Leave what was released to radosgw."""
        for shard in self._catalogue.released & self._held.keys():
            if not (held := self._held[shard]).is_leaving:
                self._part_with(held, Left(RELEASED, released=True))

    # ------------------------------------------------------------------------------------ serving

    def _begin(self, token: LockToken, term: Term, taken_over: bool) -> None:
        now = asyncio.get_running_loop().time()
        lease = Lease(token, term, self._count_awake)
        held = Held(lease, expire_at=now + self._settings.reservation_interval_s, since=now)
        self._held[token.shard] = held
        self._telemetry.acquired(token.shard.queue, taken_over, named=self._are_named)
        self._count_move(token.shard, taken_over)
        if self._spread.draining:
            self._end(held, Left("given back"))
        elif not self._dormant.is_possible:
            self._wake(held)

    def _count_move(self, shard: Shard, taken_over: bool) -> None:
        if shard in self._spread.expects:
            self._telemetry.moved("planned")
            self._spread.look_soon()
        elif shard in self._cleared:
            self._telemetry.moved("cleared")
        elif taken_over:
            self._telemetry.moved("stale")

    def _count_awake(self) -> int:
        return self._awake

    @property
    def _are_named(self) -> bool:
        return len(self._present) <= MOST_NAMED

    def _wake(self, held: Held) -> None:
        """Serve a held shard that is dormant."""
        if self._finishing.is_set() or held.ended is not None:
            return
        held.service = service = self._serve(held.lease)
        held.task = self._tasks.create_task(self._serve_shard(held, service), name=f"shard {held.lease.shard}")
        self._awake += 1

    async def _serve_shard(self, held: Held, service: Service) -> None:
        """Run the dispatcher of one shard; then the shard is dormant, or it is cleared up after, whatever ended it."""
        held.begun = True
        left: Left | None = Left("given back")
        try:
            if held.ended is None:
                await service.run()
            left = held.parting
            if self._finishing.is_set() or held.ended is not None:
                left = Left("given back")
        except (OwnershipLost, ShardGone) as exc:
            left = self._lost(held.lease, without_frames(exc))
        except NotOurs as exc:
            left = Left(str(without_frames(exc)))
        except Exception as exc:  # anything at all: a defect costs its shard only
            self._telemetry.crashed(held.lease.shard.queue)
            without_frames(exc)
            again_at = asyncio.get_running_loop().time() + CRASH_PAUSE_S
            left = Left("stopped by a defect, see the log", not_before=again_at)
        finally:
            self._awake -= 1
            if left is None:
                held.rest(asyncio.get_running_loop().time())
            else:
                with self._parting(held, left):
                    await self._let_go(held.lease)

    def _review_dormant(self) -> None:
        """Look at dormant shards after the catalogue changed: one may not be ours any more, or be gone."""
        for shard, held in list(self._held.items()):
            if not held.is_dormant:
                continue
            topic = self._catalogue.topic(shard)
            if shard not in self._present:
                self._wake(held)  # only the queue itself says whether it is gone, or the registry is wrong
            elif topic is not None and (why := reason_to_leave(topic, self._schemes)):
                self._end(held, Left(why))

    # ------------------------------------------------------------------------------------- leaving

    async def _leave(self, held: Held, left: Left) -> None:
        """Give a shard back that has no service."""
        held.begun = True
        with self._parting(held, left):
            await self._let_go(held.lease)

    @contextmanager
    def _parting(self, held: Held, left: Left) -> Iterator[None]:
        """A shard is given back whose service has ended; only then may it be taken again."""
        shard, held.ended = held.lease.shard, held.ended or left
        try:
            yield
        except Exception as exc:  # as in `_serve_shard`; the lease runs out by itself
            self._telemetry.crashed(shard.queue)
            without_frames(exc)
        finally:
            del self._held[shard]
            self._left[shard] = held.ended
            self._spread.released(shard)

    async def _let_go(self, lease: Lease) -> None:
        """Release a lock, shielded and within a few seconds; if that fails the lease runs out by itself."""
        release = asyncio.ensure_future(self._release(lease))
        try:
            await asyncio.shield(release)
        except asyncio.CancelledError:
            await asyncio.wait([release], timeout=CANCELLED_S)
            raise

    async def _release(self, lease: Lease) -> None:
        try:
            for_all_s = self._settings.release_timeout_s + len(self._held) / RELEASES_PER_SECOND
            async with asyncio.timeout(for_all_s), self._leaving:
                await self._store.locks.release(lease.token)
        except (StoreError, TimeoutError) as exc:
            self._telemetry.release_failed(lease.shard.queue, str(exc))
        else:
            self._telemetry.released(lease.shard.queue, named=self._are_named)

    def _end(self, held: Held, left: Left) -> None:
        """The hold is over: stop its service at once, and once only, so that its lock is released in peace."""
        if held.ended is not None:
            return
        held.ended = left
        if held.task is None:
            held.task = self._tasks.create_task(self._leave(held, left), name=f"leave {held.lease.shard}")
        elif held.begun:
            held.task.cancel()

    def _lose(self, held: Held, exc: StoreError) -> None:
        """The store refused to keep a hold."""
        if held.ended is None:
            self._end(held, self._lost(held.lease, exc))

    def _lost(self, lease: Lease, exc: StoreError) -> Left:
        """Why a shard is not held any more, and until when to stay away from it.

        A lock that went while it was trusted was broken by somebody who wants the queue: a gateway looks for
        free queues every 30 s, so longer than that is left to it. A lock that ran out is simply taken again.
        """
        if isinstance(exc, ShardGone):
            self._telemetry.gone(lease.shard.queue)
            return Left(str(exc))
        self._telemetry.lost(lease.shard.queue, str(exc))
        now = asyncio.get_running_loop().time()
        if isinstance(exc, OwnershipLost) and lease.term.is_trusted(now):
            return Left(BROKEN, not_before=now + EVICTED_PAUSE_S, evicted=True)
        return Left(str(exc))
