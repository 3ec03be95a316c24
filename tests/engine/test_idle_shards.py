from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore, Fate
from engine.runs import QUICK, a_topic, a_worker, drained, running, until
from remora.engine.worker import Worker
from remora.model.errors import EndpointUnavailable, StoreUnavailable
from remora.model.shard import Shard
from remora.policy.status.condition import State

SOON_S = 1.0
"""Well below the fallback's 15 s: what arrives within this time was told of."""


def a_telling_store(*queues: str) -> FakeStore:
    store = FakeStore(tells=True)
    for queue in queues:
        store.make(queue)
        store.metadata[queue] = a_topic(queue, to=queue)
    return store


def states(worker: Worker) -> list[State]:
    return [each.state for each in worker.shards]


@in_virtual_time
async def test_an_entry_for_an_idle_shard_is_delivered_at_once() -> None:
    """A shard whose queue was empty from the start and for long delivers an entry as soon as it is committed."""
    store, endpoint = a_telling_store("t"), FakeEndpoint()
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(100)
        assert states(worker) == [State.IDLE]
        assert endpoint.routes == []
        store.queues["t"].append(raw_entry("k", 1))
        await drained(store, within_s=0.2)

        await until(lambda: states(worker) == [State.IDLE] and not worker.served, within_s=12)
        [status] = worker.shards
        assert 9 <= status.since_s <= 12  # since it was found empty, not since nothing runs for it


@in_virtual_time
async def test_a_shard_becomes_idle_again_after_its_work_and_starts_anew() -> None:
    """Seconds after its last entry nothing runs for a shard; later entries are delivered in order, each once."""
    store, endpoint = a_telling_store("t"), FakeEndpoint()
    worker = a_worker(store, endpoint)

    async with running(worker):
        for round_ in range(5):
            store.queues["t"].append(*(raw_entry("k", 10 * round_ + i) for i in range(10)))
            await drained(store, within_s=2)
            await asyncio.sleep(12)
            [status] = worker.shards
            assert (status.state, status.has_work, status.topic) == (State.IDLE, False, "t")

    assert endpoint.events() == [b"id-%d" % i for i in range(50)]


@in_virtual_time
async def test_a_busy_queue_is_not_read_in_vain() -> None:
    """A queue that gets an entry again and again is read once for each, and not once more to find nothing."""
    store, endpoint = a_telling_store("t"), FakeEndpoint()
    store.queues["t"].append(raw_entry("k", 0))

    async with running(a_worker(store, endpoint)):
        await drained(store)
        await asyncio.sleep(2)
        reads = store.calls["read"]
        for number in range(1, 21):
            store.queues["t"].append(raw_entry("k", number))
            await asyncio.sleep(0.02)
        assert 20 <= store.calls["read"] - reads <= 21

    assert endpoint.events() == [b"id-%d" % number for number in range(21)]


@in_virtual_time
async def test_an_idle_session_is_told_and_does_not_look() -> None:
    """A shard that is still active reads nothing while nothing comes, and delivers what comes at once."""
    store, endpoint = a_telling_store("t"), FakeEndpoint()
    store.queues["t"].append(raw_entry("k", 0))

    async with running(a_worker(store, endpoint)):
        await drained(store)
        await asyncio.sleep(2)
        reads = store.calls["read"]
        await asyncio.sleep(5)
        assert store.calls["read"] == reads
        store.queues["t"].append(raw_entry("k", 1))
        await drained(store, within_s=0.2)


@settings(max_examples=150, deadline=None)
@given(
    commit_at=st.floats(9.5, 12.5),
    read_s=st.sampled_from([0.0, 0.01, 0.3]),
    answer_s=st.sampled_from([0.0, 0.01, 0.3]),
    tell_s=st.sampled_from([0.0, 0.02, 0.4]),
    close_s=st.sampled_from([0.0, 0.2]),
)
def test_no_wake_up_is_lost(commit_at: float, read_s: float, answer_s: float, tell_s: float, close_s: float) -> None:
    """An entry is delivered soon at whatever moment around its shard's becoming idle it is committed."""

    async def run() -> None:
        store, endpoint = a_telling_store("t"), FakeEndpoint()
        waits = {"read": (read_s, answer_s), "arrivals": (0.0, tell_s)}
        store.before = lambda call: waits.get(call, (0.0, 0.0))[0]
        store.after = lambda call: waits.get(call, (0.0, 0.0))[1]
        endpoint.closing_s = close_s
        store.queues["t"].append(raw_entry("k", 0))
        worker = a_worker(store, endpoint)

        async with running(worker):
            await asyncio.sleep(commit_at)
            store.queues["t"].append(raw_entry("k", 1))
            await drained(store, within_s=2 * (read_s + answer_s + tell_s + close_s) + SOON_S)
            await asyncio.sleep(16)
            assert states(worker) == [State.IDLE]

        assert endpoint.events() == [b"id-0", b"id-1"]

    in_virtual_time(run)()


