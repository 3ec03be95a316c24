from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate
from engine.runs import QUICK, a_topic, a_worker, drained, running
from remora.config import DeliverySettings
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.errors import (
    EndpointError,
    EndpointMisconfigured,
    EndpointUnavailable,
    EntryRefused,
    RemoraError,
    StoreUnavailable,
)
from remora.model.ledger import Tally
from remora.policy.delivery.pace import LEAST_PER_SECOND
from remora.ports.endpoint import Batch


def first_occurrences(endpoint: FakeEndpoint) -> dict[bytes, list[int]]:
    """Per key, the numbers of its events in the order in which each first arrived."""
    seen: dict[bytes, list[int]] = {}
    known: set[bytes] = set()
    for _, record in endpoint.arrived:
        if record.event_id not in known:
            known.add(record.event_id)
            seen.setdefault(record.key, []).append(int(record.event_id.removeprefix(b"id-")))
    return seen


@pytest.mark.guarantee("duplicates")
@in_virtual_time
async def test_everything_arrives_once_and_leaves_the_queue() -> None:
    """Without faults each entry arrives exactly once, in order per key, and the queue ends empty."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *(raw_entry(f"k{i % 7}", i) for i in range(3000)))
    store.metadata["t"] = a_topic()

    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert sorted(endpoint.events()) == sorted(b"id-%d" % i for i in range(3000))
    assert all(numbers == sorted(numbers) for numbers in first_occurrences(endpoint).values())


@in_virtual_time
async def test_removals_are_few_and_large() -> None:
    """A long backlog is removed about one listing at a time, not one batch at a time."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=11)
    endpoint.batch_records = 50
    store.make("t", *(raw_entry(f"k{i}", i) for i in range(10_000)))
    store.metadata["t"] = a_topic()

    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert len(store.removals) <= 10_000 / 1024 + 3


@in_virtual_time
@pytest.mark.parametrize("beside", [False, True])
async def test_listings_are_longer_where_only_backlogs_wait(beside: bool) -> None:
    """A backlog is read in listings four times as long, but not beside a topic that is delivered as it comes in."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint(lanes=1)
    endpoint.fate = lambda *_: Fate(wait_s=0.05)
    delivery = DeliverySettings(list_entries=100)
    for queue in ("backlog", "live"):
        store.make(queue, raw_entry("k", 0, topic=queue))
        store.metadata[queue] = a_topic(queue, to=queue)

    async with running(a_worker(store, endpoint, delivery)):
        await drained(store)
        await asyncio.sleep(3)
        if beside:
            store.queues["live"].append(raw_entry("k", 1, topic="live"))
        store.queues["backlog"].append(*(raw_entry(f"k{i}", i, topic="backlog") for i in range(4000)))
        for i in range(4):
            await asyncio.sleep(0.5)
            if beside:
                store.queues["live"].append(raw_entry("k", 2 + i, topic="live"))
        await drained(store)

    counts = [count for queue, count in store.removals if queue == "backlog"]
    assert sum(counts) == 4001
    assert max(counts) == (100 if beside else 400)


@in_virtual_time
async def test_entries_that_come_one_by_one_travel_together() -> None:
    """Where entries come in faster than pushes are answered they share pushes, and none waits for long."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint(lanes=1)
    store.make("t")
    store.metadata["t"] = a_topic()
    endpoint.fate = lambda *_: Fate(wait_s=0.01)

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(2)
        for i in range(1000):
            store.queues["t"].append(raw_entry("k", i))
            await asyncio.sleep(0.001)
        await drained(store, within_s=0.3)

    assert endpoint.events() == [b"id-%d" % i for i in range(1000)]
    assert endpoint.pushes < 150


