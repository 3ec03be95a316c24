"""A failed push that says how far it came: what arrived is not sent again, and a refused record is not searched for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeRoute, FakeStore, Fate
from engine.runs import QUICK, a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.policy.delivery.pace import Pace
from remora.policy.delivery.retry import PROBE_ENTRIES
from remora.ports.endpoint import Batch


def numbers(endpoint: FakeEndpoint) -> list[int]:
    return [int(each.removeprefix(b"id-")) for each in endpoint.events()]


@pytest.mark.guarantee("duplicates", "order-per-object")
@in_virtual_time
async def test_what_arrived_is_not_sent_again() -> None:
    """However often pushes fail in the middle, each entry arrives once, and those of a key in order."""
    store, endpoint, rng = FakeStore(), FakeEndpoint(lanes=5), Random(3)
    store.make("t", *(raw_entry(f"k{i % 7}", i) for i in range(800)))
    store.metadata["t"] = a_topic()

    def fate(_: FakeRoute, batch: Batch) -> Fate:
        arrives = rng.randrange(len(batch.records) + 1)
        if rng.random() < 0.5 or arrives == len(batch.records):
            return Fate()
        return Fate(arrives=arrives, error=EndpointUnavailable("b is away").at(arrives, rng.randrange(2)))

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(800))
    for key in range(7):
        of_key = [each for each in numbers(endpoint) if each % 7 == key]
        assert of_key == sorted(of_key)


@in_virtual_time
async def test_a_refused_record_is_parked_where_it_stands() -> None:
    """A record that is named as refused becomes a letter at once; its batch goes on behind it, ahead of its lane."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=1)
    endpoint.batch_records = 10
    store.make("t", *(raw_entry("k", i) for i in range(100)))
    store.metadata["t"] = a_topic()
    poison = {b"id-3", b"id-47", b"id-48", b"id-99"}

    def fate(_: FakeRoute, batch: Batch) -> Fate:
        for at, record in enumerate(batch.records):
            if record.event_id in poison:
                return Fate(arrives=at, error=EntryRefused("422").at(at, 3))
        return Fate()

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert numbers(endpoint) == [i for i in range(100) if b"id-%d" % i not in poison]
    assert sorted(each.cause for each in store.parked.values()) == ["refused"] * 4
    assert len(endpoint.routes) == 1