@settings(max_examples=100, deadline=None)
@given(commit_at=st.floats(0, 2), acquire_s=st.sampled_from([0.0, 0.1, 0.7]), look_s=st.sampled_from([0.0, 0.2, 0.8]))
def test_no_entry_is_overlooked_while_its_shard_is_taken(commit_at: float, acquire_s: float, look_s: float) -> None:
    """An entry is delivered soon also when it is committed while its shard is just being taken and looked at."""

    async def run() -> None:
        store, endpoint = a_telling_store("t", "u"), FakeEndpoint()
        waits = {"acquire": acquire_s, "backlog": look_s}
        store.before = store.after = lambda call: waits.get(call, 0.0)

        async with running(a_worker(store, endpoint)):
            await asyncio.sleep(commit_at)
            store.queues["t"].append(raw_entry("k", 1))
            await drained(store, within_s=2 * (acquire_s + look_s) + SOON_S)

    in_virtual_time(run)()


@in_virtual_time
async def test_a_store_that_cannot_tell_for_a_while_is_looked_at() -> None:
    """While asking for arrivals fails, entries of idle shards are still found within seconds."""
    store, endpoint = a_telling_store("t", "u"), FakeEndpoint()
    store.before = lambda call: StoreUnavailable("away") if call == "arrivals" else None

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(60)
        store.queues["t"].append(raw_entry("k", 1))
        await drained(store, within_s=3)


@in_virtual_time
async def test_an_arrival_that_was_never_told_is_found_by_the_backlog_monitor() -> None:
    """Even when the store breaks its promise, an entry waits no longer than between two polls of the backlog."""
    store, endpoint = a_telling_store("t"), FakeEndpoint()

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(60)
        store.queues["t"].on_append = lambda: None
        store.queues["t"].append(raw_entry("k", 1))
        await drained(store, within_s=16)


@in_virtual_time
async def test_finishing_gives_idle_shards_back() -> None:
    """A worker that is told to finish releases the locks of idle and of busy shards, and returns."""
    store, endpoint = a_telling_store(*(f"q{i}" for i in range(50))), FakeEndpoint()
    endpoint.fate = lambda *_: Fate(wait_s=2)
    worker = a_worker(store, endpoint)

    async with running(worker) as task:
        await asyncio.sleep(30)
        store.queues["q7"].append(raw_entry("k", 1))
        await asyncio.sleep(1)
        assert sorted(states(worker)) == [State.DELIVERING] + 49 * [State.IDLE]

    assert task.done()
    assert store.queues["q7"].waiting == 0
    assert all(each.holder is None for each in store.queues.values())
    assert store.calls["release"] == 50


@in_virtual_time
async def test_a_worker_that_is_cut_short_gives_idle_shards_back() -> None:
    """Cancelling a worker releases the locks of its idle shards too."""
    store, endpoint = a_telling_store("a", "b", "c"), FakeEndpoint()
    store.queues["a"].append(raw_entry("k", 0))
    task = asyncio.create_task(a_worker(store, endpoint).run())
    await asyncio.sleep(30)

    task.cancel()
    await asyncio.wait([task])

    assert all(each.holder is None for each in store.queues.values())