@in_virtual_time
async def test_many_queues_with_little_each_share_a_budget_of_pushes() -> None:
    """Where acknowledgements take 40 ms, fifty queues that get an entry each every 5 ms are delivered within a quarter
    of a second, in few pushes."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint(lanes=1)
    endpoint.fate = lambda *_: Fate(wait_s=0.04)
    for i in range(50):
        store.make(f"t{i}")
        store.metadata[f"t{i}"] = a_topic(f"t{i}")

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(2)
        for number in range(400):
            for i in range(50):
                store.queues[f"t{i}"].append(raw_entry("k", number))
            await asyncio.sleep(0.005)
        await drained(store, within_s=0.25)

    assert len(endpoint.events()) == 20_000
    assert endpoint.pushes < 2 * 1.5 * LEAST_PER_SECOND


@pytest.mark.guarantee("order-per-object")
@in_virtual_time
async def test_a_failed_push_lets_nothing_of_its_key_pass() -> None:
    """While an early record fails again and again, no later record of its key arrives before it."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *(raw_entry("same", i) for i in range(200)))
    store.metadata["t"] = a_topic()
    endpoint.batch_records = 10
    failures = iter(range(5))

    def fate(route: FakeRoute, batch: Batch) -> Fate:
        if any(r.event_id == b"id-15" for r in batch.records) and next(failures, None) is not None:
            return Fate(arrives=3, error=EndpointUnavailable("leader election"))
        return Fate()

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert first_occurrences(endpoint)[b"bkt/same"] == list(range(200))


@pytest.mark.guarantee("duplicates")
@in_virtual_time
async def test_what_arrived_behind_a_failure_is_not_sent_again() -> None:
    """Records that were acknowledged behind a failed one are skipped when the queue is read again."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=256)
    store.make("t", *(raw_entry(chr(65 + i), i) for i in range(20)))
    store.metadata["t"] = a_topic()
    broken = True

    def fate(route: FakeRoute, batch: Batch) -> Fate:
        if broken and batch.records[0].event_id == b"id-3":
            return Fate(wait_s=1, arrives=0, error=EndpointUnavailable("no leader"))
        return Fate()

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(30)
        assert store.queues["t"].waiting == 17
        broken = False
        await drained(store)

    assert sorted(endpoint.events()) == sorted(b"id-%d" % i for i in range(20))


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
@in_virtual_time
async def test_a_broken_topic_costs_only_itself() -> None:
    """While one endpoint hangs and one is refused, a healthy topic's entries arrive within a second."""
    store, endpoint = FakeStore(), FakeEndpoint()
    for queue in ("hung", "refused", "good"):
        store.make(queue, *(raw_entry(f"k{i}", i, topic=queue) for i in range(5000)))
        store.metadata[queue] = a_topic(queue, to=queue)

    def fate(route: FakeRoute, batch: Batch) -> Fate:
        match route.target.topic:
            case "hung":
                return Fate(wait_s=10, arrives=0, error=EndpointUnavailable("no answer"))
            case "refused":
                return Fate(arrives=0, error=EndpointMisconfigured("no such topic"))
        return Fate()

    endpoint.fate = fate
    small = DeliverySettings(worker_bytes=1 << 20, endpoint_bytes=1 << 20, shard_bytes=512 << 10)
    async with running(a_worker(store, endpoint, small)):
        await asyncio.sleep(60)
        store.queues["good"].append(*(raw_entry(f"k{i}", 5000 + i, topic="good") for i in range(1000)))
        await drained(store, "good", within_s=2)

        assert store.queues["hung"].waiting == store.queues["refused"].waiting == 5000
        assert endpoint.pushes < 400


