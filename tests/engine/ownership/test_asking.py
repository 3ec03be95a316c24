"""What happens while a worker waits for a lock that it has asked for, and while dead workers' locks are broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from devkit.clock import in_virtual_time
from engine.fakes import FakeStore
from engine.ownership.parts import ME, ScriptedService, a_store
from engine.runs import QUICK, until
from remora.engine.catalogue import Catalogue
from remora.engine.lease import Lease
from remora.engine.ownership.coordinator import Coordinator
from remora.engine.ownership.worker_info import WorkerInfo
from remora.metrics import Telemetry
from remora.model.member import Member
from remora.model.shard import Shard
from remora.policy.eligible import Schemes

T, OTHER = Shard("t"), "remora/h/b/w2"


@asynccontextmanager
async def coordinating(store: FakeStore, served: list[Lease] | None = None) -> AsyncIterator[Coordinator]:
    """A coordinator at work; what it serves is added to `served`."""
    catalogue = Catalogue(store, Telemetry(), QUICK.discovery_interval_s)

    def serve(lease: Lease) -> ScriptedService:
        if served is not None:
            served.append(lease)
        return ScriptedService(lease)

    worker = WorkerInfo(ME, Schemes(frozenset({"kafka"})))
    coordinator = Coordinator(store, catalogue, Telemetry(), QUICK, worker, serve)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(catalogue.run())
        running = tasks.create_task(coordinator.run())
        yield coordinator
        coordinator.finish()
        await running
        reading.cancel()


@in_virtual_time
async def test_a_lock_that_comes_while_a_drain_begins_is_given_back_unserved() -> None:
    """A host that drains keeps no shard for which it had asked before, and delivers nothing of it."""
    store, served = a_store("t", tells=False), list[Lease]()
    asked = asyncio.Event()

    def before(call: str) -> float:
        if call != "acquire":
            return 0
        asked.set()
        return 5

    store.before = before
    async with coordinating(store, served) as coordinator:
        await asked.wait()
        coordinator.drain(True)
        await until(lambda: store.calls["release"])

        assert store.queues["t"].holder is None
        assert coordinator.shards == []
    assert served == []


@in_virtual_time
async def test_a_lock_is_asked_for_once_at_a_time() -> None:
    """A shard that another worker offers while this one already asks for its lock is asked for no second time."""
    store = a_store("t")
    asking, most = 0, 0

    def before(call: str) -> float:
        nonlocal asking, most
        if call == "acquire":
            asking, most = asking + 1, max(most, asking + 1)
        return 5 if call == "acquire" else 0

    def after(call: str) -> None:
        nonlocal asking
        asking -= call == "acquire"

    store.before, store.after = before, after
    async with coordinating(store) as coordinator:
        await until(lambda: asking)
        first = asyncio.create_task(coordinator._acquirer.receive([T]))
        second = asyncio.create_task(coordinator._acquirer.receive([T]))
        await asyncio.wait([first, second])
        await until(lambda: coordinator.shards)

    assert most == 1


@in_virtual_time
async def test_a_worker_that_comes_while_locks_are_broken_keeps_its_own() -> None:
    """A newcomer's row appears behind the reading of the rows: its locks are not those of a dead worker."""
    store = a_store("t")
    store.steal("t", OTHER, 1e6)

    def before(call: str) -> float:
        if call == "evict_all":  # the rows have been read
            store.announced[OTHER] = (Member(OTHER, "h", 1), 1e6)
            return 10
        return 0

    store.before = before
    async with coordinating(store) as coordinator:
        await until(lambda: store.calls["acquire"])
        await coordinator.clear(lambda cookie, is_live: cookie != ME and not is_live)

        assert OTHER in coordinator.others
        holder = store.queues["t"].holder
        assert holder is not None
        assert holder.cookie == OTHER
