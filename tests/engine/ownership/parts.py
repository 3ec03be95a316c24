"""A shard and its lock on a scripted store, for tests that build one part of ownership alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from engine.fakes import FakeStore
from engine.runs import QUICK, a_topic
from remora.engine.catalogue import Catalogue
from remora.engine.lease import Lease, LeaseReleaser
from remora.engine.ownership.coordinator import Coordinator
from remora.engine.ownership.roster import Roster
from remora.engine.ownership.taker import TakenLock
from remora.engine.ownership.worker_info import WorkerInfo
from remora.engine.status import ShardStatus
from remora.metrics import Telemetry
from remora.model.shard import LockToken, Shard
from remora.model.topic import Topic
from remora.policy.ownership.lease import Term
from remora.policy.ownership.not_owned import Schemes
from remora.policy.status.condition import State

ME = "remora/h/b/w1"


def a_store(*queues: str, tells: bool = True) -> FakeStore:
    store = FakeStore(tells=tells)
    for queue in queues:
        store.make(queue)
        store.metadata[queue] = a_topic(queue, to=queue)
    return store


async def taken(store: FakeStore, queue: str) -> TakenLock:
    """A lock that was just acquired."""
    token = await store.locks.acquire(Shard(queue), ME, QUICK.lease_s)
    assert isinstance(token, LockToken)
    return TakenLock(token, Term.granted(QUICK.times, asyncio.get_running_loop().time()))


class ScriptedService:
    """Runs until it is told to finish, or until the test lets it return or fail."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.arrivals = 0
        self.topic: Topic | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        await self.ended

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def arrived(self) -> None:
        self.arrivals += 1

    def status(self) -> ShardStatus:
        return ShardStatus(str(self.lease.shard), "t", "", "", State.DELIVERING, "", 0.0, 0, 0, False, 0.0, ())


def a_roster(
    store: FakeStore,
    tasks: asyncio.TaskGroup,
    telemetry: Telemetry | None = None,
    serve: Callable[[Lease], ScriptedService] = ScriptedService,
) -> Roster:
    telemetry = telemetry or Telemetry()
    return Roster(tasks, LeaseReleaser(store.locks, telemetry, QUICK.release_timeout_s), telemetry, serve)


def service_of(roster: Roster, queue: str) -> ScriptedService:
    service = roster.owned[Shard(queue)].service
    assert isinstance(service, ScriptedService)
    return service


@asynccontextmanager
async def coordinating(
    store: FakeStore, serve: Callable[[Lease], ScriptedService] = ScriptedService
) -> AsyncIterator[Coordinator]:
    """A coordinator at work, which finishes at the end of the block."""
    catalogue = Catalogue(store, Telemetry(), QUICK.discovery_interval_s)
    worker = WorkerInfo(ME, Schemes(frozenset({"kafka"})))
    coordinator = Coordinator(store, catalogue, Telemetry(), QUICK, worker, serve)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(catalogue.run())
        running = tasks.create_task(coordinator.run())
        yield coordinator
        coordinator.end()
        await running
        reading.cancel()
