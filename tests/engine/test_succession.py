"""Shards of a re-sharded topic: they wait for those before them, say so, and tell their readers where those ended."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore, Fate
from engine.runs import a_topic, a_worker, drained, running, until
from remora.config import OwnershipSettings
from remora.metrics import Telemetry
from remora.model.errors import StoreError
from remora.model.topic import LayoutState, Topic, TopicHold, TopicLayout
from remora.policy.status.condition import State

WHY = "waits for t.3 of generation 0: 812 entries"


def a_resharded_store(*, tells: bool = True) -> tuple[FakeStore, Topic]:
    """A store with a queue of the second generation, which is held back."""
    store = FakeStore(tells=tells)
    topic = replace(a_topic("t"), generation=1, former=(TopicLayout(0, 4, LayoutState.SHUT),))
    store.metadata["t"] = topic
    store.make("t")
    store.held_back["t"] = WHY
    return store, topic


@in_virtual_time
@pytest.mark.parametrize("exact", [False, True])
async def test_a_shard_waits_for_those_before_it(exact: bool) -> None:
    """While entries of its keys wait elsewhere it opens no way and sends nothing, says what it waits for, and counts
    as no stall; told that they are through it delivers at once, its reader is told where they ended, and how long it
    waited is counted."""
    store, topic = a_resharded_store()
    if exact:
        store.metadata["t"] = replace(topic, target=replace(topic.target, args="remora-delivery=exactly-once"))
    endpoint, telemetry = FakeEndpoint(), Telemetry(clock=asyncio.get_running_loop().time)
    worker = a_worker(store, endpoint, telemetry=telemetry)
    store.queues["t"].append(raw_entry("k", 1))

    async with running(worker):
        await until(lambda: bool(worker.shards) and worker.shards[0].state is State.WAITING)
        await asyncio.sleep(100)
        assert [(each.state, each.reason) for each in worker.shards] == [(State.WAITING, WHY)]
        assert (endpoint.routes, endpoint.events(), worker.waiting()) == ([], [], ())

        del store.held_back["t"]
        store.ends["t"] = b"t.3=i:0/900"
        store._tell("t")
        await drained(store, within_s=0.5)

    assert endpoint.events() == [b"id-1"]
    assert endpoint.successions == [("t", b"t.3=i:0/900")]
    waited = {"stage": "wait_parents", "at": "kafka"}
    assert telemetry.registry.get_sample_value("remora_stage_seconds_count", waited) == 1
    assert telemetry.registry.get_sample_value("remora_stage_seconds_sum", waited) == pytest.approx(100, abs=1)


@in_virtual_time
@pytest.mark.parametrize("tells", [False, True])
async def test_a_held_topic_is_called_held_and_not_waiting(tells: bool) -> None:
    """While an operator holds the topic a shard that is held back says that, as the others do; resumed, it says what it
    waits for, and it delivers when both are over."""
    store, topic = a_resharded_store(tells=tells)
    endpoint = FakeEndpoint()
    store.queues["t"].append(raw_entry("k", 1))
    await store.set_hold(topic, TopicHold(since=time.time(), reason="consumers are rebuilt"))

    async with running(worker := a_worker(store, endpoint)):
        await until(lambda: bool(worker.shards) and worker.shards[0].state is State.HELD, within_s=5)
        await asyncio.sleep(100)
        (status,) = worker.shards
        assert (status.state, endpoint.routes) == (State.HELD, [])
        assert status.reason == "held by an operator until it is resumed: consumers are rebuilt"

        await store.set_hold(topic, None)
        await until(lambda: worker.shards[0].reason == WHY, within_s=5)
        del store.held_back["t"]
        store._tell("t")
        await drained(store, within_s=1)

    assert endpoint.events() == [b"id-1"]


@in_virtual_time
@pytest.mark.parametrize(("tells", "reads", "within_s"), [(False, 250, 1.0), (True, 70, 3.0)])
async def test_a_shard_that_nobody_tells_looks_again(tells: bool, reads: int, within_s: float) -> None:
    """On a store that cannot tell it is found within a second, and where what would have told was killed within two."""
    store, _ = a_resharded_store(tells=tells)
    endpoint = FakeEndpoint()
    store.queues["t"].append(raw_entry("k", 1))

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(100)
        assert store.calls["read"] < reads
        del store.held_back["t"]
        await drained(store, within_s=within_s)


@in_virtual_time
async def test_a_worker_that_finishes_waits_for_nothing() -> None:
    """A shard that is held back is given up at once when its worker ends."""
    store, _ = a_resharded_store()
    store.queues["t"].append(raw_entry("k", 1))
    worker = a_worker(store, FakeEndpoint())

    async with running(worker):
        await until(lambda: bool(worker.shards) and worker.shards[0].state is State.WAITING)
        began = asyncio.get_running_loop().time()
        worker.end()
        await until(lambda: not worker.shards, within_s=1)

    assert asyncio.get_running_loop().time() - began < 2


@in_virtual_time
async def test_former_layouts_are_forgotten_by_any_worker() -> None:
    """Each worker asks the store to after each look at the topics, while there are some, and a failure ends nothing."""
    store, topic = a_resharded_store()

    async with running(a_worker(store, FakeEndpoint())):
        await until(lambda: len(store.forgets) > 1, within_s=5)
        store.before = lambda call: 0.0 if call != "forget" else None
        store.metadata["t"] = replace(topic, former=())
        await asyncio.sleep(5)
        store.forgets.clear()
        await asyncio.sleep(10)

    assert store.forgets == []


@in_virtual_time
async def test_a_change_whose_command_died_is_finished_within_three_seconds() -> None:
    """A worker with default settings asks the store to finish what a topic's registry has begun."""
    store = FakeStore()
    store.metadata["t"] = a_topic("t")
    store.make("t")

    async with running(a_worker(store, FakeEndpoint(), ownership=OwnershipSettings())):
        await asyncio.sleep(7.3)
        began = asyncio.get_running_loop().time()
        store.metadata["t"] = replace(a_topic("t"), coming=TopicLayout(1, 4, LayoutState.PREPARING))
        await until(lambda: bool(store.forgets), within_s=3)

    assert asyncio.get_running_loop().time() - began <= 3


