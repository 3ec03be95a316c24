"""Room for a shard of a higher priority: others turn back pages of which nothing was begun, and read them again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeExactRoute, FakeRoute, FakeStore, Fate, Verdict
from engine.places import Place
from engine.runs import a_topic, a_worker, drained, running, until
from remora.codec.topic import TRAFFIC_CLASS
from remora.config import DeliverySettings
from remora.engine.admission.givers import Giver, Givers, PageAhead
from remora.engine.delivery.lane_queues import InFlightBatch, LaneQueues
from remora.metrics import Telemetry
from remora.model.errors import EndpointUnavailable, RemoraError, StoreUnavailable
from remora.model.ledger import Cause, Tally
from remora.model.record import Page
from remora.model.shard import LockToken
from remora.model.topic import Delivery
from remora.model.traffic import Priority
from remora.policy.admission.line import Shortage
from remora.policy.delivery.acks import PageAcks
from remora.ports.endpoint import Batch
from support.kafka_sender import make_records

OLD_S = 1_700_000_000.0
SLOW_S = 30.0
BACKLOGS = tuple(f"b{number}" for number in range(9))
SMALL = {"shard_bytes": 64 << 10, "endpoint_bytes": 128 << 10, "worker_bytes": 512 << 10}


class NotedStore(FakeStore):
    """Notes which queue each page of entries was read from, and how many there were."""

    def __init__(self) -> None:
        super().__init__(tells=True)
        self.pages: list[tuple[str, int]] = []

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        page = await super().read(token, start, limit)
        if page.entries and (start or limit > 1):  # else it is but a look
            self.pages.append((token.shard.queue, len(page.entries)))
        return page

    def add(self, queue: str, entries: int, *, created: float = OLD_S, args: str = "", padding: int = 0) -> None:
        some = [raw_entry(f"{queue}-{i % 7}", i, topic=queue, created=created, padding=padding) for i in range(entries)]
        self.make(queue, *some)
        self.metadata[queue] = a_topic(queue, to=queue, args=args)


class SlowEndpoint(FakeEndpoint):
    """Backlogs are answered slowly, all else at once; one lane, so that a page waits while the one before is sent."""

    def __init__(self) -> None:
        super().__init__(lanes=1)
        self.shared_fate = lambda target: target.uri
        self.fate = self._fate
        self.verdict = self._verdict

    def _fate(self, route: FakeRoute, _batch: Batch) -> Fate:
        return Fate(SLOW_S if route.target.topic in BACKLOGS else 0.001)

    def _verdict(self, route: FakeExactRoute, _batches: Sequence[Batch]) -> Verdict:
        return Verdict(SLOW_S if route.target.topic in BACKLOGS else 0.02)

    def numbers(self, topic: str) -> list[int]:
        return [int(each.removeprefix(b"id-")) for each in self.events(topic)]


def turned_back(telemetry: Telemetry, priority: Priority) -> float:
    name = "remora_turned_back_entries_total"
    return sample_value(telemetry.registry, name, {"priority": str(priority)}) or 0.0


def settings_of(mode: Delivery) -> DeliverySettings:
    return DeliverySettings(mode=mode.value, drain_timeout_s=600, list_entries=8, transaction_records=24, **SMALL)


async def in_the_way(store: NotedStore, how: str, *, created: float = OLD_S) -> Priority:
    """Fill the destination with what `BACKLOGS` read ahead, and return their priority.

    By "age" their queues are long and old. By "class" their topics ask for little, and all of their queues is read: one
    page is sent and one waits, which would be a transaction that is packed if the queues were longer.
    """
    if how == "age":
        for name in BACKLOGS:
            store.add(name, 300, created=created)
        await asyncio.sleep(10)
        return Priority.CLIENT_LOW
    for name in BACKLOGS:
        store.add(name, 16, args=f"{TRAFFIC_CLASS}=replay", padding=500)
    await asyncio.sleep(10)
    for name in BACKLOGS:
        store.queues[name].append(*(raw_entry(f"{name}-{i % 7}", i, padding=500) for i in range(16, 30)))
    await asyncio.sleep(10)
    return Priority.BACKGROUND


HOW = [("age", Delivery.AT_LEAST_ONCE), ("class", Delivery.AT_LEAST_ONCE), ("class", Delivery.EXACTLY_ONCE)]


@pytest.mark.parametrize(
    ("how", "mode", "was_known"), [*((*each, True) for each in HOW), ("age", Delivery.AT_LEAST_ONCE, False)]
)
@in_virtual_time
async def test_a_live_shard_finds_room_beside_others(how: str, mode: Delivery, was_known: bool) -> None:
    """Shards of a lower priority fill a destination that answers slowly. An entry of a live shard, idle or never served
    before, is read before any of them reads again, and arrives before any more of theirs; what was turned back arrives
    once, in order, and it alone is listed twice."""
    store, endpoint, telemetry = NotedStore(), SlowEndpoint(), Telemetry()
    store.add("live", int(was_known), padding=5000)
    async with running(worker := a_worker(store, endpoint, settings_of(mode), telemetry=telemetry)):
        await asyncio.sleep(1)
        priority = await in_the_way(store, how)
        read = len(store.pages)

        store.queues["live"].append(raw_entry("k", 5, topic="live"))
        await until(lambda: 5 in endpoint.numbers("live"), within_s=5)

        assert store.pages[read][0] == "live"
        assert not any(endpoint.numbers(name) for name in BACKLOGS)
        assert turned_back(telemetry, priority) > 0 or not was_known  # who asks for little may find room as it is
        await drained(store, within_s=36_000)

    for name in BACKLOGS:
        assert endpoint.numbers(name) == list(range(len(store.queues[name].entries)))
    listed = sum(
        sample_value(telemetry.registry, "remora_listed_entries_total", {"topic": each}) or 0 for each in BACKLOGS
    )
    assert listed - sum(len(store.queues[name].entries) for name in BACKLOGS) == turned_back(telemetry, priority)
    assert (worker.budget.held, worker.entries.held) == (0, 0)


class StoreThatHoldsOn(NotedStore):
    """One page comes when the gate is open: one behind others, of which nothing was begun."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        if len(self.pages) == 8 and not self.asked.is_set():
            self.asked.set()
            await self.gate.wait()
        return await super().read(token, start, limit)


