"""A topic that an operator holds: what is under way ends, nothing else is begun, and all of it goes on afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate, Verdict
from engine.runs import START_S, a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings
from remora.metrics import Telemetry
from remora.model.errors import EndpointUnavailable, StoreUnavailable
from remora.model.topic import Delivery, Topic, TopicHold
from remora.policy.status.condition import State
from remora.ports.endpoint import Batch

pytestmark = pytest.mark.usefixtures("wall_clock")

HELD = TopicHold(since=START_S, reason="consumers are rebuilt")
BOTH = pytest.mark.parametrize("mode", [Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE])
TELLS = pytest.mark.parametrize("tells", [False, True])


def topic_of(mode: Delivery, **changes: object) -> Topic:
    topic = replace(a_topic(), **changes)  # type: ignore[arg-type]  # fields by name
    return replace(topic, target=replace(topic.target, args=f"remora-delivery={mode}"))


@BOTH
@TELLS
@in_virtual_time
async def test_nothing_of_a_held_topic_is_delivered_until_it_is_resumed(mode: Delivery, tells: bool) -> None:
    """A topic that is held at the start gets nothing for an hour; resumed, all of it goes within three seconds."""
    store, endpoint = FakeStore(tells=tells), FakeEndpoint()
    store.make("t", *(raw_entry("k", i) for i in range(10)))
    store.metadata["t"] = topic = topic_of(mode)
    await store.set_hold(topic, HELD)

    async with running(worker := a_worker(store, endpoint)):
        await until(lambda: worker.shards and worker.shards[0].state is State.HELD)
        await asyncio.sleep(900)
        (status,) = worker.shards
        assert (endpoint.routes, endpoint.exact_routes, endpoint.arrived) == ([], [], [])
        assert status.reason == "held by an operator until it is resumed: consumers are rebuilt"
        assert status.since_s >= 899
        assert (status.failures, worker.waiting(), worker.budget.held) == (0, (), 0)
        assert store.queues["t"].holder is not None  # radosgw delivers what nobody holds

        await store.set_hold(topic, None)
        await drained(store, within_s=3)

    assert endpoint.events() == [b"id-%d" % i for i in range(10)]


@BOTH
@TELLS
@in_virtual_time
async def test_a_hold_ends_what_is_begun_and_begins_nothing(mode: Delivery, tells: bool) -> None:
    """What is under way when a topic is held arrives and is removed; what was only read ahead stays in the queue."""
    store, endpoint = FakeStore(tells=tells), FakeEndpoint(lanes=1)
    endpoint.batch_records = 10
    endpoint.fate = lambda *_: Fate(wait_s=1.0)
    endpoint.verdict = lambda *_: Verdict(wait_s=1.0)
    store.make("t", *(raw_entry("k", i) for i in range(3000)))
    store.metadata["t"] = topic = topic_of(mode)

    async with running(worker := a_worker(store, endpoint, DeliverySettings(transaction_records=100))):
        await until(lambda: endpoint.arrived)
        await store.set_hold(topic, HELD)
        await until(lambda: worker.shards[0].state is State.HELD, within_s=3)
        arrived = len(endpoint.arrived)
        await asyncio.sleep(600)

        assert 0 < len(endpoint.arrived) == arrived < 3000
        assert store.queues["t"].waiting == 3000 - arrived
        await store.set_hold(topic, None)
        await drained(store)

    assert endpoint.events() == [b"id-%d" % i for i in range(3000)]


@TELLS
@in_virtual_time
async def test_an_idle_topic_is_held_too(tells: bool) -> None:
    """What comes into the empty queue of a held topic waits; its session is over, and holds no way to the endpoint."""
    store, endpoint = FakeStore(tells=tells), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = topic = a_topic()

    async with running(worker := a_worker(store, endpoint)):
        await until(lambda: endpoint.arrived and worker.shards[0].is_open and not store.queues["t"].waiting)
        await store.set_hold(topic, HELD)
        await until(lambda: not any(each.is_open for each in worker.shards), within_s=3)
        store.queues["t"].append(raw_entry("k", 1))
        await until(lambda: worker.shards[0].state is State.HELD, within_s=60)
        await asyncio.sleep(600)
        assert endpoint.events() == [b"id-0"]
        await store.set_hold(topic, None)
        await drained(store, within_s=3)


@in_virtual_time
async def test_a_hold_ends_by_itself() -> None:
    """A hold with an end lasts until then and no longer, though nobody resumes the topic."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = topic = a_topic()
    await store.set_hold(topic, replace(HELD, until=START_S + 7200))

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(7199)
        assert endpoint.arrived == []
        await drained(store, within_s=4)


@in_virtual_time
async def test_entries_expire_while_their_topic_is_held() -> None:
    """time_to_live goes on: an entry that outlives its time in a held topic becomes a letter, and others wait on."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *(raw_entry("k", i, created=START_S + 60 * i) for i in range(3)))
    store.metadata["t"] = topic = replace(a_topic(), time_to_live_s=600)
    await store.set_hold(topic, HELD)

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(595)
        assert store.queues["t"].waiting == 3
        await asyncio.sleep(10)
        assert store.queues["t"].waiting == 2
        assert [each.cause for each in store.parked.values()] == ["expired"]
        await store.set_hold(topic, None)
        await drained(store, within_s=3)

    assert endpoint.events() == [b"id-1", b"id-2"]


@pytest.mark.guarantee("exactly-once")
@in_virtual_time
async def test_what_may_be_committed_does_not_expire_in_a_held_topic() -> None:
    """An entry that an earlier owner has committed in a transaction, and not removed, gets no letter, however old."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *(raw_entry("k", i) for i in range(3)))
    store.metadata["t"] = topic = topic_of(Delivery.EXACTLY_ONCE, time_to_live_s=600)
    endpoint.positions["t", queue.incarnation] = queue.marker(2)
    await store.set_hold(topic, HELD)

    async with running(worker := a_worker(store, endpoint)):
        await until(lambda: worker.shards and worker.shards[0].state is State.HELD)
        await asyncio.sleep(900)
        await store.set_hold(topic, None)
        await drained(store)

    assert [each.position for each in store.parked.values()] == [queue.marker(2).decode()]
    assert (queue.ledger.delivered, endpoint.arrived) == (2, [])


