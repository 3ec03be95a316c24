"""What happens while a worker waits for a lock that it has asked for, and while dead workers' locks are broken."""

from __future__ import annotations

import asyncio

import pytest

from devkit.clock import in_virtual_time
from engine.ownership.parts import ME, ScriptedService, a_store, coordinating
from engine.runs import until
from remora.engine.lease import Lease
from remora.model.member import Member
from remora.model.shard import Shard

T, OTHER = Shard("t"), "remora/h/b/w2"


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

    def serve(lease: Lease) -> ScriptedService:
        served.append(lease)
        return ScriptedService(lease)

    store.before = before
    async with coordinating(store, serve) as coordinator:
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


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize(("answers_after", "is_free"), [(1.0, True), (60.0, False)])
@in_virtual_time
async def test_a_lock_that_is_granted_as_a_worker_ends_is_given_back(
    answers_after: float, is_free: bool, is_cancelled: bool
) -> None:
    """A worker that ends, or is cancelled, while the store is about to say that it has a lock leaves the shard to
    others at once, and not when the lease is over; a store that does not answer keeps no worker from ending."""
    store, granted = a_store("t", tells=False), asyncio.Event()

    def after(call: str) -> float:
        if call != "acquire":
            return 0
        granted.set()
        return answers_after

    store.after = after

    async def work() -> None:
        async with coordinating(store):
            await granted.wait()
            if is_cancelled:
                await asyncio.Event().wait()

    working = asyncio.ensure_future(work())
    await granted.wait()
    began = asyncio.get_running_loop().time()
    if is_cancelled:
        working.cancel()
    await asyncio.wait([working])

    assert (store.queues["t"].holder is None) is is_free
    assert asyncio.get_running_loop().time() - began < 5