@in_virtual_time
async def test_a_stopped_topic_recovers_as_soon_as_its_attributes_change() -> None:
    """A topic with a configuration error is delivered within a discovery interval of its attributes' change."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 1))
    store.metadata["t"] = a_topic(to="wrong")
    endpoint.opening = lambda target: EndpointMisconfigured("no such topic") if target.topic == "wrong" else None
    slow = DeliverySettings(configuration_recheck_s=3000)

    async with running(a_worker(store, endpoint, slow)) as _:
        await asyncio.sleep(10)
        assert endpoint.arrived == []
        store.metadata["t"] = a_topic(to="right")
        await drained(store, within_s=3)

    assert [t for t, _ in endpoint.arrived] == ["right"]


@pytest.mark.parametrize("shard_bytes", [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20])
@in_virtual_time
async def test_changed_attributes_apply_to_entries_already_queued(shard_bytes: int) -> None:
    """Entries that wait when the endpoint changes go to the new one, in order, and none goes to both."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *(raw_entry("k", i, padding=500) for i in range(20_000)))
    store.metadata["t"] = a_topic(to="old")
    endpoint.batch_records = 100
    endpoint.fate = lambda *_: Fate(wait_s=0.05)

    sized = DeliverySettings(shard_bytes=shard_bytes, endpoint_bytes=16 << 20)
    async with running(a_worker(store, endpoint, sized)):
        await asyncio.sleep(3)
        store.metadata["t"] = a_topic(to="new")
        await drained(store)

    old, new = endpoint.events("old"), endpoint.events("new")
    assert old
    assert new
    assert old + new == [b"id-%d" % i for i in range(20_000)]


@in_virtual_time
async def test_without_metadata_each_entry_goes_where_its_own_copy_says() -> None:
    """A queue whose metadata is unreadable delivers each entry to the endpoint that the entry itself names."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *(raw_entry("k", i, topic="a" if i % 100 < 50 else "b") for i in range(300)))

    async with running(a_worker(store, endpoint)):
        await drained(store)

    for topic, first in (("a", 0), ("b", 50)):
        assert endpoint.events(topic) == [b"id-%d" % i for i in range(300) if first <= i % 100 < first + 50]


@pytest.mark.guarantee("no-loss")
@in_virtual_time
async def test_an_undecodable_entry_is_parked_before_it_is_removed() -> None:
    """Garbage goes to the dead letters with its bytes, the rest of the queue goes on, and parking comes first."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0), b"garbage", raw_entry("k", 1))
    store.metadata["t"] = a_topic()
    failing = iter([StoreUnavailable("away")] * 3)
    store.before = lambda call: next(failing, None) if call == "store_letters" else None

    async with running(a_worker(store, endpoint)):
        await drained(store)

    [letter] = store.parked.values()
    assert (letter.raw, letter.cause) == (b"garbage", "undecodable")
    assert store.calls["store_letters"] == 4
    assert endpoint.events() == [b"id-0", b"id-1"]


@in_virtual_time
async def test_garbage_alone_in_a_queue_of_an_unreadable_topic_is_parked() -> None:
    """Without metadata, garbage at the front is parked by its cause and what follows is delivered."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", raw_entry("k", 0))

    async with running(a_worker(store, endpoint)):
        await drained(store)
        queue.append(b"garbage", raw_entry("k", 1))
        await drained(store)

    assert [letter.cause for letter in store.parked.values()] == ["undecodable"]
    assert endpoint.events() == [b"id-0", b"id-1"]


@in_virtual_time
async def test_garbage_at_the_front_does_not_hide_whose_queue_it_is() -> None:
    """A queue that begins with garbage is found to be ours by the first entry that can be decoded."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", b"garbage", b"more", raw_entry("k", 0))

    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert endpoint.events() == [b"id-0"]
    assert len(store.parked) == 2


