"""A shard that its worker gives back in peace: the next owner sends nothing that has arrived."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate, Verdict
from engine.runs import a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings
from remora.model.errors import EndpointUnavailable, StoreUnavailable
from remora.model.topic import Delivery, LayoutState, Topic, TopicLayout
from remora.ports.endpoint import Batch

SLOW_S = 1.0


def resharded(topic: Topic) -> Topic:
    """The same topic after a change of its number of shards."""
    former = TopicLayout(topic.generation, topic.shards, LayoutState.SHUT)
    return replace(topic, generation=topic.generation + 1, shards=4, former=(former,))


CHANGES: dict[str, Callable[[Topic], Topic]] = {
    "shards": resharded,
    "forgotten": lambda topic: replace(topic, generation=1, former=()),
    "closed": lambda topic: replace(topic, closed=not topic.closed),
    "retries": lambda topic: replace(topic, max_retries=7 if topic.max_retries is None else None),
    "target": lambda topic: replace(topic, target=replace(topic.target, uri="kafka://c:9092")),
}


class Scene:
    """A queue of two keys, of which the lane of one takes a second for each record, and a topic that changes."""

    def __init__(self) -> None:
        self.store, self.endpoint = FakeStore(tells=True), FakeEndpoint(lanes=256)
        self.store.metadata["t"] = a_topic("t")
        self.store.make("t", *(raw_entry(key, number) for number, key in enumerate("aabababb")))
        self.endpoint.batch_records = 1
        self.endpoint.fate = self.fate

    def fate(self, route: FakeRoute, batch: Batch) -> Fate:
        return Fate(SLOW_S if batch.records[0].key.endswith(b"a") else 0.01)

    def change(self, change: Callable[[Topic], Topic]) -> None:
        self.store.metadata["t"] = change(self.store.metadata["t"])
        self.store.tell_changed()

    async def next_owner(self) -> None:
        async with running(a_worker(self.store, self.endpoint, cookie="remora/h/b/w2")):
            await drained(self.store)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.guarantee("duplicates")
@in_virtual_time
async def test_a_change_of_the_topic_and_another_owner_make_no_copies(change: str) -> None:
    """A topic is changed while lanes have batches under way, and its shard is given back before these are answered."""
    scene = Scene()

    async with running(a_worker(scene.store, scene.endpoint)):
        await until(lambda: b"id-7" in scene.endpoint.events())
        scene.change(CHANGES[change])
        await asyncio.sleep(SLOW_S / 4)
    assert scene.store.queues["t"].holder is None
    await scene.next_owner()

    assert sorted(scene.endpoint.events()) == [b"id-%d" % each for each in range(8)]


@pytest.mark.guarantee("duplicates")
@in_virtual_time
async def test_a_route_to_be_left_and_another_owner_make_no_copies() -> None:
    """A shard is given back while it leaves a route whose lanes are no longer those that it would choose."""
    scene = Scene()

    async with running(a_worker(scene.store, scene.endpoint)):
        await until(lambda: b"id-7" in scene.endpoint.events())
        scene.endpoint.routes[0].stale = True
        scene.store.queues["t"].append(raw_entry("b", 8))
        await asyncio.sleep(SLOW_S / 4)
    await scene.next_owner()

    assert sorted(scene.endpoint.events()) == [b"id-%d" % each for each in range(9)]


@pytest.mark.parametrize("change", ["shards", "forgotten", "closed"])
@in_virtual_time
async def test_what_is_under_way_goes_on_where_only_events_to_come_are_concerned(change: str) -> None:
    """A change of the number of shards, or of whether a topic is closed, ends no session."""
    scene = Scene()

    async with running(a_worker(scene.store, scene.endpoint)):
        await until(lambda: scene.endpoint.events())
        scene.change(CHANGES[change])
        await drained(scene.store)

    assert len(scene.endpoint.routes) == 1
    assert sorted(scene.endpoint.events()) == [b"id-%d" % each for each in range(8)]


@in_virtual_time
async def test_a_shard_is_given_back_though_what_is_left_cannot_be_read() -> None:
    """One that would have to read on, to leave nothing that has arrived, is given back where that takes too long."""
    scene = Scene()

    async with running(worker := a_worker(scene.store, scene.endpoint)):
        await until(lambda: b"id-7" in scene.endpoint.events())
        scene.store.before = lambda call: 600.0 if call == "read" else 0.0
        scene.change(CHANGES["retries"])
        await asyncio.sleep(SLOW_S / 4)
        worker.drain(on=True)
        await until(lambda: scene.store.queues["t"].holder is None, within_s=15)


@in_virtual_time
async def test_a_shard_that_is_given_back_sends_no_more_than_it_has_to() -> None:
    """It sends what stands before entries that have arrived, and leaves what came in behind them to its next owner."""
    scene = Scene()

    async with running(worker := a_worker(scene.store, scene.endpoint, DeliverySettings(list_entries=8))):
        await until(lambda: b"id-7" in scene.endpoint.events())
        scene.change(CHANGES["retries"])
        scene.store.queues["t"].append(*(raw_entry("b", 8 + each) for each in range(100)))
        await asyncio.sleep(SLOW_S / 4)
        worker.drain(on=True)
        await until(lambda: scene.store.queues["t"].holder is None, within_s=15)

    assert scene.store.queues["t"].front < 50
    await scene.next_owner()
    assert sorted(scene.endpoint.events()) == sorted(b"id-%d" % each for each in range(108))


@in_virtual_time
async def test_a_shard_that_fails_is_given_back_at_once() -> None:
    """After a failure copies are possible, and a shard does not stay with an owner that cannot deliver."""
    scene, seldom = Scene(), DeliverySettings(retry_base_s=60, retry_cap_s=60)
    gone = EndpointUnavailable("no leader")
    scene.endpoint.fate = lambda route, batch: (
        Fate(SLOW_S, 0, gone) if batch.records[0].key.endswith(b"a") else Fate(0.01)
    )

    async with running(worker := a_worker(scene.store, scene.endpoint, seldom)):
        await until(lambda: worker.shards and worker.shards[0].failures)
        pushes = scene.endpoint.pushes
        worker.end()
        await until(lambda: scene.store.queues["t"].holder is None, within_s=1)

    assert scene.endpoint.pushes == pushes


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), mode=st.sampled_from(Delivery))
@pytest.mark.guarantee("duplicates")
def test_no_changes_and_owners_make_copies(seed: int, mode: Delivery) -> None:
    """Whenever a topic is changed, routes are left and shards given back: each entry arrives once, in its key's order,
    as long as nothing fails."""

    @in_virtual_time
    async def play() -> None:
        chance = Random(seed)
        store, endpoint = FakeStore(tells=chance.random() < 0.5), FakeEndpoint(lanes=chance.choice([2, 7, 256]))
        store.metadata["t"] = a_topic("t")
        keys = [chance.choice("abcdefgh") for _ in range(chance.randrange(1, 120))]
        queue = store.make("t", *(raw_entry(key, number) for number, key in enumerate(keys)))
        endpoint.batch_records = chance.choice([1, 3, 50])
        pace = {key: chance.choice([0.001, 0.05, 0.5]) for key in "abcdefgh"}
        endpoint.fate = lambda route, batch: Fate(pace[batch.records[0].key[-1:].decode()] * chance.random())
        endpoint.verdict = lambda *_: Verdict(wait_s=chance.choice([0.001, 0.3]) * chance.random())
        delivery = DeliverySettings(mode=mode.value, list_entries=chance.choice([4, 16, 1024]))
        for number in range(6):
            async with running(a_worker(store, endpoint, delivery, cookie=f"remora/h/b/w{number}")):
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(chance.random())
                    if chance.random() < 0.3:
                        for route in endpoint.routes:
                            route.stale = True
                        for exact in endpoint.exact_routes:
                            exact.stale = True
                    else:
                        store.metadata["t"] = CHANGES[chance.choice(list(CHANGES))](store.metadata["t"])
                        store.tell_changed()
        async with running(a_worker(store, endpoint, delivery, cookie="remora/h/b/w9")):
            await drained(store)

        arrived = defaultdict(list)
        for _, record in endpoint.arrived:
            arrived[record.key[-1:].decode()].append(int(record.event_id.removeprefix(b"id-")))
        assert queue.front == len(keys)
        assert arrived == {key: [i for i, each in enumerate(keys) if each == key] for key in set(keys)}

    play()


@in_virtual_time
async def test_a_queue_whose_removals_had_no_answer_is_given_back_at_once() -> None:
    """Removals that were carried out and never answered leave nothing to wait for, once other entries have arrived."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *(raw_entry("k", i) for i in range(50)))
    store.metadata["t"] = a_topic()
    store.after = lambda call: (
        StoreUnavailable("no answer") if call == "remove" and store.calls["remove"] <= 2 else None
    )

    async with running(a_worker(store, endpoint)):
        await drained(store)
        await asyncio.sleep(10)
        queue.append(raw_entry("k", 50))
        await drained(store)
        began = asyncio.get_running_loop().time()

    assert store.calls["remove"] > 2
    assert asyncio.get_running_loop().time() - began < 1
    assert len(endpoint.arrived) == 51