@in_virtual_time
async def test_a_failing_topic_is_held_at_once() -> None:
    """A hold ends the pause after a failure: no attempt is made while it lasts, and the state says held."""
    store, endpoint = FakeStore(), FakeEndpoint()
    endpoint.opening = lambda _: EndpointUnavailable("no broker")
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = topic = replace(a_topic(), retry_sleep_s=3600)

    async with running(worker := a_worker(store, endpoint)):
        await until(lambda: worker.shards and worker.shards[0].state is State.RETRYING)
        await store.set_hold(topic, HELD)
        await until(lambda: worker.shards[0].state is State.HELD, within_s=3)
        tries = len(endpoint.quick_retries)
        await asyncio.sleep(7200)
        assert len(endpoint.quick_retries) == tries
        endpoint.opening = lambda _: None
        await store.set_hold(topic, None)
        await drained(store, within_s=3)


@in_virtual_time
async def test_what_fails_after_a_hold_has_failed_since_then() -> None:
    """A topic that failed before it was held, and does so again when it is resumed, has failed since that moment, as
    often as since then: in its state as in its metric."""
    store, endpoint = FakeStore(), FakeEndpoint()
    telemetry = Telemetry(clock=asyncio.get_running_loop().time)
    endpoint.opening = lambda _: EndpointUnavailable("no broker")
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = topic = a_topic()

    async with running(worker := a_worker(store, endpoint, telemetry=telemetry)):
        await asyncio.sleep(120)
        await store.set_hold(topic, HELD)
        await until(lambda: worker.shards[0].state is State.HELD, within_s=3)
        await asyncio.sleep(300)
        assert (worker.shards[0].failures, worker.shards[0].failing_s) == (0, None)
        await store.set_hold(topic, None)
        await until(lambda: worker.shards[0].state is State.RETRYING, within_s=5)
        await asyncio.sleep(60)

        (status,) = worker.shards
        assert 59 < status.since_s < 70
        assert status.failing_s == status.since_s
        assert telemetry.registry.get_sample_value("remora_topic_failing_seconds", {"topic": "t"}) == pytest.approx(
            status.since_s, abs=1
        )


@in_virtual_time
async def test_every_shard_is_held_those_that_are_added_too() -> None:
    """A hold is of the topic: all its shards wait, also those that it gets while it is held; other topics go on."""
    store, endpoint = FakeStore(), FakeEndpoint()
    for name in ("t", "t.1", "u"):
        store.make(name, raw_entry("k", 0))
    store.metadata["t"], store.metadata["u"] = a_topic(shards=2), a_topic("u", to="u")
    await store.set_hold(store.metadata["t"], HELD)

    async with running(a_worker(store, endpoint)):
        await drained(store, "u")
        store.make("t.2", raw_entry("k", 0))
        store.metadata["t"] = a_topic(shards=3)
        await asyncio.sleep(600)
        assert {topic for topic, _ in endpoint.arrived} == {"u"}
        await store.set_hold(store.metadata["t"], None)
        await drained(store, within_s=5)


@in_virtual_time
async def test_a_topic_whose_metadata_is_unreadable_is_held() -> None:
    """A hold counts for a queue whose topic only its entries tell."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    await store.set_hold(a_topic(), HELD)

    async with running(worker := a_worker(store, endpoint)):
        await until(lambda: worker.shards and worker.shards[0].state is State.HELD)
        await asyncio.sleep(600)
        assert endpoint.arrived == []
        await store.set_hold(a_topic(), None)
        await drained(store, within_s=3)


@in_virtual_time
async def test_what_was_never_read_is_not_taken_for_nothing() -> None:
    """While it cannot be read which topics are held nothing is delivered; later the last reading stands."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()
    store.before = lambda call: StoreUnavailable("away") if call == "held" else None

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(60)
        assert endpoint.arrived == []
        store.before = lambda _: None
        await drained(store, within_s=5)


@in_virtual_time
async def test_finishing_does_not_wait_for_a_hold() -> None:
    """A worker that is told to stop gives a held shard back at once, with its entries."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = topic = a_topic()
    await store.set_hold(topic, HELD)

    async with running(worker := a_worker(store, endpoint)):
        await until(lambda: worker.shards and worker.shards[0].state is State.HELD)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 1
    assert (store.queues["t"].waiting, store.queues["t"].holder) == (1, None)


@in_virtual_time
async def test_a_hold_that_comes_while_the_way_opens_lets_nothing_pass() -> None:
    """A topic that is held while its endpoint is being connected to gets nothing by that connection."""
    store, endpoint = FakeStore(), FakeEndpoint()
    endpoint.opening_s = 10
    store.make("t", *(raw_entry("k", i) for i in range(5)))
    store.metadata["t"] = topic = a_topic()
    pushed: list[float] = []

    def fate(_: FakeRoute, batch: Batch) -> Fate:
        pushed.append(asyncio.get_running_loop().time())
        return Fate()

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await until(lambda: endpoint.quick_retries)
        await store.set_hold(topic, HELD)
        await asyncio.sleep(600)
        assert pushed == []
        await store.set_hold(topic, None)
        await drained(store, within_s=14)
