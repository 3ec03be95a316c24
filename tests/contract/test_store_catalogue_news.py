"""The store contract: who reads the catalogue is told of each change of a topic, by any process, and reads it then."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NoReturn

import pytest

from devkit.waits import PATIENT_S
from remora.model.topic import Topic, TopicHold
from remora.ports.store import ShardStore
from remora.storage.sqlite.queues import arrivals
from support.stores import Bench, own_topic


@pytest.fixture(autouse=True)
def _nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the files without a reason comes too late for any test."""
    monkeypatch.setattr(arrivals, "_LOOK_EVERY_S", 3600.0)


def fresh() -> Topic:
    """A topic of a name that nobody has."""
    return own_topic(f"t-{uuid.uuid4().hex[:8]}", 2)


@asynccontextmanager
async def listening(store: ShardStore) -> AsyncIterator[None]:
    """A process that waits for arrivals, as each worker does; it is told of changes from now on."""

    async def listen() -> NoReturn:
        while True:
            await store.arrivals.wait()

    async with asyncio.TaskGroup() as tasks:
        listener = tasks.create_task(listen())
        async with asyncio.timeout(PATIENT_S):
            await store.catalog.changed()
        yield
        listener.cancel()


async def shown(store: ShardStore, topic: Topic) -> tuple[Topic | None, TopicHold | None]:
    """What the catalogue says of a topic."""
    return (await store.catalog.topics()).get(topic.first_shard), (await store.holds.held()).get(topic.first_shard)


async def resharded(store: ShardStore, topic: Topic) -> None:
    await store.own_topics.reshard(topic, 5)


async def set_anew(store: ShardStore, topic: Topic) -> None:
    await store.own_topics.change(replace(topic, time_to_live_s=5))


async def held(store: ShardStore, topic: Topic) -> None:
    await store.holds.set_hold(topic, TopicHold(1.0))


async def removed(store: ShardStore, topic: Topic) -> None:
    await store.own_topics.remove(topic, discard=False)


@pytest.mark.parametrize("change", [resharded, set_anew, held, removed])
async def test_each_change_of_a_topic_is_told(
    bench: Bench, change: Callable[[ShardStore, Topic], Awaitable[None]]
) -> None:
    """Another process makes and changes a topic: who waits for changes is told of each, and finds it by reading."""
    reader, topic = await bench.another(), fresh()
    async with listening(reader), asyncio.timeout(PATIENT_S):
        topic = await bench.store.own_topics.create(topic)
        while (before := await shown(reader, topic)) == (None, None):
            await reader.catalog.changed()

        await change(bench.store, topic)

        while await shown(reader, topic) == before:
            await reader.catalog.changed()


async def test_the_end_of_a_former_layout_is_told(bench: Bench) -> None:
    """Whoever has a delivered layout go tells of it."""
    reader = await bench.another()
    topic = await bench.store.own_topics.create(fresh())
    changed = await bench.store.own_topics.reshard(topic, 3)
    async with listening(reader), asyncio.timeout(PATIENT_S):
        await bench.store.own_topics.forget_former(changed)

        while (found := (await shown(reader, topic))[0]) is None or found.former:
            await reader.catalog.changed()
    assert found.shards == 3