@pytest.mark.parametrize("mode", list(Delivery))
@in_virtual_time
async def test_a_page_is_thrown_away_that_is_read_while_those_before_it_are_turned_back(mode: Delivery) -> None:
    """Nothing that was read behind pages which gave way is sent before these: all arrives once and in order, and no
    session fails."""
    store, endpoint, telemetry = StoreThatHoldsOn(), SlowEndpoint(), Telemetry()
    settings = replace(settings_of(mode), transaction_time_s=3600)
    givers: dict[Giver, None] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Givers, "add", lambda _, giver, __: givers.setdefault(giver))
        async with running(a_worker(store, endpoint, settings, telemetry=telemetry)):
            store.add(BACKLOGS[0], 300)
            await store.asked.wait()
            (giver,) = givers
            pages = len(giver.ahead())
            assert pages > 0
            giver.return_pages(pages, Priority.CLIENT_LOW)
            store.gate.set()
            await drained(store, within_s=36_000)

    assert endpoint.numbers(BACKLOGS[0]) == list(range(300))
    assert turned_back(telemetry, Priority.CLIENT_LOW) > 0
    assert store.calls["acquire"] == 1


@in_virtual_time
async def test_a_page_whose_letters_are_being_stored_is_kept() -> None:
    """A page of which an entry is given up stays while a live shard asks for its room: else what stands behind that
    entry would be sent twice, or ahead of what stands before it."""
    store, endpoint = NotedStore(), SlowEndpoint()
    for name in BACKLOGS:
        store.add(name, 300)
        store.queues[name].entries[20] = b"x" * len(store.queues[name].entries[20])
    store.before = lambda call: 4 * SLOW_S if call == "store_letters" else None
    async with running(a_worker(store, endpoint, settings_of(Delivery.AT_LEAST_ONCE))):
        await until(lambda: store.calls["store_letters"] == len(BACKLOGS))
        store.add("live", 1, padding=5000)
        await drained(store, within_s=36_000)

    assert endpoint.numbers("live") == [0]
    for name in BACKLOGS:
        assert endpoint.numbers(name) == [i for i in range(300) if i != 20]