@in_virtual_time
async def test_a_record_that_is_too_large_is_parked_unsent() -> None:
    """What the endpoint says beforehand it cannot take is parked with that reason, and the others arrive."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *(raw_entry("k", i, padding=5000 if i == 5 else 0) for i in range(10)))
    store.metadata["t"] = a_topic()
    endpoint.too_large = lambda record: len(record.body) > 4000

    async with running(a_worker(store, endpoint)):
        await drained(store)

    [letter] = store.parked.values()
    assert letter.cause == "too_large"
    assert endpoint.events() == [b"id-%d" % i for i in range(10) if i != 5]


@in_virtual_time
async def test_a_record_refused_for_good_is_found_and_parked() -> None:
    """A poison record that travels with others is singled out and parked; all others arrive."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *(raw_entry("k", i) for i in range(100)))
    store.metadata["t"] = a_topic()

    def fate(route: FakeRoute, batch: Batch) -> Fate:
        poisoned = any(r.event_id == b"id-42" for r in batch.records)
        return Fate(arrives=0, error=EntryRefused("corrupt")) if poisoned else Fate()

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await drained(store)

    [letter] = store.parked.values()
    assert (letter.cause, letter.reason) == ("refused", "corrupt")
    assert endpoint.events() == [b"id-%d" % i for i in range(100) if i != 42]


@in_virtual_time
async def test_an_entry_is_given_up_after_its_retries() -> None:
    """max_retries = 2 makes three attempts, then the entry is parked as exhausted and others follow."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0), raw_entry("k", 1))
    store.metadata["t"] = a_topic(max_retries=2)
    attempts = 0

    def fate(route: FakeRoute, batch: Batch) -> Fate:
        nonlocal attempts
        if any(r.event_id == b"id-0" for r in batch.records):
            attempts += 1
            return Fate(arrives=0, error=EndpointUnavailable("no"))
        return Fate()

    endpoint.fate = fate
    endpoint.batch_records = 1
    async with running(a_worker(store, endpoint)):
        await drained(store)

    [letter] = store.parked.values()
    assert (letter.cause, letter.attempts, attempts) == ("exhausted", 3, 3)
    assert endpoint.events() == [b"id-1"]


@pytest.mark.guarantee("no-loss")
@in_virtual_time
async def test_nothing_is_removed_after_the_lock_is_taken_by_another() -> None:
    """When somebody takes the lock while batches are under way, nothing more is removed and the shard is let go."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", *(raw_entry("k", i) for i in range(5000)))
    store.metadata["t"] = a_topic()
    endpoint.batch_records = 100
    endpoint.fate = lambda *_: Fate(wait_s=0.2)
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(3)
        before = queue.waiting
        store.steal("t", "radosgw", lease_s=1000)
        await asyncio.sleep(5)

        assert 0 < queue.waiting == before
        assert worker.shards == []
        assert "not held" in next(iter(worker.not_owned.values())).reason


@in_virtual_time
async def test_a_removal_that_the_store_refuses_is_counted() -> None:
    """When the lock goes between an acknowledgement and its removal, nothing is removed and a counter shows it."""
    store, endpoint, telemetry = FakeStore(), FakeEndpoint(), Telemetry()
    queue = store.make("t", *(raw_entry("k", i) for i in range(10)))
    store.metadata["t"] = a_topic()
    store.before = lambda call: store.steal("t", "radosgw", lease_s=1000) if call == "remove" else None

    async with running(a_worker(store, endpoint, telemetry=telemetry)):
        await asyncio.sleep(5)

        assert queue.waiting == 10
        assert sample_value(telemetry.registry, "remora_removals_refused_total") == 1


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
@in_virtual_time
async def test_an_evicted_worker_leaves_room_for_the_gateway() -> None:
    """A worker whose lock was broken does not take the queue again before a gateway had its turn."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()
    worker = a_worker(store, endpoint)

    async with running(worker):
        await drained(store)
        store.queues["t"].holder = None
        await asyncio.sleep(5)
        taken_again = []
        for _ in range(60):
            taken_again.append(bool(worker.shards))
            await asyncio.sleep(1)

    assert not any(taken_again[:35])
    assert taken_again[-1]


@in_virtual_time
async def test_a_lease_that_ran_out_during_an_outage_is_simply_taken_again() -> None:
    """After the store was away for longer than the lease, the shard is delivered again within seconds."""
    store, endpoint = FakeStore(), FakeEndpoint()
    queue = store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()

    async with running(a_worker(store, endpoint)):
        await drained(store)
        store.before = lambda call: StoreUnavailable("away")
        await asyncio.sleep(30)
        queue.append(raw_entry("k", 1))
        store.before = lambda call: None
        await drained(store, within_s=5)

    assert endpoint.events() == [b"id-0", b"id-1"]


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
@in_virtual_time
async def test_nothing_is_pushed_once_the_lease_is_doubtful() -> None:
    """When renewals get no answer, pushing stops before the lease can have run out."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *(raw_entry("k", i) for i in range(100_000)))
    store.metadata["t"] = a_topic()
    endpoint.batch_records = 1
    endpoint.fate = lambda *_: Fate(wait_s=0.1)
    store.before = lambda call: StoreUnavailable("away") if call == "renew" else None

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(QUICK.lease_s + 1)
        pushed = endpoint.pushes
        await asyncio.sleep(0)

        assert 70 <= pushed <= (QUICK.lease_s - QUICK.trust_margin_s) / 0.1 + 2


