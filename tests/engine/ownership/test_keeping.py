"""What a worker does with locks while it starts and while it ends."""

from __future__ import annotations

import asyncio

from devkit.clock import in_virtual_time
from engine.fakes import FakeEndpoint
from engine.ownership.parts import a_store
from engine.runs import QUICK, a_worker, running, until


@in_virtual_time
async def test_a_lock_that_is_being_released_is_not_renewed() -> None:
    """However long its release takes: a renewal that arrives after it would take the lock away from the next owner."""
    store = a_store("t")
    renewed: list[int] = []

    def before(call: str) -> float | None:
        if call == "release":
            renewed.append(store.calls["renew"])
            return 3 * QUICK.renew_interval_s
        return None

    store.before = before
    async with running(worker := a_worker(store, FakeEndpoint())):
        await until(lambda: worker.shards)
        await asyncio.sleep(3 * QUICK.renew_interval_s)

    assert renewed
    assert renewed[0] >= 2
    assert store.calls["renew"] == renewed[0]


@in_virtual_time
async def test_workers_that_start_together_wait_for_each_other() -> None:
    """The first of them acquires nothing at once: it would have to give most of it to the others."""
    store = a_store("t")
    async with running(worker := a_worker(store, FakeEndpoint(), group_size=2)):
        await asyncio.sleep(0.5)
        assert not store.calls["acquire"]
        await until(lambda: worker.shards, within_s=60)
