"""Traffic shaping of what a host lists, commits and removes in its store."""

from __future__ import annotations

import asyncio

from devkit.clock import in_virtual_time
from engine.runs import drained
from engine.shaped import BOTH, MUCH, Shaped
from remora.config import MeterSettings, MetersSettings, ScopeSettings, ShapingSettings
from remora.engine.admission.store_traffic import WorkerTraffic
from remora.model.topic import Delivery
from remora.model.traffic import Priority
from support.credit import a_host, a_meter, shaping


def of_store(**meters: MeterSettings) -> ShapingSettings:
    """A scope of the host's traffic with its store, with these meters."""
    return shaping(ScopeSettings(name="osds", of="store", enabled=True, meters=MetersSettings(**meters)))


@BOTH
@in_virtual_time
async def test_listings_and_removals_of_a_backlog_keep_the_rate_of_the_store(mode: Delivery) -> None:
    """What is listed takes credit of the store's scope in the shard's class, and as much again when it is removed, so
    that a backlog is delivered at half of its rate; all of it arrives in order."""
    low = a_meter(100_000, 10_000, 100_000)
    it = Shaped(of_store(max=MUCH, client_high=MUCH, client_normal=MUCH, client_low=low), mode)
    took_s, nbytes = await it.backlog_took()

    assert it.endpoint.events() == [b"id-%d" % i for i in range(600)]
    assert nbytes / 50_000 * 0.6 <= took_s <= nbytes / 50_000 * 1.4
    granted = sum(each.granted_bytes for each in it.gate.flows if each.group == "osds")
    listed = sum(len(each.body) for each in it.sent())
    assert granted > 1.5 * listed


@BOTH
@in_virtual_time
async def test_commits_take_the_credit_of_listings_and_never_wait(mode: Delivery) -> None:
    """Commits have the highest priority: while they take all that is to spare, a backlog is not listed; it goes on when
    they end."""
    spare = a_meter(100_000, 20_000)
    it = Shaped(of_store(max=a_meter(0, 20_000), client_low=a_meter(0, 20_000), priority_queue=spare), mode)
    it.make("t", 100, padding=1_000)
    async with it.running():
        it.gate.use_store(Priority.MAX, 2_000_000)
        await asyncio.sleep(10)
        began = len(it.endpoint.arrived)
        await asyncio.sleep(8)
        assert len(it.endpoint.arrived) == began
        assert it.gate.waiting_by_scope() == {("osds", "client_low"): 1}
        await drained(it.store)

    assert it.endpoint.events() == [b"id-%d" % i for i in range(100)]
    assert it.metric("remora_shaping_granted_bytes_total", scope="osds", priority="max") == 2_000_000


@in_virtual_time
async def test_looks_take_the_credit_of_idle_and_make_no_debt() -> None:
    """However many queues a worker looks at, its looks take what there is and one look more, so that what asks for idle
    credit has it soon after; and no look waits."""
    it = Shaped(of_store(max=MUCH, idle=a_meter(100_000, 50_000)), Delivery.AT_LEAST_ONCE)
    traffic = WorkerTraffic(it.gate)
    async with it.running():
        await asyncio.sleep(1)
        for _ in range(100):
            traffic.looked(20_000)
            await traffic.walked(20_000)
        assert it.host.level(0, Priority.IDLE, "osds") == -10_000
        await asyncio.sleep(0.2)
        assert it.gate.use_store(Priority.IDLE, 0)
        await traffic.redriven(7)
        traffic.committed(9)

    granted = {each.priority: each.granted_bytes for each in it.gate.flows if each.group == "osds"}
    assert granted == {"idle": 60_000, "background": 7, "max": 9}


@BOTH
@in_virtual_time
async def test_without_a_scope_of_the_store_its_traffic_costs_nothing(mode: Delivery) -> None:
    """Commits and removals take no credit of scopes of other kinds."""
    it = Shaped(shaping(a_host(max=MUCH, client_high=MUCH, client_normal=MUCH, client_low=MUCH)), mode)
    it.make("t", 50)
    async with it.running():
        it.gate.use_store(Priority.MAX, 2_000_000)
        await drained(it.store)

    assert sum(each.granted_bytes for each in it.gate.flows) == sum(len(each.body) for each in it.sent())
