"""Entries that are listed and not acknowledged: bounded for each topic and for each destination."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeStore, Fate, Verdict
from engine.runs import a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings
from remora.engine.admission.gate import Gate
from remora.metrics import Telemetry
from remora.model.errors import EndpointUnavailable
from remora.model.record import Page
from remora.model.shard import LockToken
from remora.model.topic import Delivery
from remora.model.traffic import Priority
from remora.policy.admission.limits import EntryLimit
from remora.policy.admission.line import Demand

BOTH = pytest.mark.parametrize("mode", Delivery)
SHARDS = 11
EACH = 300


class WatchedStore(FakeStore):
    """Counts what was listed of each topic and has not arrived, and notes the most that there was of each."""

    def __init__(self, endpoint: FakeEndpoint, *topics: str) -> None:
        super().__init__(tells=True)
        self.endpoint = endpoint
        self.most: Counter[str] = Counter()
        self.most_of_all = 0
        self._listed: Counter[str] = Counter()
        for topic in topics:
            for number in range(SHARDS):
                name = f"{topic}.{number}"
                self.make(name, *(raw_entry(f"{name}-{i}", i, topic=topic) for i in range(EACH)))
                self.metadata[name] = replace(a_topic(name, to=topic), name=topic)

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        page = await super().read(token, start, limit)
        queue = self.queues[token.shard.queue]
        if start or limit > 1:  # else it is but a look
            last = queue.positions.index(int(page.positions[-1].partition(b"/")[2]))
            self._listed[token.shard.queue] = max(last, self._listed[token.shard.queue])
        arrived = Counter(topic for topic, _ in self.endpoint.arrived)
        under_way: Counter[str] = Counter()
        for name, listed in self._listed.items():
            under_way[name.partition(".")[0]] += listed
        under_way.subtract(arrived)
        self.most |= under_way
        self.most_of_all = max(self.most_of_all, under_way.total())
        return page


def slow(endpoint: FakeEndpoint) -> None:
    """Each answer takes a while."""
    endpoint.fate = lambda *_: Fate(wait_s=0.5)
    endpoint.verdict = lambda *_: Verdict(wait_s=0.5)


@BOTH
@in_virtual_time
async def test_no_more_entries_of_a_topic_are_under_way_than_allowed(mode: Delivery) -> None:
    """Of eleven shards together, of each topic for itself; all are delivered, and nothing is held in the end."""
    endpoint, telemetry = FakeEndpoint(), Telemetry()
    slow(endpoint)
    store = WatchedStore(endpoint, "a", "b")
    delivery = DeliverySettings(mode=mode.value, max_unacked=100)
    async with running(worker := a_worker(store, endpoint, delivery, telemetry=telemetry)):
        await drained(store)

    assert store.most == {"a": 100, "b": 100}
    assert store.most_of_all > 100
    assert len(endpoint.arrived) == 2 * SHARDS * EACH
    assert worker.entries.held == 0
    assert sample_value(telemetry.registry, "remora_unacknowledged_waits_total", {"of": "topic"})


@BOTH
@in_virtual_time
async def test_no_more_entries_of_a_destination_are_under_way_than_allowed(mode: Delivery) -> None:
    """Of all topics that go there together, each of which may have some of them."""
    endpoint, telemetry = FakeEndpoint(), Telemetry()
    slow(endpoint)
    store = WatchedStore(endpoint, "a", "b")
    delivery = DeliverySettings(mode=mode.value, destination_max_unacked=100, max_unacked=80)
    async with running(worker := a_worker(store, endpoint, delivery, telemetry=telemetry)):
        await drained(store)

    assert store.most_of_all == 100
    assert max(store.most.values()) == 80
    assert len(endpoint.arrived) == 2 * SHARDS * EACH
    assert worker.entries.held == 0
    assert sample_value(telemetry.registry, "remora_unacknowledged_waits_total", {"of": "destination"})


@BOTH
@in_virtual_time
async def test_a_reload_lifts_the_bound_at_once(mode: Delivery) -> None:
    """Shards that wait for acknowledgements list when there may be more, although none has come."""
    endpoint = FakeEndpoint()
    endpoint.fate = lambda *_: Fate(wait_s=300)
    endpoint.verdict = lambda *_: Verdict(wait_s=300)
    store = WatchedStore(endpoint, "a")
    bounded = DeliverySettings(mode=mode.value, max_unacked=50, drain_timeout_s=600)
    async with running(worker := a_worker(store, endpoint, bounded)):
        await until(lambda: worker.entries.held == 50)
        await asyncio.sleep(60)
        assert store.most == {"a": 50}
        assert any("max_unacked" in each.reason for each in worker.shards)

        worker.reload(replace(bounded, max_unacked=0))
        await until(lambda: worker.entries.held == SHARDS * EACH, within_s=60)
        assert not any(each.reason for each in worker.shards)


@BOTH
@in_virtual_time
async def test_what_failed_is_not_under_way_any_more(mode: Delivery) -> None:
    """While a destination fails its shards are tried in turn within the bound, and all is delivered when it is back."""
    endpoint = FakeEndpoint()
    gone = EndpointUnavailable("gone")
    endpoint.fate = lambda *_: Fate(wait_s=1, arrives=0, error=gone)
    endpoint.verdict = lambda *_: Verdict(happens=False, error=gone)
    store = WatchedStore(endpoint, "a")
    delivery = DeliverySettings(mode=mode.value, max_unacked=30, retry_cap_s=2)
    async with running(worker := a_worker(store, endpoint, delivery)):
        await asyncio.sleep(120)
        tried = {each.shard.queue if mode is Delivery.AT_LEAST_ONCE else "" for each in endpoint.routes}
        assert worker.entries.held <= 30
        endpoint.fate = lambda *_: Fate()
        endpoint.verdict = lambda *_: Verdict()
        await drained(store)

    assert mode is Delivery.EXACTLY_ONCE or len(tried) == SHARDS
    assert len({record.event_id for _, record in endpoint.arrived}) == EACH
    assert len(endpoint.arrived) == SHARDS * EACH
    assert worker.entries.held == 0


@BOTH
@in_virtual_time
async def test_room_for_entries_that_were_smaller_is_given_back(mode: Delivery) -> None:
    """Where entries are smaller than expected the bytes taken for them do not pile up while a bound makes listings
    short: all of a long backlog is delivered, and a queue never holds more bytes than it may."""
    store, endpoint, most = FakeStore(tells=True), FakeEndpoint(), 0
    store.make("t", *(raw_entry("k", i, padding=6000 * (i % 100 < 20)) for i in range(3000)))
    store.metadata["t"] = a_topic()
    small = DeliverySettings(
        mode=mode.value, max_unacked=20, shard_bytes=256 << 10, endpoint_bytes=256 << 10, worker_bytes=512 << 10
    )
    worker = a_worker(store, endpoint, small)

    def held() -> Fate:
        nonlocal most
        most = max(most, worker.budget.held)
        return Fate()

    endpoint.fate = lambda *_: held()
    endpoint.verdict = lambda *_: Verdict(held().wait_s)
    async with running(worker):
        await drained(store, within_s=600)

    assert len(endpoint.arrived) == 3000
    assert 0 < most <= 200 << 10
    assert worker.budget.held == 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), mode=st.sampled_from(Delivery))
def test_no_bounds_and_sizes_make_shards_wait_for_each_other(seed: int, mode: Delivery) -> None:
    """Shards of two topics, entries of any sizes, narrow bounds of bytes and of entries, and a destination that fails
    now and then: all is delivered, and nothing is held in the end."""

    @in_virtual_time
    async def play() -> None:
        rng = Random(seed)
        store, endpoint = FakeStore(tells=rng.random() < 0.5), FakeEndpoint()
        for number in range(6):
            name, topic = f"q{number}", rng.choice(["a", "b"])
            large = rng.choice([0.0, 0.05, 0.5])
            sizes = [rng.randrange(9000) * (rng.random() < large) for _ in range(rng.randrange(400))]
            store.make(name, *(raw_entry(f"{name}-{i % 9}", i, padding=size) for i, size in enumerate(sizes)))
            store.metadata[name] = replace(a_topic(name, to=topic), name=topic)
        gone = EndpointUnavailable("gone")
        calm_at = asyncio.get_running_loop().time() + 60

        def fails() -> bool:
            return asyncio.get_running_loop().time() < calm_at and rng.random() < 0.1

        endpoint.fate = lambda *_: Fate(rng.random(), 0, gone) if fails() else Fate(rng.random())
        endpoint.verdict = lambda *_: Verdict(rng.random(), happens=not (bad := fails()), error=gone if bad else None)
        delivery = DeliverySettings(
            mode=mode.value,
            list_entries=rng.choice([4, 1024]),
            transaction_records=rng.choice([50, 5000]),
            max_unacked=rng.choice([0, 10, 60]),
            destination_max_unacked=rng.choice([0, 20, 60]),
            shard_bytes=rng.choice([32, 256]) << 10,
            endpoint_bytes=256 << 10,
            worker_bytes=512 << 10,
            retry_cap_s=2,
        )
        async with running(worker := a_worker(store, endpoint, delivery)):
            await drained(store, within_s=1200)

        assert len(endpoint.arrived) == sum(len(each.entries) for each in store.queues.values())
        assert (worker.entries.held, worker.budget.held) == (0, 0)

    play()


@in_virtual_time
async def test_who_waits_for_acknowledgements_is_served_by_priority() -> None:
    """Entries that are acknowledged go to the shard of the highest priority that waits, whoever asked first; of equals
    to the one that waits longest."""
    bound, gate, order = EntryLimit(lambda: 10), Gate(Telemetry()), list[str]()
    assert gate.admit_now(Demand(Priority.IDLE, (bound,), 10))
    bound.listed(10, 10)

    async def ask(name: str, priority: Priority) -> None:
        await gate.admit(Demand(priority, (bound,), 10))
        order.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name, priority in (
            ("low", Priority.CLIENT_LOW),
            ("live", Priority.CLIENT_NORMAL),
            ("again", Priority.CLIENT_NORMAL),
        ):
            tasks.create_task(ask(name, priority))
            await asyncio.sleep(0.001)
        gate.free(bound.listed(0, -10))
        for _ in range(3):
            await asyncio.sleep(0.001)
            gate.free(bound.listed(10, 0))

    assert order == ["live", "again", "low"]


class Askers:
    """Sessions of one topic, as far as they ask for entries, list them and have them done."""

    def __init__(self, most: int, within: int, chance: Random) -> None:
        self.bounds = {"most": most, "within": within}
        self.gate = Gate(Telemetry())
        self.wide = EntryLimit(lambda: self.bounds["within"])
        self.narrow = EntryLimit(lambda: self.bounds["most"])
        self._chance = chance
        self._asking: list[tuple[Demand, asyncio.Task[None]]] = []
        self._asked: list[int] = []
        self._held: list[int] = []

    @property
    def least(self) -> int | None:
        """The smaller bound; None where there is none."""
        return min((each for each in self.bounds.values() if each), default=None)

    @property
    def let_through(self) -> int:
        """What the narrow bound has let through, part of which may wait for the wide one; a lower bound undoes none."""
        return self.narrow._unacked.asked + self.narrow.held

    @property
    def granted(self) -> int:
        return sum(self._asked) + sum(self._held)

    def step(self, step: str, amount: int, tasks: asyncio.TaskGroup) -> None:
        match step:
            case "ask":
                request = Demand(Priority.CLIENT_LOW, (self.narrow, self.wide), amount)
                self._asking.append((request, tasks.create_task(self.gate.admit(request))))
            case "cancel" if self._asking:
                self._asking.pop(self._chance.randrange(len(self._asking)))[1].cancel()
            case "list" if self._asked:
                asked = self._some(self._asked)
                self._held.append(self._chance.randint(0, asked))
                self._listed(asked, self._held[-1])
            case "done" if self._held:
                self._listed(0, -self._some(self._held))
            case "bound":
                self.bounds[self._chance.choice(["most", "within"])] = amount
                self.gate.free((self.wide, self.narrow))

    def _listed(self, asked: int, entries: int) -> None:
        self.gate.free([freed for each in (self.narrow, self.wide) for freed in each.listed(asked, entries)])

    def _some(self, of: list[int]) -> int:
        return of.pop(self._chance.randrange(len(of)))

    async def settle(self) -> None:
        """All that may go on by now has gone on."""
        await asyncio.sleep(0.001)
        self._asked += [request.want for request, each in self._asking if each.done()]
        self._asking = [each for each in self._asking if not each[1].done()]
        assert self.narrow.held == self.wide.held == sum(self._held)

    async def end(self) -> None:
        """All get what they ask for, one after the other."""
        while self._asking or self._asked or self._held:
            self._listed(sum(self._asked), -sum(self._held))
            self._asked, self._held = [], []
            await self.settle()


@settings(max_examples=200)
@given(
    most=st.integers(0, 20),
    within=st.integers(0, 20),
    steps=st.lists(st.tuples(st.sampled_from(("ask", "cancel", "list", "done", "bound")), st.integers(1, 12))),
    seed=st.integers(0, 2**32),
)
def test_a_bound_is_kept_and_nobody_is_forgotten(
    most: int, within: int, steps: list[tuple[str, int]], seed: int
) -> None:
    """Whatever is asked for, listed, done and cancelled: no more is granted than both bounds allow, and in the end all
    who ask get something and nothing is held."""

    @in_virtual_time
    async def play() -> None:
        askers = Askers(most, within, Random(seed))
        async with asyncio.TaskGroup() as tasks:
            for step, amount in steps:
                before, let_through = askers.granted, askers.let_through
                askers.step(step, amount, tasks)
                await askers.settle()
                through = min(let_through, askers.bounds["within"] or let_through)
                assert askers.least is None or askers.granted <= max(askers.least, before, through)
            async with asyncio.timeout(60):
                await askers.end()
        assert askers.narrow.held == askers.wide.held == 0
        assert askers.gate.admit_now(Demand(Priority.IDLE, (askers.narrow, askers.wide), 1))

    play()


def test_a_shard_whose_entries_were_mostly_done_lists_more() -> None:
    """Where a tenth of the entries make records, ten times as many are listed for what may be sent."""
    bound, gate = EntryLimit(lambda: 50), Gate(Telemetry())

    def asked(mean: float | None) -> int:
        request = Demand(Priority.CLIENT_LOW, (bound,), 1000, mean=mean)
        return request.want if gate.admit_now(request) else 0

    assert asked(0.1) == 500
    assert asked(0.1) == 0
    bound.listed(500, 40)
    assert asked(None) == 10
