"""Traffic shaping in numbers: what a rate gives, what is charged to the last byte, and what needs no credit."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import Fate
from engine.runs import a_topic, drained, until
from engine.shaped import BOTH, MUCH, NOTHING, Shaped, of_backlogs
from remora.config import MetersSettings, ScopeSettings
from remora.model.errors import EndpointUnavailable
from remora.model.topic import Delivery
from remora.policy.delivery.retry import PROBE_ENTRIES
from support.credit import a_host, a_meter, shaping


def listed(it: Shaped) -> int:
    """How many entries were listed so far."""
    return int(it.metric("remora_listed_entries_total", topic="t"))


def nbytes(it: Shaped, topic: str) -> int:
    """What has arrived of a topic."""
    return sum(len(record.body) for to, record in it.endpoint.arrived if to == topic)


@BOTH
@in_virtual_time
async def test_listings_under_way_need_no_credit_to_be_finished(mode: Delivery) -> None:
    """A shard with listings at a slow endpoint waits for credit that never comes. Finished, it delivers and removes all
    of them, gives its lock back, and reads nothing more."""
    it = Shaped(of_backlogs(guaranteed=0, burst=10**9), mode, list_entries=10, transaction_records=10)
    it.endpoint.fate = lambda *_: Fate(wait_s=5)
    it.make("t", 100)
    async with it.running():
        await until(lambda: it.gate.waiting)
        begun = it.store.calls["read"]
        it.give(20 * len(it.store.queues["t"].entries[0]))
        await until(lambda: it.gate.waiting and listed(it) >= 10, within_s=60)
        reads, read = it.store.calls["read"], listed(it)

    assert reads - begun >= 2
    assert 10 <= read < 100
    assert listed(it) == read == len(it.endpoint.arrived)
    assert it.store.queues["t"].waiting == 100 - read
    assert it.store.queues["t"].holder is None


@in_virtual_time
async def test_a_transaction_waits_neither_for_credit_nor_for_its_time() -> None:
    """Where an open transaction finds no credit for more, it is committed with what it has, of all its listings."""
    it = Shaped(
        of_backlogs(guaranteed=0, burst=10**9),
        Delivery.EXACTLY_ONCE,
        list_entries=64,
        transaction_time_s=3_600.0,
        transaction_records=300,
    )
    it.make("t", 600, padding=5_000)
    async with it.running():
        await until(lambda: it.gate.waiting)
        begun = it.store.calls["read"]
        it.give(3 * 64 * len(it.store.queues["t"].entries[0]))
        await until(lambda: it.endpoint.transactions and it.gate.waiting, within_s=1)

        assert it.store.calls["read"] - begun >= 2
        assert it.endpoint.transactions == [listed(it)]
        assert 64 < it.endpoint.transactions[0] < 300


@in_virtual_time
async def test_a_failure_costs_what_was_handed_over() -> None:
    """Of a listing whose first parcel fails the others' credit comes back, and the next session has that of a probe."""
    it = Shaped(
        shaping(a_host(client_normal=a_meter(0, 10**9), client_low=a_meter(0, 10**9))),
        Delivery.AT_LEAST_ONCE,
        list_entries=100,
        retry_base_s=60.0,
        retry_cap_s=60.0,
    )
    it.make("t", 100, padding=1_000)
    it.endpoint.batch_records = 30
    it.endpoint.fate = lambda *_: Fate(5, 0, EndpointUnavailable("broken"))

    def spent() -> int:
        return 2 * 10**6 - it.level("client_normal") - it.level("client_low")

    async with it.running():
        await until(lambda: it.gate.waiting)
        it.give(10**6, "client_normal", "client_low")
        await until(lambda: it.endpoint.pushes)
        size = spent() // 100
        await until(lambda: it.worker.shards[0].failures == 1)
        handed = spent()
        await until(lambda: it.endpoint.pushes == 2)
        probe = spent() - handed

    assert handed == pytest.approx(30 * size, rel=0.05)
    assert probe == pytest.approx(PROBE_ENTRIES * size, rel=0.05)


@BOTH
@in_virtual_time
async def test_what_is_sent_counts_and_not_what_was_expected(mode: Delivery) -> None:
    """However many entries a listing might have brought, the bytes that went are granted, in a scope that is enabled;
    in one that is not they have passed."""
    it = Shaped(shaping(a_host(client_normal=MUCH, client_low=MUCH)), mode)
    it.make("t", 3)

    def counted(what: str) -> float:
        both = ("client_normal", "client_low")
        return sum(it.metric(f"remora_shaping_{what}_bytes_total", scope="uplink", priority=each) for each in both)

    async with it.running():
        await drained(it.store)
        first = nbytes(it, "t")
        assert (counted("granted"), counted("passed")) == (first, 0)
        it.configure(shaping(replace(a_host(client_normal=MUCH, client_low=MUCH), enabled=False)))
        it.store.queues["t"].append(raw_entry("k", 3))  # by what was granted before, maybe
        await drained(it.store)
        counts, sent = (counted("granted"), counted("passed")), nbytes(it, "t")
        assert sum(counts) == sent
        it.store.queues["t"].append(raw_entry("k", 4))
        await drained(it.store)

    assert (counted("granted"), counted("passed")) == (counts[0], counts[1] + nbytes(it, "t") - sent)


