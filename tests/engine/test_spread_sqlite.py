"""Several workers on one real directory of the embedded store, each with a store of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, Fate
from engine.runs import running
from remora.codec.shard_hash import shards
from remora.config import DeliverySettings, OwnershipSettings, SqliteSettings
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.errors import TopicMoved, TopicRefused
from remora.model.ingest import RoutedEvent
from remora.storage.sqlite import SqliteStore
from support.stores import own_topic

LONG_S = 60.0
CHANGES = 12
SETTINGS = OwnershipSettings(discovery_interval_s=0.5)


@asynccontextmanager
async def a_worker(settings: SqliteSettings, endpoint: FakeEndpoint, name: str) -> AsyncIterator[Worker]:
    """A worker with a store of its own, as another process has."""
    async with SqliteStore(settings) as store:
        cookie = f"remora/h/b/{name}"
        worker = Worker(store, [endpoint], Telemetry(), WorkerSetup(cookie, SETTINGS, DeliverySettings()), Random(7))
        async with running(worker):
            yield worker


async def hold(workers: list[Worker], *shares: int) -> None:
    """Return when the workers hold this many shards, in any order."""
    async with asyncio.timeout(LONG_S):
        while sorted(each.held_shards for each in workers) != sorted(shares):  # noqa: ASYNC110 - of other stores too
            await asyncio.sleep(0.02)


@pytest.mark.guarantee("many-workers-and-hosts")
async def test_workers_come_share_and_go_while_every_event_arrives(tmp_path: Path) -> None:
    """While workers join, drain and leave, their shares become fair, and all events arrive, in order."""
    settings, endpoint = SqliteSettings(directory=str(tmp_path / "store"), files=4), FakeEndpoint()
    sent = 0
    async with SqliteStore(settings) as store, AsyncExitStack() as stack:
        topic = await store.own_topics.create(own_topic("t", 11))
        stop = asyncio.Event()

        async def stream() -> None:
            nonlocal sent
            while not stop.is_set():
                events = [RoutedEvent(n, b"b:k%d" % n, raw_entry(f"k{n}", sent + n)) for n in range(11)]
                await store.ingest.publish(topic, events)
                sent += 11
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stream())
            workers = [await stack.enter_async_context(a_worker(settings, endpoint, "w0"))]
            await hold(workers, 11)
            workers.append(await stack.enter_async_context(a_worker(settings, endpoint, "w1")))
            await hold(workers, 5, 6)
            async with a_worker(settings, endpoint, "w2") as third:
                await hold([*workers, third], 3, 4, 4)
                workers[0].drain(True)
                await hold([*workers, third], 0, 5, 6)
                workers[0].drain(False)
                await hold([*workers, third], 3, 4, 4)
            await hold(workers, 5, 6)
            stop.set()
        async with asyncio.timeout(LONG_S):
            while await store.inspection.backlog(topic.all_shards()):  # noqa: ASYNC110 - emptied by others
                await asyncio.sleep(0.02)

    numbers = [int(each.removeprefix(b"id-")) for each in dict.fromkeys(endpoint.events())]
    assert sorted(numbers) == list(range(sent))
    for shard in range(11):
        of_shard = [number for number in numbers if number % 11 == shard]
        assert of_shard == sorted(of_shard)


@pytest.mark.guarantee("duplicates")
async def test_nothing_arrives_twice_while_shards_change_and_move(tmp_path: Path) -> None:
    """While a topic gets other numbers of shards, its workers drain one after the other and its routes are left, each
    event arrives once, and those of a key in their order."""
    chance, settings = Random(6), SqliteSettings(directory=str(tmp_path / "store"), files=1)
    endpoint, keys = FakeEndpoint(lanes=64), [f"k{number}" for number in range(64)]
    endpoint.batch_records = 4
    endpoint.fate = lambda _, batch: Fate(0.1 if batch.lane % 8 == 0 else 0.002)
    sent: list[str] = []
    async with SqliteStore(settings) as store, AsyncExitStack() as stack:
        await store.own_topics.create(own_topic("t", 2))
        workers = [await stack.enter_async_context(a_worker(settings, endpoint, f"w{each}")) for each in range(3)]
        stop = asyncio.Event()

        async def stream() -> None:
            while not stop.is_set():
                topic = await store.own_topics.find("t")
                assert topic is not None
                some = chance.choices(keys, k=16)
                places = shards([f"b:{key}".encode() for key in some], topic.shards)
                events = [
                    RoutedEvent(place, f"b:{key}".encode(), raw_entry(key, len(sent) + i))
                    for i, (key, place) in enumerate(zip(some, places, strict=True))
                ]
                with suppress(TopicMoved):
                    await store.ingest.publish(topic, events)
                    sent.extend(some)
                await asyncio.sleep(0.004)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stream())
            for _ in range(CHANGES):
                topic = await store.own_topics.find("t")
                assert topic is not None
                with suppress(TopicRefused):
                    await store.own_topics.reshard(topic, chance.choice([1, 2, 3, 5, 8]))
                for route in endpoint.routes:
                    route.stale = True
                await asyncio.sleep(chance.uniform(0, 0.15))
                drained = chance.choice(workers)
                drained.drain(True)
                await asyncio.sleep(chance.uniform(0, 0.3))
                drained.drain(False)
            stop.set()
        async with asyncio.timeout(LONG_S):
            while await store.inspection.backlog(await store.catalog.shards()):  # noqa: ASYNC110 - emptied by others
                await asyncio.sleep(0.02)

    arrived = [int(each.removeprefix(b"id-")) for each in endpoint.events()]
    assert sorted(arrived) == list(range(len(sent)))
    for key in keys:
        of_key = [number for number in arrived if sent[number] == key]
        assert of_key == sorted(of_key)