@pytest.mark.parametrize(("how", "mode"), HOW)
@pytest.mark.parametrize("asks_as", ["replay", "idle"])
@in_virtual_time
async def test_nobody_gives_way_to_the_same_or_a_lower_priority(how: str, mode: Delivery, asks_as: str) -> None:
    """A shard whose priority is not above theirs waits until entries of the others are acknowledged."""
    store, endpoint, telemetry = NotedStore(), SlowEndpoint(), Telemetry()
    async with running(a_worker(store, endpoint, settings_of(mode), telemetry=telemetry)):
        priority = await in_the_way(store, how)
        store.add("late", 1, args=f"{TRAFFIC_CLASS}={asks_as}")
        await until(lambda: endpoint.numbers("late"), within_s=36_000)

        assert any(endpoint.numbers(name) for name in BACKLOGS)
        assert turned_back(telemetry, priority) == 0
        await drained(store, within_s=36_000)


def a_crowd(rng: Random, store: FakeStore) -> list[str]:
    """Queues of several classes, with backlogs of any sizes or none; their names."""
    names = [f"q{number}" for number in range(rng.randint(2, 6))]
    for name in names:
        size = rng.choice([0, 300, 2000])
        args = rng.choice(["", f"{TRAFFIC_CLASS}=replay", f"{TRAFFIC_CLASS}=idle"])
        store.make(
            name, *(raw_entry(f"{name}-{i % 5}", i, padding=rng.randrange(1 + size)) for i in range(rng.randrange(500)))
        )
        store.metadata[name] = replace(a_topic(name, to=name, args=args), name=name)
    return names


def narrow(rng: Random, mode: Delivery) -> DeliverySettings:
    """Bounds for which a few queues are too many."""
    return DeliverySettings(
        mode=mode.value,
        list_entries=rng.choice([8, 1024]),
        transaction_records=rng.choice([20, 5000]),
        max_unacked=rng.choice([0, 0, 60]),
        shard_bytes=rng.choice([16, 64]) << 10,
        endpoint_bytes=64 << 10,
        worker_bytes=rng.choice([64, 256]) << 10,
        read_ahead_watermark=rng.choice([0, 50, 90, 100]),
        retry_cap_s=3,
    )


async def events_come(rng: Random, store: FakeStore, names: Sequence[str]) -> None:
    """For a minute or so a few events come again and again, into one of the queues."""
    for _ in range(rng.randrange(40)):
        await asyncio.sleep(rng.random() * 3)
        queue = store.queues[name := rng.choice(names)]
        first = len(queue.entries)
        queue.append(*(raw_entry(f"{name}-{i % 5}", i) for i in range(first, first + rng.randrange(1, 9))))


def by_key(endpoint: FakeEndpoint, topic: str) -> dict[bytes, list[int]]:
    """The numbers of a topic's events as they arrived."""
    found: dict[bytes, list[int]] = {}
    for name, record in endpoint.arrived:
        if name == topic:
            found.setdefault(record.key, []).append(int(record.event_id.removeprefix(b"id-")))
    return found


@example(seed=1033, mode=Delivery.EXACTLY_ONCE)  # each of four waits for room, and two hold some that is empty
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), mode=st.sampled_from(Delivery))
def test_whatever_is_turned_back_arrives_once_in_order(seed: int, mode: Delivery) -> None:
    """Live shards and backlogs of any sizes share narrow bounds, and nothing fails: each entry arrives once, those of a
    key in order, so nothing that was begun is turned back; in the end nothing is held."""

    @in_virtual_time
    async def play() -> None:
        rng = Random(seed)
        store, endpoint = FakeStore(tells=rng.random() < 0.5), FakeEndpoint(lanes=rng.randint(1, 4))
        endpoint.shared_fate = lambda target: target.uri
        endpoint.batch_records = rng.randint(1, 60)
        store.before = lambda _: rng.choice([0.0, 0.0, 0.05])
        endpoint.fate = lambda *_: Fate(rng.random() * 3)
        endpoint.verdict = lambda *_: Verdict(rng.random() * 3)
        names = a_crowd(rng, store)
        async with running(worker := a_worker(store, endpoint, narrow(rng, mode))):
            await events_come(rng, store, names)
            await drained(store, within_s=36_000)

        for name in names:
            arrived = by_key(endpoint, name)
            assert sum(map(len, arrived.values())) == len(store.queues[name].entries)
            assert all(each == sorted(set(each)) for each in arrived.values())
        assert (worker.entries.held, worker.budget.held) == (0, 0)

    play()