@in_virtual_time
async def test_what_a_refusal_shows_to_be_too_large_is_parked_too() -> None:
    """Where a refusal tells a route of a limit, the records behind that are above it become letters; others arrive."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=1)
    store.make("t", *(raw_entry("k", i) for i in range(20)))
    store.metadata["t"] = a_topic()
    poison = {b"id-3", b"id-4", b"id-9", b"id-19"}

    def fate(route: FakeRoute, batch: Batch) -> Fate:
        for at, record in enumerate(batch.records):
            if record.event_id in poison:
                route._too_large = endpoint.too_large = lambda each: each.event_id in poison
                return Fate(arrives=at, error=EntryRefused("larger than 1 MB").at(at, 1))
        return Fate()

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert numbers(endpoint) == [i for i in range(20) if b"id-%d" % i not in poison]
    assert [each.cause for each in store.parked.values()] == ["refused", "too_large", "too_large", "too_large"]


@pytest.mark.guarantee("duplicates", "order-per-object")
@in_virtual_time
async def test_an_endpoint_that_takes_a_few_at_a_time_is_tried_again_soon() -> None:
    """A queue with room for three, which somebody empties at once, gets three after each pause of the first step."""
    store, endpoint, began = FakeStore(), FakeEndpoint(lanes=1), asyncio.get_running_loop().time()
    store.make("t", *(raw_entry(f"k{i}", i) for i in range(300)))
    store.metadata["t"] = a_topic()

    def fate(_: FakeRoute, batch: Batch) -> Fate:
        if len(batch.records) <= 3:
            return Fate()
        return Fate(arrives=3, error=EndpointUnavailable("the queue is full").at(3, 1))

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert numbers(endpoint) == list(range(300))
    assert asyncio.get_running_loop().time() - began < 100 * DeliverySettings().retry_base_s


class Refusing(FakeEndpoint):
    """Refuses `id-0` as HTTP endpoints do: for good where other records arrive meanwhile, else as misconfigured."""

    def __init__(self, on_failure: Callable[[], object]) -> None:
        super().__init__(lanes=1000)
        self.batch_records = 1
        self._on_failure = on_failure
        self._has_failed = False

    async def take(self, route: FakeRoute, batch: Batch) -> None:
        if batch.records[0].event_id != b"id-0":
            await super().take(route, batch)
            return
        before = len(self.arrived)
        await asyncio.sleep(2)
        if not self._has_failed:
            self._has_failed = True
            self._on_failure()
            raise EndpointUnavailable("b is away").at(0, 1)
        if len(self.arrived) == before:
            raise EndpointMisconfigured("b refuses everything").at(0, 3)
        raise EntryRefused("422").at(0, 3)


@in_virtual_time
async def test_a_refused_record_before_many_that_are_done_is_parked() -> None:
    """After a failure the next attempt reads past what has arrived, up to records that show that others are taken."""
    store = FakeStore()
    queue = store.make("t", *(raw_entry(f"k{i}", i) for i in range(100)))
    store.metadata["t"] = a_topic()
    endpoint = Refusing(lambda: queue.append(*(raw_entry(f"k{i}", i) for i in range(100, 140))))

    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert sorted(numbers(endpoint)) == list(range(1, 140))
    assert [each.cause for each in store.parked.values()] == ["refused"]


@in_virtual_time
@pytest.mark.parametrize(("tries", "counted"), [(None, {2, 3, 4}), (0, set()), (1, {2}), (4, {2})])
async def test_whose_attempts_count(tries: int | None, counted: set[int]) -> None:
    """An attempt counts for the record that was tried, or for all that are left where the destination failed."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=1)
    store.make("t", *(raw_entry("k", i) for i in range(5)))
    store.metadata["t"] = a_topic(max_retries=9)
    endpoint.fate = lambda *_: (
        Fate(arrives=2, error=EndpointUnavailable("b is away").at(2, tries))
        if endpoint.pushes == 1
        else Fate(wait_s=1e4)
    )
    worker = a_worker(store, endpoint)

    async with running(worker):
        await until(lambda: endpoint.pushes == 2)
        await until(lambda: tries == 0 or store.queues["t"].attempts)
        noted = {store.queues["t"].positions.index(int(each.split(b"/")[1])) for each in store.queues["t"].attempts}
        counts = {each.count for each in store.queues["t"].attempts.values()}
        store.steal("t", "gone")

    assert noted == counted
    assert counts == ({tries or 1} if counted else set())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=12), st.integers(1, 4), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_every_way_to_fail(script: list[tuple[int, int]], lanes: int, size: int) -> None:
    """Whatever fails, is refused or ends the topic, each entry arrives or has a letter, once, in order per key."""

    @in_virtual_time
    async def work() -> None:
        store, endpoint = FakeStore(), FakeEndpoint(lanes=lanes)
        endpoint.batch_records = size
        store.make("t", *(raw_entry(f"k{i % 3}", i) for i in range(60)))
        store.metadata["t"] = a_topic()
        left = list(script)
        refused: set[bytes] = set()

        def fate(_: FakeRoute, batch: Batch) -> Fate:
            if not left:
                return Fate()
            kind, at = left.pop()
            at %= len(batch.records)
            match kind:
                case 0:
                    return Fate(arrives=at, error=EndpointUnavailable("away").at(at, 1))
                case 1:
                    return Fate(arrives=at, error=EndpointMisconfigured("401").at(at, 1))
                case 2:
                    refused.add(batch.records[at].event_id)
                    return Fate(arrives=at, error=EntryRefused("422").at(at, 3))
                case 3:
                    return Fate(wait_s=0.5, arrives=at, error=EndpointUnavailable("stopped").at(at, 0))
                case _:
                    return Fate(wait_s=0.2)

        endpoint.fate = fate
        async with running(a_worker(store, endpoint)):
            await drained(store)

        parked = len(store.parked)
        assert len(refused) == parked
        assert sorted(endpoint.events()) == sorted({b"id-%d" % i for i in range(60)} - refused)
        for key in range(3):
            of_key = [each for each in numbers(endpoint) if each % 3 == key]
            assert of_key == sorted(of_key)

    work()


@in_virtual_time
async def test_a_destination_that_asks_for_time_gets_it() -> None:
    """Nothing is sent before the time that the destination asked for, however short the pause would be."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic()
    times = []

    def fate(*_: object) -> Fate:
        times.append(asyncio.get_running_loop().time())
        if len(times) > 1:
            return Fate()
        busy = EndpointUnavailable("429")
        busy.retry_after_s = 77.0
        return Fate(arrives=0, error=busy)

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert 77 <= times[1] - times[0] < 80


@in_virtual_time
@pytest.mark.parametrize(
    ("retries", "sleep_s", "quick"), [(None, None, True), (3, None, False), (None, 5, False), (0, 0, True)]
)
async def test_who_may_try_again_at_once(retries: int | None, sleep_s: int | None, quick: bool) -> None:
    """A route may repeat a push itself, but not where a topic limits the number or the pace of attempts."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", raw_entry("k", 0))
    store.metadata["t"] = a_topic(max_retries=retries, retry_sleep_s=sleep_s)

    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert set(endpoint.quick_retries) == {quick}