@in_virtual_time
async def test_a_worker_that_is_cut_short_wakes_nobody_any_more() -> None:
    """Cancelling a worker while thousands of shards become active gives all locks back, and no callback fails."""
    queues = [f"q{i}" for i in range(1300)]
    store, endpoint = a_telling_store(*queues), FakeEndpoint()
    endpoint.fate = lambda *_: Fate(wait_s=1e6)
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    task = asyncio.create_task(a_worker(store, endpoint).run())
    await asyncio.sleep(20)
    for each in queues:
        store.queues[each].append(raw_entry("k", 1))
    await asyncio.sleep(0.06)

    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(1)

    assert failures == []
    assert 1000 <= len(endpoint.routes) < 1300
    assert all(each.holder is None for each in store.queues.values())


@in_virtual_time
async def test_a_finish_that_meets_a_shard_becoming_idle_gives_it_back() -> None:
    """At whatever moment around a shard's becoming idle a worker is told to finish, its lock is released."""
    for moment in range(100):
        store, endpoint = a_telling_store("t"), FakeEndpoint()
        endpoint.closing_s = 0.3
        store.queues["t"].append(raw_entry("k", 0))

        async with asyncio.timeout(60), running(a_worker(store, endpoint)):
            await asyncio.sleep(9.8 + moment / 100)

        assert store.queues["t"].holder is None


@in_virtual_time
async def test_an_idle_shard_whose_lock_was_broken_is_let_go() -> None:
    """When somebody else takes the lock of an idle shard, the worker notices at its renewal and stays away."""
    store, endpoint = a_telling_store("t", "u"), FakeEndpoint()
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(30)
        store.steal("t", "remora/other/b/w2", lease_s=20)
        await asyncio.sleep(QUICK.renew_interval_s + 1)
        assert [each.queue for each in worker.shards] == ["u"]
        assert "not held" in worker.not_owned[Shard("t")].reason
        await asyncio.sleep(30)
        assert [each.queue for each in worker.shards] == ["u"]
        await asyncio.sleep(30)
        assert len(worker.shards) == 2


@in_virtual_time
async def test_a_topic_that_is_not_ours_any_more_is_given_back_while_idle() -> None:
    """An idle shard whose topic gets an HTTP endpoint is released within a discovery interval."""
    store, endpoint = a_telling_store("t"), FakeEndpoint()
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(30)
        store.metadata["t"] = a_topic(uri="http://h/")
        await asyncio.sleep(QUICK.discovery_interval_s + 0.5)
        assert worker.shards == []
        assert store.queues["t"].holder is None
        assert "stay with radosgw" in worker.not_owned[Shard("t")].reason

        store.metadata["t"] = a_topic()
        store.queues["t"].append(raw_entry("k", 1))
        await drained(store, within_s=QUICK.discovery_interval_s + 0.5)


@in_virtual_time
async def test_an_endpoint_that_changed_while_idle_gets_what_comes() -> None:
    """An entry that activates a shard goes where its topic points by then, and the status shows that before."""
    store, endpoint = a_telling_store("t"), FakeEndpoint()
    worker = a_worker(store, endpoint)

    async with running(worker):
        store.queues["t"].append(raw_entry("k", 0))
        await asyncio.sleep(30)
        store.metadata["t"] = a_topic(uri="kafka://other:9092", to="new")
        await asyncio.sleep(QUICK.discovery_interval_s + 0.5)
        assert worker.shards[0].endpoint == "kafka://other:9092"
        store.queues["t"].append(raw_entry("k", 1))
        await drained(store, within_s=0.5)

    assert [(topic, record.event_id) for topic, record in endpoint.arrived] == [("t", b"id-0"), ("new", b"id-1")]


@in_virtual_time
async def test_a_topic_that_is_removed_while_idle_is_let_go(caplog: pytest.LogCaptureFixture) -> None:
    """An idle shard whose queue is deleted is let go within a discovery interval, and its successor is served; the log
    warns of nothing, since nothing was lost."""
    store, endpoint = a_telling_store("t"), FakeEndpoint()
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(30)
        del store.queues["t"], store.metadata["t"]
        await asyncio.sleep(QUICK.discovery_interval_s + 0.5)
        assert worker.shards == []
        await asyncio.sleep(QUICK.discovery_interval_s)
        assert worker.not_owned == {}
        assert not [each for each in caplog.records if each.levelname == "WARNING"]
        acquisitions = store.calls["acquire"]
        await asyncio.sleep(30)
        assert store.calls["acquire"] == acquisitions

        store.make("t", raw_entry("k", 1))
        store.metadata["t"] = a_topic()
        await drained(store, within_s=QUICK.discovery_interval_s + 0.5)