TROUBLE_S = 60.0


class Trouble:
    """What fails for a minute: the store before and after a call, batches as a whole or in part, and transactions."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.failures = 0

    def store(self, call: str) -> RemoraError | float:
        if self._hits(0.05):
            return StoreUnavailable(f"{call}: no answer")
        return self.rng.choice([0.0, 0.0, 0.05])

    def fate(self, _route: FakeRoute, batch: Batch) -> Fate:
        if self._hits(0.1):
            arrives = self.rng.choice([None, 0, len(batch.records) // 2])
            return Fate(self.rng.random() * 3, arrives, EndpointUnavailable("no answer"))
        return Fate(self.rng.random() * 3)

    def verdict(self, _route: FakeExactRoute, _batches: Sequence[Batch]) -> Verdict:
        if self._hits(0.2):
            return Verdict(self.rng.random() * 3, self.rng.random() < 0.5, 0.0, EndpointUnavailable("no answer"))
        return Verdict(self.rng.random() * 3)

    def _hits(self, chance: float) -> bool:
        hit = asyncio.get_running_loop().time() < TROUBLE_S and self.rng.random() < chance
        self.failures += hit
        return hit


@pytest.mark.parametrize("mode", Delivery)
def test_turning_back_loses_and_reorders_nothing_while_much_fails(mode: Delivery) -> None:
    """While pages are turned back, the store, batches and transactions fail, late or half: every entry arrives, the
    first ones of a key in order, each once with exactly-once; the ledgers are right, and nothing is held in the end."""
    turns: list[float] = []

    @in_virtual_time
    async def play(seed: int) -> None:
        rng = Random(seed)
        store, endpoint = FakeStore(tells=rng.random() < 0.5), FakeEndpoint(lanes=rng.randint(1, 4))
        trouble, telemetry = Trouble(rng), Telemetry()
        endpoint.shared_fate = lambda target: target.uri
        endpoint.batch_records = rng.randint(1, 60)
        store.before = store.after = trouble.store
        endpoint.fate, endpoint.verdict = trouble.fate, trouble.verdict
        names = a_crowd(rng, store)
        async with running(worker := a_worker(store, endpoint, narrow(rng, mode), telemetry=telemetry)):
            await events_come(rng, store, names)
            await drained(store, within_s=36_000)

        for name in names:
            arrived, entries = by_key(endpoint, name), len(store.queues[name].entries)
            assert {number for each in arrived.values() for number in each} == set(range(entries))
            assert all(list(dict.fromkeys(each)) == sorted(set(each)) for each in arrived.values())
            if mode is Delivery.EXACTLY_ONCE:
                assert sum(map(len, arrived.values())) == entries
            assert store.queues[name].ledger == Tally(delivered=entries)
        assert (worker.entries.held, worker.budget.held) == (0, 0)
        if trouble.failures:
            turns.append(sum(turned_back(telemetry, each) for each in Priority))

    for seed in range(25):
        play(seed)
    assert sum(each > 0 for each in turns) > 5


# ------------------------------------------------------------------------------- what waits in the lanes


class OneLane:
    """A batch of a lane."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.records = make_records(0, 1)


def a_page(queues: LaneQueues, first: int, lanes: Sequence[int]) -> PageAhead:
    page = Page([b"0/%d" % (first + i) for i in range(3)], [b"a", b"b"], truncated=True)
    acks = PageAcks(page.positions)
    for lane in lanes:
        queues.add(InFlightBatch(page, acks, OneLane(lane), 0.0))
    return PageAhead(acks, page.nbytes, batches=len(lanes))