@in_virtual_time
async def test_a_deleted_topic_is_let_go_and_its_successor_gets_only_its_own_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A queue that is deleted and made anew is never confused with the old one, and the log warns of what was lost."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *(raw_entry("k", i) for i in range(5000)))
    store.metadata["t"] = a_topic()
    endpoint.batch_records = 10
    endpoint.fate = lambda *_: Fate(wait_s=0.5)
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(2)
        del store.queues["t"]
        await asyncio.sleep(5)
        assert worker.shards == []
        assert [each.levelname for each in caplog.records if "which are lost" in each.getMessage()] == ["WARNING"]
        arrived = len(endpoint.arrived)
        store.make("t", *(raw_entry("k", 10_000 + i) for i in range(30)))
        await drained(store, within_s=60)

    assert endpoint.events()[arrived:] == [b"id-%d" % (10_000 + i) for i in range(30)]


@pytest.mark.guarantee("duplicates")
@in_virtual_time
async def test_finishing_delivers_what_is_packed_and_releases_the_lock() -> None:
    """A worker that is told to finish sends nothing twice, leaves the queue consistent and gives the lock back."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=7)
    queue = store.make("t", *(raw_entry(f"k{i % 50}", i) for i in range(20_000)))
    store.metadata["t"] = a_topic()
    endpoint.batch_records = 30
    endpoint.fate = lambda *_: Fate(wait_s=0.03)

    async with running(a_worker(store, endpoint, DeliverySettings(shard_bytes=256 << 10))) as task:
        await asyncio.sleep(4)
    assert task.done()
    assert queue.holder is None
    assert 0 < queue.waiting < 20_000
    assert len(endpoint.arrived) == 20_000 - queue.waiting

    async with running(a_worker(store, endpoint, cookie="remora/h/b/w2")):
        await drained(store)

    assert sorted(endpoint.events()) == sorted(b"id-%d" % i for i in range(20_000))


@in_virtual_time
async def test_a_worker_that_is_cut_short_still_releases_its_locks() -> None:
    """Cancelling a worker in the middle of pushes that never end gives every lock back."""
    store, endpoint = FakeStore(), FakeEndpoint()
    for queue in ("a", "b", "c"):
        store.make(queue, raw_entry("k", 0))
        store.metadata[queue] = a_topic(queue)
    endpoint.fate = lambda *_: Fate(wait_s=1e6)
    worker = a_worker(store, endpoint)
    task = asyncio.create_task(worker.run())
    await asyncio.sleep(5)
    assert len(worker.shards) == 3

    task.cancel()
    await asyncio.wait([task])

    assert all(queue.holder is None for queue in store.queues.values())


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
@in_virtual_time
async def test_queues_of_other_schemes_are_never_locked() -> None:
    """A topic with an HTTP endpoint keeps its queue, also after it was a Kafka topic."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("web", raw_entry("k", 0, uri="http://h/"))
    store.metadata["web"] = a_topic("web", uri="http://h/")
    store.make("turns", raw_entry("k", 0))
    store.metadata["turns"] = a_topic("turns")
    worker = a_worker(store, endpoint)

    async with running(worker):
        await drained(store, "turns")
        store.metadata["turns"] = a_topic("turns", uri="http://h/")
        await asyncio.sleep(5)

        assert worker.shards == []
        assert store.queues["turns"].holder is None
        assert store.queues["web"].waiting == 1


