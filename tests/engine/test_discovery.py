"""Changes that a store tells of: all workers act on them at once, and are not kept busy by them."""

from __future__ import annotations

import asyncio

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import a_topic, a_worker, drained, running, until
from remora.config import OwnershipSettings
from remora.model.shard import Shard
from remora.model.topic import TopicHold
from remora.policy.status.condition import State

DEFAULTS = OwnershipSettings()
BETWEEN_READINGS_S = DEFAULTS.discovery_interval_s * 5 + 0.1


def a_store(*, tells: bool) -> FakeStore:
    """A store with two shards of one topic."""
    store = FakeStore(tells=tells)
    add_shards(store, "a", 2)
    return store


def add_shards(store: FakeStore, name: str, count: int) -> None:
    """Another layout of a topic, with an entry in each shard."""
    store.metadata[name] = a_topic(name, shards=count)
    for number in range(count):
        store.make(f"{name}.{number}" if number else name, raw_entry(f"{name}{number}", 1))


@in_virtual_time
@pytest.mark.parametrize("tells", [False, True], ids=["polled", "notifies"])
async def test_told_of_new_shards_their_workers_lock_them_at_once(tells: bool) -> None:
    """Two workers that are told of new shards have locked all of them, each its part, within a fifth of a second, and
    deliver their entries; with default settings, and long before the next regular look at the catalogue."""
    store, endpoint = a_store(tells=tells), FakeEndpoint()
    workers = [a_worker(store, endpoint, cookie=f"remora/h/b/w{n}", ownership=DEFAULTS, group_size=2) for n in (1, 2)]

    async with running(workers[0]), running(workers[1]):
        await drained(store)
        await asyncio.sleep(BETWEEN_READINGS_S)
        add_shards(store, "b", 16)
        store.tell_changed()
        await until(lambda: sum(each.held_shards for each in workers) == 18, within_s=0.2)
        assert [each.held_shards for each in workers] == [9, 9]
        await drained(store, within_s=0.5)


@in_virtual_time
async def test_new_shards_that_nobody_tells_of_are_found_by_reading() -> None:
    """Where what would have told is lost, new shards are delivered after the next regular look at the catalogue."""
    store = a_store(tells=True)

    async with running(a_worker(store, FakeEndpoint(), ownership=DEFAULTS)):
        await drained(store)
        await asyncio.sleep(BETWEEN_READINGS_S)
        add_shards(store, "b", 16)
        await asyncio.sleep(0.5)
        assert store.queues["b"].waiting
        await drained(store, within_s=DEFAULTS.discovery_interval_s + 0.5)


@in_virtual_time
async def test_told_that_a_topic_is_held_a_worker_stops_at_once() -> None:
    """A hold that the store tells of is in force at once, and so is its end."""
    store, endpoint = a_store(tells=True), FakeEndpoint()
    worker = a_worker(store, endpoint, ownership=DEFAULTS)

    async with running(worker):
        await drained(store)
        await asyncio.sleep(BETWEEN_READINGS_S)
        store.on_hold[Shard("a")] = TopicHold(1.0)
        store.tell_changed()
        await asyncio.sleep(0.1)
        store.queues["a"].append(raw_entry("k", 2))
        await until(lambda: any(each.state is State.HELD for each in worker.shards), within_s=0.2)

        store.on_hold.clear()
        store.tell_changed()
        await drained(store, within_s=0.2)


@in_virtual_time
async def test_a_store_that_tells_all_the_time_is_read_twice_a_second() -> None:
    """A store that tells of a change a hundred times a second, as while hundreds of topics are made, is read four times
    as often as one that tells of none."""
    store = a_store(tells=True)

    async with running(a_worker(store, FakeEndpoint(), ownership=DEFAULTS)):
        await asyncio.sleep(10)
        before = store.calls["shards"]
        for _ in range(10_000):
            store.tell_changed()
            await asyncio.sleep(0.01)

    assert 190 < store.calls["shards"] - before < 220