@in_virtual_time
@pytest.mark.parametrize(("generation", "is_lost"), [(1, False), (0, True)], ids=["with its layout", "with its topic"])
async def test_a_former_queue_that_goes_is_not_called_lost(
    generation: int, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue that another worker removes with its layout, right after its last entry was delivered, is no loss that
    the log warns of; a queue that is gone though its topic was never re-sharded is one."""
    store = FakeStore(tells=True)
    store.metadata["t"] = a_topic("t")
    store.make("t", raw_entry("k", 1))

    def gone(call: str) -> None:
        if call == "remove":
            del store.queues["t"]
            store.metadata["t"] = replace(a_topic("t"), generation=generation)

    store.after = gone
    worker = a_worker(store, FakeEndpoint())

    with caplog.at_level(logging.INFO):
        async with running(worker):
            await until(lambda: any("it was deleted" in each.message for each in caplog.records), within_s=10)

    assert [each.levelno for each in caplog.records if "it was deleted" in each.message] == [
        logging.WARNING if is_lost else logging.INFO
    ]


@in_virtual_time
@pytest.mark.parametrize(("generation", "is_lost"), [(1, False), (0, True)], ids=["with its layout", "with its topic"])
async def test_a_former_queue_that_is_missed_by_a_renewal_is_not_called_lost(
    generation: int, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The same where the renewal of its lock finds it gone, while this worker waits for an answer yet to what another
    owner has delivered."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint()
    store.metadata["t"] = a_topic("t")
    store.make("t", raw_entry("k", 1))
    endpoint.fate = lambda *_: Fate(wait_s=100)

    with caplog.at_level(logging.INFO):
        async with running(worker := a_worker(store, endpoint)):
            await until(lambda: bool(worker.shards) and worker.shards[0].has_work)
            store.metadata["t"] = replace(a_topic("t"), generation=generation)
            await asyncio.sleep(2)
            del store.queues["t"]
            await until(lambda: any("it was deleted" in each.message for each in caplog.records), within_s=10)

    assert [each.levelno for each in caplog.records if "it was deleted" in each.message] == [
        logging.WARNING if is_lost else logging.INFO
    ]


class StoreWithABadTopic(FakeStore):
    """The former layout of topic `bad` cannot be looked at: the store raises, or does not answer for ten minutes."""

    def __init__(self, why: StoreError | None) -> None:
        super().__init__()
        self._why = why

    async def forget_former(self, topic: Topic) -> bool:
        if topic.name != "bad":
            return await super().forget_former(topic)
        if self._why is not None:
            raise self._why
        await asyncio.sleep(600)
        return False


@in_virtual_time
@pytest.mark.parametrize("why", [None, StoreError("looking at bad: its ledger cannot be read")], ids=["hangs", "fails"])
async def test_a_layout_that_cannot_go_holds_up_nothing_else(why: StoreError | None) -> None:
    """A topic whose former layout cannot be looked at keeps no other one from being forgotten, no new topic from being
    delivered, and does not have its worker taken for one that hangs."""
    store, endpoint = StoreWithABadTopic(why), FakeEndpoint()
    for name in ("bad", "good"):
        store.metadata[name] = replace(a_topic(name), generation=1, former=(TopicLayout(0, 4, LayoutState.SHUT),))
        store.make(name)
    worker = a_worker(store, endpoint)

    async with running(worker):
        await until(lambda: bool(store.forgets), within_s=5)
        await asyncio.sleep(100)
        store.metadata["new"] = a_topic("new")
        store.make("new", raw_entry("k", 1))
        await drained(store, "new", within_s=5)
        assert worker.beat_age_s() < 5

    assert {each.name for each in store.forgets} == {"good"}


@in_virtual_time
async def test_a_topic_with_one_layout_is_not_even_looked_at() -> None:
    """It costs no read of the store more than ever."""
    reads = []
    for generation in (0, 1):
        store, topic = a_resharded_store()
        store.held_back.clear()
        store.metadata["t"] = replace(topic, generation=generation, former=())
        store.queues["t"].append(raw_entry("k", 1))
        async with running(a_worker(store, FakeEndpoint())):
            await drained(store)
        reads.append(store.calls["read"])

    assert reads[0] == reads[1] - 1
    assert not store.forgets