@pytest.mark.parametrize("claim", ["never", "always"])
@in_virtual_time
async def test_a_gateway_s_lock_is_broken_only_where_the_settings_say_so(claim: Literal["never", "always"]) -> None:
    """A queue that radosgw holds and keeps is taken at once under "always", and left alone under "never"."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()
    store.steal("t", "uQgruc0E_NyKtDTd", lease_s=1e6)
    ownership = replace(QUICK, claim_from_radosgw=claim)
    worker = Worker(
        store, [endpoint], Telemetry(), WorkerSetup("remora/h/b/w1", ownership, DeliverySettings()), Random(7)
    )

    async with running(worker):
        await asyncio.sleep(5)

    assert endpoint.events() == ([b"id-0"] if claim == "always" else [])


@in_virtual_time
async def test_a_lock_of_another_worker_is_never_broken() -> None:
    """Also where gateways' locks are broken, a queue that another worker holds is left to it."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()
    store.steal("t", "remora/other/b/w2", lease_s=1e6)
    ownership = replace(QUICK, claim_from_radosgw="always")
    worker = Worker(
        store, [endpoint], Telemetry(), WorkerSetup("remora/h/b/w1", ownership, DeliverySettings()), Random(7)
    )

    async with running(worker):
        await asyncio.sleep(5)

    assert endpoint.events() == []


@in_virtual_time
async def test_a_defect_costs_its_shard_only() -> None:
    """An unforeseen exception in one shard's delivery neither stops the worker nor the other shards."""
    store, endpoint = FakeStore(), FakeEndpoint()
    for queue in ("bad", "good"):
        store.make(queue, *(raw_entry("k", i) for i in range(10)))
        store.metadata[queue] = a_topic(queue, to=queue)

    def fate(route: FakeRoute, batch: Batch) -> Fate:
        if route.target.topic == "bad":
            raise ZeroDivisionError
        return Fate()

    endpoint.fate = fate
    worker = a_worker(store, endpoint)
    async with running(worker):
        await drained(store, "good")
        await asyncio.sleep(3)

        assert [each.queue for each in worker.shards] == ["good"]


@pytest.mark.guarantee("order-per-object")
@in_virtual_time
async def test_a_stale_route_is_left_only_when_nothing_is_under_way() -> None:
    """When keys move to other lanes, everything packed for the old ones has arrived before the new ones are used."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=3)
    store.make("t", *(raw_entry(f"k{i % 40}", i) for i in range(20_000)))
    store.metadata["t"] = a_topic()
    endpoint.batch_records = 20
    endpoint.fate = lambda route, batch: Fate(wait_s=0.01 * (batch.lane + 1))

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(2)
        endpoint.lanes = 5
        endpoint.routes[-1].stale = True
        await drained(store)

    assert len(endpoint.routes) == 2
    assert all(numbers == sorted(numbers) for numbers in first_occurrences(endpoint).values())
    assert len(endpoint.arrived) == 20_000


@pytest.mark.guarantee("order-per-object")
@in_virtual_time
async def test_lanes_take_turns_where_few_may_be_under_way() -> None:
    """At most as many lanes are under way as the route allows at the time; those that have begun count, too. Of the
    lanes that wait the one with the oldest entry goes on. Each key's records arrive in order."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=40)
    store.make("t", *(raw_entry(f"k{i % 400}", i) for i in range(4000)))
    store.metadata["t"] = a_topic()
    endpoint.batch_records = 5
    endpoint.fate = lambda *_: Fate(wait_s=1.0)
    allowed = 8
    endpoint.width = lambda: allowed

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(8.5)
        early = {int(record.event_id.removeprefix(b"id-")) for _, record in endpoint.arrived}
        allowed = 3
        await asyncio.sleep(2)
        endpoint.busiest = 0
        await asyncio.sleep(20)
        few, endpoint.busiest, allowed = endpoint.busiest, 0, 30
        await drained(store)

    assert (few, endpoint.busiest) == (3, 30)
    front = next(number for number in range(4000) if number not in early)
    assert front > 0.7 * len(early) > 200
    assert all(numbers == sorted(numbers) for numbers in first_occurrences(endpoint).values())
    assert len(endpoint.arrived) == 4000