@pytest.mark.parametrize("workers", [1, 2, 4])
@BOTH
@in_virtual_time
async def test_one_busy_worker_has_the_whole_rate(mode: Delivery, workers: int) -> None:
    """All of a backlog is behind one of eleven shards, at one of the workers: it is sent at the rate of the host."""
    it = Shaped(of_backlogs(1_000_000, 100_000, 1_000_000), mode, workers, list_entries=10, transaction_records=10)
    for shard in range(10):
        it.make(f"empty-{shard}", 0)
    it.make("t", 1_200, padding=10_000)
    async with it.running():
        await until(lambda: it.endpoint.arrived)
        before = nbytes(it, "t")
        await asyncio.sleep(10)
        sent = nbytes(it, "t") - before

    listing = 10 * len(it.sent()[0].body)
    assert 9_500_000 <= sent <= 10_100_000 + 2 * listing


@BOTH
@in_virtual_time
async def test_live_entries_wait_for_no_backlog_within_a_host(mode: Delivery) -> None:
    """Beside a backlog, live entries at a fifth of what is guaranteed to them are granted within two ticks, and the
    backlog has all the rest of the host's limit."""
    limit, live = 500_000, 10_000
    meters = {
        "max": a_meter(0, 10_000),
        "client_normal": a_meter(50_000, 50_000),
        "client_low": a_meter(50_000, 50_000),
        "priority_queue": a_meter(limit - 100_000, 50_000),
    }
    it = Shaped(shaping(a_host(**meters)), mode, list_entries=10, transaction_records=10, idle_max_s=0.05)
    it.make("live", 1)
    async with it.running():
        await drained(it.store, "live")
        await asyncio.sleep(1)
        it.make("old", 2_000, padding=10_000)
        await until(lambda: nbytes(it, "old") > limit)
        old, new = nbytes(it, "old"), nbytes(it, "live")
        for i in range(300):
            it.store.queues["live"].append(raw_entry("k", i + 1, padding=live // 10 - 600))
            await asyncio.sleep(0.1)
        await drained(it.store, "live", within_s=1)
        old, new = nbytes(it, "old") - old, nbytes(it, "live") - new

    waited = {"scope": "uplink", "priority": "client_normal"}
    grants = it.metric("remora_shaping_wait_seconds_count", **waited)
    assert grants >= 300
    assert it.metric("remora_shaping_wait_seconds_bucket", **waited, le="0.025") == grants
    assert new >= 200_000
    assert old + new == pytest.approx(30 * limit, rel=0.05)


@BOTH
@in_virtual_time
async def test_a_thousand_shards_that_wait_hold_nothing(mode: Delivery) -> None:
    """A thousand shards of a class without credit hold no memory, and a shard of another class delivers beside them."""
    settings = shaping(a_host(client_normal=MUCH, client_low=MUCH, background=NOTHING))
    it = Shaped(settings, mode, worker_bytes=1 << 20, shard_bytes=1 << 19, endpoint_bytes=1 << 20)
    for i in range(1_000):
        it.make(f"slow-{i}", 3)
        it.store.metadata[f"slow-{i}"] = a_topic(f"slow-{i}", args="remora-traffic-class=replay")
    it.make("t", 20)
    async with it.running():
        await drained(it.store, "t")
        await until(lambda: it.gate.waiting == 1_000 and not it.worker.budget.held)

    assert len(it.endpoint.arrived) == 20


@in_virtual_time
async def test_each_grant_counts_how_long_it_has_waited() -> None:
    """A grant that waited counts its time in the scope where it waited, and none in others, as one that passed does."""
    one = MetersSettings(client_normal=a_meter(0, 10**6), client_low=a_meter(0, 10**6))
    topics = ScopeSettings(name="topics", of="topic", enabled=True, meters=one)
    host = a_host(max=MUCH, client_high=MUCH, client_normal=MUCH, client_low=MUCH)
    it = Shaped(shaping(topics, host), Delivery.AT_LEAST_ONCE)
    it.make("t", 1)

    def total(name: str, scope: str) -> float:
        both = ("client_normal", "client_low")
        return sum(it.metric(f"remora_shaping_{name}", scope=scope, priority=each) for each in both)

    async with it.running():
        await drained(it.store)  # there is no group of the topic yet
        await until(lambda: it.gate.waiting)
        counted = total("wait_seconds_count", "uplink"), total("wait_seconds_sum", "uplink")
        await asyncio.sleep(2)
        assert total("waits_total", "topics") == 1
        assert total("wait_seconds_count", "topics") == 0
        it.host.tick()
        for each in one.by_bucket:
            it.host.account(0, "topics/t").release(each, 10**5)
        await until(lambda: not it.gate.waiting)

    assert total("wait_seconds_count", "topics") == 1
    assert total("wait_seconds_sum", "topics") == pytest.approx(2, abs=0.1)
    assert total("wait_seconds_count", "uplink") == counted[0] + 1
    assert total("wait_seconds_sum", "uplink") == counted[1]