@in_virtual_time
async def test_a_topic_that_is_removed_and_made_anew_at_once_is_served() -> None:
    """An idle shard whose queue was replaced between two readings is let go at its renewal and taken again."""
    store, endpoint = a_telling_store("t"), FakeEndpoint()

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(30)
        del store.queues["t"]
        store.make("t", raw_entry("k", 1))
        await drained(store, within_s=QUICK.renew_interval_s + QUICK.discovery_interval_s + 1)


@in_virtual_time
async def test_idle_shards_survive_an_outage() -> None:
    """After the store was away for longer than the lease, idle shards are held again and deliver."""
    store, endpoint = a_telling_store("t", "u"), FakeEndpoint()
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(30)
        store.before = lambda call: StoreUnavailable("away")
        await asyncio.sleep(30)
        store.queues["t"].append(raw_entry("k", 1))
        store.before = lambda call: None
        await drained(store, within_s=QUICK.renew_interval_s + 3)
        await asyncio.sleep(5)
        assert len(worker.shards) == 2


@in_virtual_time
async def test_thousands_of_idle_shards_cost_only_what_keeps_them() -> None:
    """For 11,000 idle shards the store is asked for nothing but catalogue, renewals, expiry and backlog, in bulk."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint()
    for i in range(1000):
        topic = store.metadata[f"t{i}"] = a_topic(f"t{i}", shards=11)
        for shard in topic.all_shards():
            store.make(shard.queue)
    shards, topics, released, held = (
        await store.catalog.shards(),
        await store.catalog.topics(),
        await store.releases.released(),
        await store.holds.held(),
    )
    store.holds.held = lambda: _answered(held)  # type: ignore[method-assign]
    store.releases.released = lambda: _answered(released)  # type: ignore[method-assign]
    store.catalog.shards = lambda: _answered(shards)  # type: ignore[method-assign]
    store.catalog.topics = lambda: _answered(topics)  # type: ignore[method-assign]
    slow = replace(QUICK, lease_s=90, renew_interval_s=30, reservation_interval_s=30)
    worker = a_worker(store, endpoint, ownership=slow)

    async with running(worker):
        await asyncio.sleep(40)
        assert len(worker.shards) == 11_000
        tasks = len(asyncio.all_tasks())
        store.calls.clear()
        await asyncio.sleep(60)
        calls = dict(store.calls)

    assert tasks < 16
    kept_by = {"renew_all", "renew", "expire_all", "expire", "backlog", "balances", "members", "announce"}
    assert calls.keys() == kept_by
    assert calls["renew_all"] <= 4
    assert calls["expire_all"] <= 4
    assert calls["backlog"] == calls["balances"] == 4


async def _answered(value: Any) -> Any:
    return value


@in_virtual_time
async def test_thousands_that_got_an_entry_each_are_served_in_turn() -> None:
    """When 2,000 idle shards get an entry at the same moment, all are delivered and most stay idle meanwhile."""
    queues = [f"q{i}" for i in range(2000)]
    store, endpoint = a_telling_store(*queues), FakeEndpoint()
    endpoint.fate = lambda *_: Fate(wait_s=0.5)
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(20)
        for each in queues:
            store.queues[each].append(raw_entry("k", 1))
        most = 0
        while any(each.waiting for each in store.queues.values()):
            most = max(most, len(worker.ownership.active()))
            await asyncio.sleep(0.05)

    assert len(endpoint.arrived) == 2000
    assert 1000 <= most < 1700


@in_virtual_time
async def test_shards_behind_a_broken_endpoint_keep_nobody_asleep() -> None:
    """While thousands of shards are busy with an endpoint that is down, another one is still woken within seconds."""
    bad = [f"bad{i}" for i in range(1300)]
    store, endpoint = a_telling_store(*bad, "good"), FakeEndpoint()
    endpoint.opening = lambda target: EndpointUnavailable("down") if target.topic != "good" else None

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(20)
        for each in [*bad, "good"]:
            store.queues[each].append(raw_entry("k", 1))
        await drained(store, "good", within_s=5)