def test_a_page_of_which_a_batch_was_begun_is_not_turned_back() -> None:
    """Nor one before it: only the newest pages with all batches waiting and nothing done, and only these leave."""
    queues = LaneQueues()
    old, middle, new = (a_page(queues, first, (0, 1)) for first in (0, 2, 4))
    assert queues.untouched([old, middle, new]) == 3

    begun = queues.begin(1)
    assert begun is not None
    assert begun.acks is old.acks
    assert queues.untouched([old, middle, new]) == 2

    middle.acks.mark_done([0], Cause.DELIVERED)
    assert queues.untouched([old, middle, new]) == 1

    queues.take_out([new])
    left = [queues.begin(lane) for lane in (0, 1, 0, 1, 0)]
    assert [each and each.acks for each in left] == [old.acks, middle.acks, middle.acks, None, None]


# ------------------------------------------------------------------------------------------ the budget


async def spin() -> None:
    await asyncio.sleep(0.001)


@in_virtual_time
async def test_the_asker_gets_the_room_that_is_made_for_it() -> None:
    """Who finds no room has others asked for it, with its need and priority, and has it before those of lower
    priorities who waited already; where nothing comes of that it waits before them."""
    asked: list[Shortage] = []
    spare = [30]

    def evict(short: Shortage) -> None:
        asked.append(short)
        if short.priority is Priority.CLIENT_NORMAL and spare:
            budget.release(spare.pop())

    budget = Place(100, evict=evict)
    order: list[str] = []

    async def take(name: str, nbytes: int, priority: Priority) -> None:
        await budget.acquire(nbytes, priority)
        order.append(name)

    await take("all", 100, Priority.CLIENT_LOW)
    async with asyncio.TaskGroup() as tasks:
        for name, nbytes, priority in (
            ("low", 20, Priority.CLIENT_LOW),
            ("live", 25, Priority.CLIENT_NORMAL),
            ("again", 25, Priority.CLIENT_NORMAL),
        ):
            tasks.create_task(take(name, nbytes, priority))
            await spin()
        assert order == ["all", "live"]
        assert Shortage(100, 100, 25, Priority.CLIENT_NORMAL) in asked
        budget.release(25)
        await spin()
        assert order == ["all", "live", "again"]
        budget.release(20)

    assert order == ["all", "live", "again", "low"]


@in_virtual_time
async def test_shards_of_other_destinations_give_way_in_a_full_worker() -> None:
    """Where a destination finds no room only since others fill the worker, these are asked, for so much that it leaves
    as much free as it holds."""
    asked: list[Shortage] = []

    def evict(short: Shortage) -> None:
        asked.append(short)
        other.release(50)

    worker = Place(100, evict=evict)
    other = Place(100, within=worker)
    await other.acquire(90)
    narrow = Place(50, within=worker, leaves_room=True)
    await narrow.acquire(5, Priority.CLIENT_NORMAL)

    async with asyncio.timeout(1):
        await narrow.acquire(10, Priority.CLIENT_NORMAL)

    assert asked == [Shortage(100, 95, 25, Priority.CLIENT_NORMAL)]
    assert (narrow.held, worker.held) == (15, 55)


class Shelf:
    """A session's pages, of 10 bytes each, in a budget."""

    def __init__(self, name: str, budget: Place, pages: int) -> None:
        self.name = name
        self.budget = budget
        self.pages = pages

    def ahead(self) -> tuple[int, ...]:
        return (10,) * self.pages

    def return_pages(self, pages: int, priority: Priority) -> None:
        self.pages -= pages
        self.budget.release(10 * pages)


@settings(max_examples=150)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(("ask", "cancel", "release", "read")), st.integers(1, 60), st.sampled_from(Priority)),
        max_size=40,
    ),
    seed=st.integers(0, 2**32),
)
def test_a_budget_that_evicts_keeps_its_bound_and_forgets_nobody(
    steps: list[tuple[str, int, Priority]], seed: int
) -> None:
    """Whatever is asked for, given back, cancelled and turned back: no more is held than the bound allows, nothing is
    lost or counted twice, and in the end all who ask get something."""

    @in_virtual_time
    async def play() -> None:
        async with asyncio.TaskGroup() as tasks:
            market = Market(tasks, Random(seed))
            for step, amount, priority in steps:
                market.step(step, amount, priority)
                await market.settle()
            await market.close()
        assert market.budget.held == 0

    play()