@in_virtual_time
async def test_targets_that_share_fate_share_a_destination() -> None:
    """Where many paths lead to one host, a look finds out for all of them whether it is back."""
    store, endpoint = FakeStore(), FakeEndpoint()
    for number in range(20):
        store.make(f"t{number}", raw_entry("k", number, topic=f"t{number}"))
        store.metadata[f"t{number}"] = a_topic(f"t{number}", uri=f"kafka://b:9092/{number}", to=f"t{number}")
    endpoint.shared_fate = lambda target: target.uri.rpartition("/")[0]
    endpoint.opening = lambda _: EndpointUnavailable("away")
    endpoint.answering = lambda _: ("", 0.001)

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(60)
        looks = endpoint.looks
        endpoint.opening, endpoint.answering = (lambda _: None), (lambda _: ("1", 0.001))
        await drained(store, within_s=5)

    assert looks <= 65


@in_virtual_time
@pytest.mark.parametrize("shows_load", [True, False])
async def test_a_slow_receiver_says_nothing_of_this_host(shows_load: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long acknowledgements slow the worker's pace only where they are a sign of load."""
    store, endpoint = FakeStore(), FakeEndpoint()
    endpoint.acks_show_load = shows_load
    store.make("t", *(raw_entry(f"k{i}", i) for i in range(50)))
    store.metadata["t"] = a_topic()
    endpoint.fate = lambda *_: Fate(wait_s=0.5)
    told = []
    monkeypatch.setattr(Pace, "acknowledged", lambda _self, seconds: told.append(seconds))

    async with running(a_worker(store, endpoint)):
        await drained(store)

    assert bool(told) is shows_load


@in_virtual_time
async def test_a_mode_that_only_the_settings_ask_for() -> None:
    """A global exactly-once is at-least-once, with a remark, where the endpoint has no transactions."""
    store, endpoint = FakeStore(), FakeEndpoint()
    store.make("t", *(raw_entry("k", i) for i in range(5)))
    store.metadata["t"] = a_topic()

    class Plain:
        def __init__(self) -> None:
            self.schemes, self.check, self.up = endpoint.schemes, endpoint.check, endpoint.up
            self.publishes_letters, self.destination = endpoint.publishes_letters, endpoint.destination
            self.route = endpoint.route

    setup = WorkerSetup("remora/h/b/w1", QUICK, DeliverySettings(mode="exactly-once"))
    worker = Worker(store, [Plain()], Telemetry(), setup, Random(7))
    async with running(worker):
        await drained(store)
        (status,) = worker.shards

    assert status.delivery == "at-least-once"
    assert any("exactly-once" in each for each in status.remarks)
    assert sorted(numbers(endpoint)) == list(range(5))


@in_virtual_time
async def test_few_are_sent_after_a_failure() -> None:
    """After a failure an endpoint gets no more than the entries of a probe until these have arrived, however many wait:
    one that is away, or slow, is not filled with what will be sent again."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=256)
    store.make("t", *(raw_entry(f"k{i}", i) for i in range(500)))
    store.metadata["t"] = a_topic()
    now = asyncio.get_running_loop().time
    works_at = now() + 1
    pushed: set[bytes] = set()

    def fate(route: FakeRoute, batch: Batch) -> Fate:
        if now() < works_at:
            return Fate(wait_s=1, arrives=0, error=EndpointUnavailable("no leader"))
        pushed.update(record.event_id for record in batch.records)
        return Fate(wait_s=60)

    endpoint.fate = fate
    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(50)
        assert 1 <= len(pushed) <= PROBE_ENTRIES
        await drained(store, within_s=36_000)

    assert sorted(endpoint.events()) == sorted(b"id-%d" % i for i in range(500))


@in_virtual_time
async def test_what_arrived_before_a_failure_proves_nothing() -> None:
    """Whole pages that arrived before it are read again first, and a receiver that is away still gets a probe seldom:
    its failures go on in a row."""
    store, endpoint = FakeStore(), FakeEndpoint(lanes=1 << 16)
    store.make("t", *(raw_entry(f"k{i}", i) for i in range(600)))
    store.metadata["t"] = a_topic()
    endpoint.batch_records = 1
    begins, is_away, pushed = True, False, 0

    def fate(_: FakeRoute, batch: Batch) -> Fate:
        nonlocal pushed
        pushed += 1
        if is_away or (begins and batch.records[0].event_id == b"id-0"):
            return Fate(wait_s=0.01 if is_away else 5, arrives=0, error=EndpointUnavailable("away"))
        return Fate(wait_s=0.001)

    endpoint.fate = fate
    async with running(a_worker(store, endpoint, DeliverySettings(list_entries=16))):
        await until(lambda: len(endpoint.arrived) > 100)
        begins, is_away, pushed = False, True, 0
        await asyncio.sleep(40)
        while_away, is_away = pushed, False
        await drained(store)

    assert PROBE_ENTRIES < while_away < 20 * PROBE_ENTRIES
    assert sorted(endpoint.events()) == sorted(b"id-%d" % i for i in range(600))
