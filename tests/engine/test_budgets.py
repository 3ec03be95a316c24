"""Limits of traffic that all workers of a store share: who has how much of them, by what each wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import QUICK, a_topic, running, until
from remora.config import DeliverySettings, MetersSettings, QuarantineSettings, ScopeSettings
from remora.engine.admission.gate import Gate
from remora.engine.admission.shares import WorkerShares
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.errors import StoreUnavailable
from remora.policy.shaping.split import split
from support.credit import Host, a_meter, shaping

LIMIT = 200_000
SCOPE = ScopeSettings(
    name="all",
    of="topic",
    each=False,
    across="cluster",
    enabled=True,
    meters=MetersSettings(
        **dict.fromkeys(("max", "client_high", "client_normal"), a_meter(10_000, 10_000)),
        client_low=a_meter(LIMIT - 30_000, 40_000, LIMIT - 30_000),
    ),
)


class OneHost:
    """A host with one worker on a store of several hosts; its supervisor hears of shares at once."""

    def __init__(self, store: FakeStore, number: int) -> None:
        settings = shaping(SCOPE)
        self.telemetry, self.endpoint = Telemetry(), FakeEndpoint()
        self.host = Host(settings, seed=number)
        self.shares: list[Mapping[str, int]] = []
        budgets = WorkerShares()
        budgets.on_change = self._hear
        self.gate = gate = Gate(self.telemetry, self.host.bank(), budgets)
        self.configure()
        setup = WorkerSetup(
            f"remora/h{number}/b/w{number}", QUICK, DeliverySettings(), 2, None, gate, QuarantineSettings(), budgets
        )
        self.worker = Worker(store, [self.endpoint], self.telemetry, setup, Random(7))

    def configure(self, *, is_shaped: bool = True) -> None:
        """Have its worker share the limit, or none."""
        settings = shaping(*([SCOPE] if is_shaped else []))
        self.gate.configure(settings.rules, settings.tick_s)

    def _hear(self, shares: Mapping[str, int]) -> None:
        self.shares.append(shares)
        self.host.shaper.share(0, shares)

    @property
    def share(self) -> int:
        """What its workers may send in a second."""
        return self.host.shaper.shared("all")

    @property
    def sent(self) -> int:
        """Bytes that arrived."""
        return sum(len(record.body) for _, record in self.endpoint.arrived)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.host.dealing(), running(self.worker):
            yield


def a_store(queues: int) -> FakeStore:
    store = FakeStore(tells=True)
    for number in range(queues):
        store.make(f"t.{number}")
        store.metadata[f"t.{number}"] = a_topic(f"t.{number}")
    return store


def fill(store: FakeStore, host: OneHost, entries: int = 20_000) -> None:
    """A backlog in a queue of this host."""
    queue = host.worker.ownership.shards[0].queue
    store.queues[queue].append(*(raw_entry("k", i, padding=1_000) for i in range(entries)))


@in_virtual_time
async def test_hosts_share_a_limit_by_what_they_want() -> None:
    """The only busy host has all but the small share of the other; two busy ones have half each; shares always add up
    to the limit once the rows are known, and what is sent is the limit."""
    store = a_store(4)
    one, other = OneHost(store, 1), OneHost(store, 2)
    async with AsyncExitStack() as stack:
        for each in (one, other):
            await stack.enter_async_context(each.running())
        await until(lambda: one.worker.held_shards == other.worker.held_shards == 2)
        assert {one.share, other.share} == {LIMIT // 2}
        fill(store, one)
        await asyncio.sleep(3)
        assert split(LIMIT, {"1": None, "2": 0}) == {"1": one.share, "2": other.share}

        before = one.sent
        await asyncio.sleep(20)
        low = SCOPE.by_bucket["client_low"].guaranteed * one.share // LIMIT
        assert 0.9 * low * 20 <= one.sent - before <= 1.05 * low * 20

        fill(store, other)
        await asyncio.sleep(3)
        assert (one.share, other.share) == (LIMIT // 2, LIMIT // 2)
        before = one.sent + other.sent
        await asyncio.sleep(20)
        assert 0.9 * LIMIT * 17 <= one.sent + other.sent - before <= LIMIT * 20


@in_virtual_time
async def test_a_host_learns_the_shares_of_a_limit_again_when_limits_change() -> None:
    """A worker says its shares at each change of limits, also equal ones, and not while limits stay as they are."""
    told: list[Mapping[str, int]] = []
    budgets = WorkerShares()
    budgets.on_change = told.append
    budgets.see("b", {"a": (), "b": ()})
    budgets.configure({"all": 101}, tuple)
    budgets.configure({"all": 101}, tuple)
    budgets.configure({"all": 100}, tuple)
    budgets.configure({"all": 60}, tuple)
    assert told == [{"all": 50}, {"all": 50}, {"all": 30}]


@in_virtual_time
async def test_shares_stand_while_the_rows_cannot_be_read() -> None:
    """A host goes on with its last share, however busy it is, and follows again when it sees the others."""
    store = a_store(4)
    one, other = OneHost(store, 1), OneHost(store, 2)
    async with AsyncExitStack() as stack:
        for each in (one, other):
            await stack.enter_async_context(each.running())
        await until(lambda: one.worker.held_shards == other.worker.held_shards == 2)
        store.before = lambda call: StoreUnavailable("away") if call == "members" else None
        fill(store, one)
        before = len(one.shares)
        await asyncio.sleep(60)
        assert (one.share, len(one.shares)) == (LIMIT // 2, before)
        store.before = lambda _: None
        await asyncio.sleep(3)
        assert one.share == split(LIMIT, {"1": None, "2": 0})["1"]


@in_virtual_time
async def test_the_first_group_is_shared_with_workers_that_were_seen_before() -> None:
    """A limit that comes while the rows cannot be read is divided at once among the workers of the last look."""
    store = a_store(4)
    one, other = OneHost(store, 1), OneHost(store, 2)
    async with AsyncExitStack() as stack:
        for each in (one, other):
            each.configure(is_shaped=False)
            await stack.enter_async_context(each.running())
        await until(lambda: one.worker.held_shards == other.worker.held_shards == 2)
        store.before = lambda call: StoreUnavailable("away") if call == "members" else None
        one.shares.clear()

        one.configure()

        assert one.shares == [{"all": LIMIT // 2}]
        await asyncio.sleep(60)
        assert one.share == LIMIT // 2


@in_virtual_time
async def test_the_share_of_a_host_that_ends_goes_to_the_others() -> None:
    """As soon as its row is gone those that are left have the whole limit."""
    store = a_store(4)
    one, other = OneHost(store, 1), OneHost(store, 2)
    async with one.running():
        async with other.running():
            await until(lambda: one.worker.held_shards == other.worker.held_shards == 2)
            assert one.share + other.share == LIMIT
        await asyncio.sleep(3)
        assert one.share == LIMIT


@in_virtual_time
async def test_a_worker_that_never_saw_the_others_takes_the_whole_limit() -> None:
    """Where the rows could never be read, what waits is sent at the limit, and nothing is before the first look."""
    store = a_store(1)
    store.before = lambda call: StoreUnavailable("away") if call == "members" else None
    host = OneHost(store, 1)
    assert host.share == 0
    assert host.host.shaper.groups["all"].limit == 0
    async with host.running():
        await until(lambda: host.worker.held_shards == 1)
        assert host.share == LIMIT
        fill(store, host, 100)
        await until(lambda: len(host.endpoint.arrived) == 100, within_s=10)