class Market:
    """A budget of 100 bytes, the shelves that have read ahead in it, those that ask, and what they were given."""

    def __init__(self, tasks: asyncio.TaskGroup, rng: Random) -> None:
        self._givers = Givers(lambda: 90)
        self.budget = Place(100, evict=self._givers.make_room)
        self._tasks, self._rng = tasks, rng
        self._shelves: list[Shelf] = []
        self._asking: list[tuple[int, asyncio.Task[None]]] = []
        self._held: list[int] = []

    def step(self, step: str, amount: int, priority: Priority) -> None:
        """Do one thing, where it can be done."""
        match step:
            case "ask":
                self._asking.append((amount, self._tasks.create_task(self.budget.acquire(amount, priority))))
            case "cancel" if self._asking:
                self._asking.pop(self._rng.randrange(len(self._asking)))[1].cancel()
            case "release" if self._held:
                self.budget.release(self._held.pop(self._rng.randrange(len(self._held))))
            case "read" if self.budget.try_acquire(10 * (pages := 1 + amount // 20)):
                self._shelves.append(Shelf(str(len(self._shelves)), self.budget, pages))
                self._givers.add(self._shelves[-1], priority)

    async def settle(self) -> None:
        """Let all happen that can, and look what is held."""
        await spin()
        self._held.extend(nbytes for nbytes, task in self._asking if task.done())
        self._asking = [each for each in self._asking if not each[1].done()]
        assert self.budget.held == sum(self._held) + 10 * sum(each.pages for each in self._shelves)
        assert self.budget.held <= 100

    async def close(self) -> None:
        """Give all back, until nobody asks any more."""
        for each in self._shelves:
            each.return_pages(each.pages, Priority.IDLE)
        while self._asking or self._held:
            while self._held:
                self.budget.release(self._held.pop())
            await self.settle()


def test_the_watermark_says_how_much_is_turned_back() -> None:
    """At 100 as much as is short, in whole pages; below, so much more that the bound is filled up to it only."""
    watermark = 100
    givers = Givers(lambda: watermark)
    budget = Place(100)
    budget.try_acquire(100)
    givers.add(shelf := Shelf("a", budget, 10), Priority.CLIENT_LOW)

    givers.make_room(Shortage(100, 100, 5, Priority.CLIENT_NORMAL))
    assert budget.held == 90

    watermark = 60
    givers.make_room(Shortage(100, 90, 15, Priority.CLIENT_NORMAL))
    assert (budget.held, shelf.pages) == (60, 6)


class Generous(Shelf):
    """Whenever it gives a page back, one that waited for it has the worker ask the others for more."""

    def __init__(self, name: str, budget: Place, pages: int, worker: Givers) -> None:
        super().__init__(name, budget, pages)
        self._worker = worker

    def return_pages(self, pages: int, priority: Priority) -> None:
        super().return_pages(pages, priority)
        held = self.budget.held
        self._worker.make_room(Shortage(held, held, 10, Priority.CLIENT_NORMAL))


def test_pages_that_a_wider_bound_took_meanwhile_are_not_turned_back_twice() -> None:
    """What one gives back makes the worker evict the only page of another: the destination, which had planned with it,
    leaves it alone."""
    worker = Givers()
    givers = Givers(within=worker)
    budget = Place(100)
    shelves = [Generous("a", budget, 1, worker), Generous("b", budget, 1, worker)]
    budget.try_acquire(20)
    for shelf in shelves:
        givers.add(shelf, Priority.CLIENT_LOW)

    givers.make_room(Shortage(20, 20, 20, Priority.CLIENT_NORMAL))

    assert [shelf.pages for shelf in shelves] == [0, 0]
    assert budget.held == 0


def test_sessions_that_left_are_not_asked() -> None:
    """A session counts at the priority that it was added with last, also in the worker, until it is removed."""
    worker = Givers()
    givers = Givers(within=worker)
    budget = Place(100)
    shelf = Shelf("a", budget, 5)
    budget.try_acquire(50)
    short = Shortage(50, 50, 10, Priority.CLIENT_NORMAL)

    givers.add(shelf, Priority.CLIENT_HIGH)
    givers.make_room(short)
    assert shelf.pages == 5

    givers.add(shelf, Priority.IDLE)
    worker.make_room(short)
    assert shelf.pages == 4

    givers.remove(shelf)
    givers.make_room(short)
    worker.make_room(short)
    assert shelf.pages == 4
    assert budget.held == 40
