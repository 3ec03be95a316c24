"""What shards of one destination tell each other."""

from __future__ import annotations

import asyncio

from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate
from engine.runs import a_topic, a_worker, drained, running
from remora.model.errors import EndpointUnavailable
from remora.ports import Parcel
from support.clock import in_virtual_time
from support.entries import raw_entry

AWAY = Fate(arrives=0, error=EndpointUnavailable("no answer"))


def a_full_store(*queues: str) -> FakeStore:
    store = FakeStore()
    for queue in queues:
        store.make(queue, *(raw_entry(f"k{i}", i, topic=queue) for i in range(10)))
        store.metadata[queue] = a_topic(queue, to=queue)
    return store


@in_virtual_time
async def test_a_destination_that_is_back_is_used_by_all_its_shards_at_once() -> None:
    """After a long outage every shard delivers within two seconds of the first, long before its own pause ends."""
    store, endpoint = a_full_store(*(f"t{i}" for i in range(40))), FakeEndpoint()
    is_away = True
    endpoint.fate = lambda *_: AWAY if is_away else Fate()

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(600)
        assert endpoint.arrived == []
        is_away = False
        async with asyncio.timeout(30):
            while not endpoint.arrived:  # noqa: ASYNC110  # the clock is virtual
                await asyncio.sleep(0.01)
        await drained(store, within_s=2)


@in_virtual_time
async def test_a_shard_that_fails_alone_keeps_its_pause() -> None:
    """A shard that fails for a reason of its own is hardly hurried by one that fails and recovers all the time."""
    store, endpoint = a_full_store("alone", "flapping"), FakeEndpoint(lanes=1)
    tried: list[str] = []

    def fate(route: FakeRoute, _: Parcel) -> Fate:
        topic = route.target.topic
        tried.append(topic)
        return AWAY if topic == "alone" or tried.count(topic) % 2 else Fate()

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        for i in range(600):
            store.queues["flapping"].append(raw_entry("k", i, topic="flapping"))
            await asyncio.sleep(1)

    assert tried.count("flapping") > 300
    assert tried.count("alone") < 600 / 5 + 60  # told every 5 s, and its own pauses of 15 s on average


@in_virtual_time
async def test_a_topic_s_own_pause_between_retries_is_kept() -> None:
    """A topic with a retry_sleep_duration waits that long, also when its destination works for another one."""
    store, endpoint = a_full_store("patient", "quick"), FakeEndpoint()
    store.metadata["patient"] = a_topic("patient", to="patient", retry_sleep_s=100)
    is_away = True
    endpoint.fate = lambda *_: AWAY if is_away else Fate()

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(50)
        is_away = False
        await drained(store, "quick", within_s=31)
        await asyncio.sleep(5)
        assert store.queues["patient"].waiting == 10
        await drained(store, "patient", within_s=100)


@in_virtual_time
async def test_a_change_that_came_during_the_attempt_ends_the_pause_after_it() -> None:
    """Attributes that changed while an attempt with the old ones went on are tried at once when it has failed."""
    store, endpoint = a_full_store("t"), FakeEndpoint()
    store.metadata["t"] = a_topic("t", to="old", retry_sleep_s=3600)
    endpoint.opening = lambda target: EndpointUnavailable("no") if target.topic == "old" else None
    endpoint.opening_s = 5

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(2)
        store.metadata["t"] = a_topic("t", to="new", retry_sleep_s=3600)
        await drained(store, within_s=30)