@pytest.mark.guarantee("no-loss", "nothing-leaves-silently", "order-per-object")
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_schedule_of_faults_loses_or_reorders(data: st.DataObject) -> None:
    """Whatever fails, late or half: nothing is lost, each key's first occurrences are in order, the ledger is right."""
    seed = data.draw(st.integers(0, 2**32))
    rng = Random(seed)
    entries = data.draw(st.integers(1, 300))
    keys = data.draw(st.integers(1, 12))
    trouble = data.draw(st.sampled_from([0.02, 0.2, 0.5]))
    until = data.draw(st.floats(1, 40))
    tells = data.draw(st.booleans())

    async def run() -> None:
        store, endpoint = FakeStore(tells=tells), FakeEndpoint(lanes=rng.randint(1, 4))
        garbage = {i for i in range(entries - 1) if rng.random() < 0.02}
        queue = store.make("t", *(b"?" if i in garbage else raw_entry(f"k{i % keys}", i) for i in range(entries // 2)))
        if rng.random() < 0.8:
            store.metadata["t"] = a_topic(to="t")
        endpoint.batch_records = rng.randint(1, 40)
        if rng.random() < 0.5:
            endpoint.width = lambda: rng.randint(1, 4)
        loop = asyncio.get_running_loop()

        def store_trouble(call: str) -> RemoraError | float | None:
            if loop.time() > until or rng.random() > trouble:
                return rng.random() * 0.01
            return StoreUnavailable(f"{call} timed out") if rng.random() < 0.5 else rng.random() * 5

        def fate(route: FakeRoute, batch: Batch) -> Fate:
            if loop.time() > until or rng.random() > trouble:
                return Fate(wait_s=rng.random() * 0.1)
            error: EndpointError = rng.choice([EndpointUnavailable, EndpointMisconfigured])("broken")
            return Fate(rng.random() * 3, rng.choice([None, 0, len(batch.records) // 2]), error)

        store.before = store.after = store_trouble
        endpoint.fate = fate
        delivery = DeliverySettings(
            list_entries=rng.choice([1, 7, 1024]), max_unacked=rng.choice([0, 0, 3, 50]), retry_cap_s=5
        )
        async with running(worker := a_worker(store, endpoint, delivery)):
            await asyncio.sleep(rng.random() * (60 if tells else 20))  # long enough to become idle in between
            queue.append(
                *(b"?" if i in garbage else raw_entry(f"k{i % keys}", i) for i in range(entries // 2, entries))
            )
            if rng.random() < 0.3:
                queue.holder = None
            if "t" in store.metadata and rng.random() < 0.3:
                store.metadata["t"] = a_topic(to="other")
            await drained(store, within_s=2000)

        assert (worker.entries.held, worker.budget.held) == (0, 0)
        arrived = set(endpoint.events())
        assert arrived == {b"id-%d" % i for i in range(entries) if i not in garbage}
        assert len(store.parked) == len(garbage)
        assert queue.ledger == Tally(delivered=entries - len(garbage), dead_lettered=len(garbage))
        assert all(numbers == sorted(numbers) for numbers in first_occurrences(endpoint).values())

    in_virtual_time(run)()
