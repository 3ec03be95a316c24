"""Observes, plans, acts and sleeps: keeps the shards that this worker owns in step with what `policy.assignment` plans.

Loops run side by side, so that a store that hangs in one of them holds up none of the others:

* after each reading of the catalogue, acquire shards and give up those that are not this worker's to own;
* every second or so, read the other workers' rows, and offer and transfer what is beyond this worker's share;
* while shards are expected from other workers, ask for their locks again and again;
* renew what is due; and make idle shards active when entries come.

Taker, renewer, releaser and the members' rows return values. This module acts on them, and the acquirer and the
rebalancer do, which carry out one half of a plan each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from remora.bounded import portions
from remora.config.workers import OwnershipSettings
from remora.engine.catalogue import Catalogue
from remora.engine.lease import Lease, LeaseReleaser, is_lost
from remora.engine.ownership.acquirer import Acquirer
from remora.engine.ownership.idle import IdleShards, idle_status
from remora.engine.ownership.members import MemberRows
from remora.engine.ownership.owned import OwnedShard, ShardService
from remora.engine.ownership.rebalancer import Rebalancer
from remora.engine.ownership.renewer import LeaseRenewer
from remora.engine.ownership.roster import Roster
from remora.engine.ownership.shedder import Shedder
from remora.engine.ownership.situation import Situation
from remora.engine.ownership.taker import LeaseTaker
from remora.engine.ownership.worker_info import WorkerInfo
from remora.engine.status import ShardStatus
from remora.metrics import Telemetry
from remora.model.errors import StoreDamaged
from remora.model.member import Member, WorkerCookie
from remora.model.shard import LockToken, Shard
from remora.policy.ownership.assignment import Acquisitions, concerned, judged, next_try_at, tried
from remora.policy.ownership.membership import Membership
from remora.policy.ownership.not_owned import Deferred, Foreign, NotOwned, Released, Schemes, reason_to_leave
from remora.ports.delivery import DeliveryStore

LEAST_PAUSE_S = 0.05
"""Between two plans: what comes free together is acquired together."""

MEMBERS_WITHIN_S = 3.0
"""How long the workers that start together wait for each other before they acquire anything."""

RECEIVE_EVERY_S, RECEIVE_SELDOM_S = 0.05, 0.5
RECEIVE_PATIENCE = 20
"""Poll interval for the locks of expected shards: 50 ms at first, up to 500 ms; each pause is 1/20 of the time since
the last one came."""


class Coordinator:
    """See the module."""

    def __init__(
        self,
        store: DeliveryStore,
        catalogue: Catalogue,
        telemetry: Telemetry,
        settings: OwnershipSettings,
        worker: WorkerInfo,
        serve: Callable[[Lease], ShardService],
    ) -> None:
        """`serve` makes what runs for an active shard."""
        now, interval_s = asyncio.get_running_loop().time(), settings.discovery_interval_s
        cookie = WorkerCookie.parse(worker.cookie)
        self._store = store
        self._worker = worker
        self._catalogue = catalogue
        self._telemetry = telemetry
        self._tasks = asyncio.TaskGroup()
        releaser = LeaseReleaser(store.locks, telemetry, settings.release_timeout_s)
        self._roster = roster = Roster(self._tasks, releaser, telemetry, serve, catalogue.is_former)
        host = cookie.host if cookie else ""
        members = Membership(worker.cookie, host, steady_since=now, hostname=worker.hostname, release=worker.release)
        self._situation = Situation(roster, catalogue, members, worker, interval_s)
        self._idle = IdleShards(store, telemetry)
        taker = LeaseTaker(store, catalogue, settings, worker)
        self._acquirer = Acquirer(self._situation, taker, self._idle, catalogue, telemetry, interval_s)
        self._renewer = LeaseRenewer(store, telemetry, settings)
        self._rows = MemberRows(store.members, worker.cookie, settings.lease_s)
        self.shedder = Shedder(self._situation, worker.meters, telemetry)
        self._rebalancer = Rebalancer(self._situation, self._rows, telemetry, worker.group_size, self.shedder)
        self._rebalancer.budgets = worker.budgets
        self._finishing = asyncio.Event()

    # -------------------------------------------------------------------------------------- looks

    @property
    def shards(self) -> list[Shard]:
        """The shards that are owned now."""
        return list(self._roster.owned)

    @property
    def leases(self) -> list[Lease]:
        """The leases of these shards."""
        return [each.lease for each in self._roster.owned.values()]

    @property
    def tokens(self) -> list[LockToken]:
        """The lock tokens of these shards."""
        return [each.token for each in self.leases]

    @property
    def not_owned(self) -> Mapping[Shard, NotOwned]:
        """The shards that are not owned, with the reason."""
        return self._roster.observed

    @property
    def others(self) -> Mapping[str, Member]:
        """The rows of the other workers that live, by cookie."""
        return self._members.others

    @property
    def beat_at(self) -> float:
        """When one of its loops last did something."""
        return max(self._acquirer.beat_at, self._renewer.beat_at)

    @property
    def owned(self) -> list[OwnedShard]:
        """The shards that are owned now, each with what runs for it."""
        return list(self._roster.owned.values())

    def status(self, owned: OwnedShard) -> ShardStatus:
        """How an owned shard is doing."""
        if owned.service is not None:
            return owned.service.status()
        return idle_status(owned, self._catalogue.topic(owned.shard), asyncio.get_running_loop().time())

    def active(self) -> list[ShardStatus]:
        """How the owned shards are doing that are not idle."""
        return [each.service.status() for each in self._roster.owned.values() if each.service]

    @property
    def _members(self) -> Membership:
        return self._situation.members

    # ------------------------------------------------------------------------------------- commands

    def notify(self, shards: Iterable[Shard]) -> None:
        """Mark these queues non-empty: idle shards become active."""
        self._roster.notify(shards)

    async def clear(self, is_dead: Callable[[str, bool], bool]) -> None:
        """Break the locks of dead workers, forget them, and acquire what is free then; see Worker.clear."""
        announced = {each.cookie for each in await self._rows.read()}

        def has_ended(cookie: str) -> bool:
            """A worker that has come since the rows were read lives, too."""
            return is_dead(cookie, cookie in announced or cookie in self._members.others)

        freed = await self._store.locks.evict_all(has_ended)
        await self._rows.remove([each for each in announced if has_ended(each)])
        living = [each for each in self._members.others.values() if not has_ended(each.cookie)]
        self._rebalancer.see(living)
        self._situation.reap(freed)

    def drain(self, on: bool) -> None:
        """Own nothing and acquire nothing, or take part again; see Worker.drain."""
        self._situation.members = replace(self._members, draining=on)
        self._situation.poll_soon.set()
        self._situation.plan_soon.set()

    def follow(self, schemes: Schemes) -> None:
        """Own shards of these schemes only, from now on; see Worker.reload."""
        self._worker.schemes = schemes
        for shard, each in list(self._roster.owned.items()):  # those that are idle are given back by the next plan
            topic = self._catalogue.topic(shard) or (each.service.topic if each.service else None)
            if topic is not None and (why := reason_to_leave(topic, schemes)) is not None:
                self._roster.release(shard, Foreign(reason=why))
        self._situation.judge_anew()

    def end(self) -> None:
        """Acquire nothing more and let every shard finish; `run` returns when all locks are released."""
        self._finishing.set()
        self._situation.members = replace(self._members, draining=True, leaving=True)
        self._situation.poll_soon.set()
        self._roster.end_all()

    # --------------------------------------------------------------------------------------- life

    async def run(self) -> None:
        """Own shards until `end`. On cancellation locks are still released, within a few seconds."""
        try:
            async with self._tasks as tasks:
                acquiring = [
                    tasks.create_task(self._acquire(), name="acquire shards"),
                    tasks.create_task(self._receive(), name="receive shards"),
                ]
                keeping = [
                    tasks.create_task(self._rebalancer.run(), name="share shards"),
                    tasks.create_task(self.shedder.run(), name="balance load"),
                    tasks.create_task(self._renew(), name="renew locks"),
                    tasks.create_task(self._listen(), name="listen for arrivals"),
                ]
                await self._finishing.wait()
                for each in acquiring:
                    each.cancel()
                await self._roster.empty()
                for each in keeping:
                    each.cancel()
        finally:
            await self._roster.release_all()

    # ---------------------------------------------------------------------------------- acquiring

    async def _acquire(self) -> None:
        """Plan after every reading of the catalogue, and whenever something may be free."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MEMBERS_WITHIN_S):
                await self._rebalancer.group_complete.wait()
        situation, owned = self._situation, self._roster.owned
        while True:
            situation.plan_soon.clear()
            changed = await situation.review()
            if changed:
                self._rebalancer.aim()
            plan, before = await self._judge(changed=changed), len(owned)
            await self._acquirer.carry_out(plan)
            if len(owned) > before and not self._roster.named:
                self._telemetry.acquired_many(len(owned) - before)
            self._show_numbers()
            situation.reaped.clear()
            await self._next_occasion()

    async def _judge(self, *, changed: bool) -> Acquisitions:
        """Give up what is not this worker's to own, and say what to try; see `policy.assignment.acquisitions`.

        Some shards in each turn of the event loop. What is judged is acted upon in the same turn. To try a shard takes
        longer anyway, so that each is looked at again when its turn comes.
        """
        situation, due, look = self._situation, dict[Shard, None](), dict[Shard, None]()
        async for some in portions(concerned(situation.view(changed=changed))):
            found = judged(situation.view(changed=changed), some)
            for shard in found.activate:
                self._roster.activate(self._roster.owned[shard])
            for shard, outcome in found.release.items():
                self._roster.release(shard, outcome)
            for shard, why in found.leave.items():
                self._acquirer.note(shard, why)
            due |= dict.fromkeys(found.acquire)
            look |= dict.fromkeys(found.look)
        acquire, further = tried(situation.view(), due)
        return Acquisitions(acquire=acquire, further=further, look=list(look))

    def _show_numbers(self) -> None:
        owned, observed = len(self._roster.owned), self._roster.observed.values()
        elsewhere = sum(
            (each.holder is not None or isinstance(each, Deferred)) and not isinstance(each, Released)
            for each in observed
        )
        self._telemetry.owned(owned)
        self._telemetry.eligible(owned + elsewhere)

    async def _next_occasion(self) -> None:
        """Wait for a reading of the catalogue, until a plan is asked for, or until something may be free."""
        await asyncio.sleep(LEAST_PAUSE_S)
        if self._situation.has_news:
            return
        view = self._situation.view()
        within_s = max(0.0, next_try_at(view) - view.now)
        async with asyncio.TaskGroup() as tasks:
            ends = [
                tasks.create_task(self._catalogue.next_reading(), name="next reading"),
                tasks.create_task(self._situation.plan_soon.wait(), name="plan soon"),
            ]
            await asyncio.wait(ends, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            for each in ends:
                each.cancel()

    async def _receive(self) -> None:
        """Ask for the locks of shards that other workers are about to transfer to this one.

        Less and less often where none comes: the owner may have been frozen, or wait for an endpoint that hangs.
        """
        now = asyncio.get_running_loop().time
        while True:
            await self._rebalancer.expected.wait()
            self._rebalancer.expected.clear()
            came_at, missing = now(), 0
            while expected := [each for each in self._members.expects if each not in self._roster.owned]:
                if len(expected) != missing:
                    came_at, missing = now(), len(expected)
                await self._acquirer.receive(expected)
                pause_s = (now() - came_at) / RECEIVE_PATIENCE
                await asyncio.sleep(min(RECEIVE_SELDOM_S, max(RECEIVE_EVERY_S, pause_s)))

    # ------------------------------------------------------------------------------------ keeping

    async def _renew(self) -> None:
        """Look for what is due again and again, and never wait for the store itself."""
        now = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as tasks:
            while True:
                if self._renewer.look(now()):
                    kept = [each.lease for each in self._roster.owned.values() if not each.is_releasing]
                    due = self._renewer.due(kept, now())
                    if due.renew:
                        tasks.create_task(self._renew_all(due.renew), name="renew locks")
                    if due.expire:
                        tasks.create_task(self._expire_all(due.expire), name="expire reservations")
                await asyncio.sleep(self._renewer.pause_s)

    async def _renew_all(self, leases: Sequence[Lease]) -> None:
        for lease, why in await self._renewer.renew(leases):
            owned = self._roster.owned.get(lease.shard)
            if is_lost(why):
                self._roster.lose(lease, why)
            elif isinstance(why, StoreDamaged) and owned is not None:
                self._roster.activate(owned)  # its dispatcher meets the damage, and says so

    async def _expire_all(self, leases: Sequence[Lease]) -> None:
        for lease, why in await self._renewer.expire(leases):
            self._roster.lose(lease, why)

    async def _listen(self) -> None:
        """Have idle shards become active when entries come, and others look sooner; poll all idle shards when the store
        could not notify."""
        while True:
            arrived = await self._idle.listen()
            if arrived is None:
                arrived = await self._idle.poll([each.shard for each in self._roster.idle])
            self.notify(arrived)
