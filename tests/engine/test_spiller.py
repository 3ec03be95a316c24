"""Entries of queues that fail and fill are moved beside them, in time and within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import QUICK, a_topic, running
from remora.config import DeliverySettings, MetersSettings, ScopeSettings, ShapingSettings
from remora.engine.admission.gate import Gate
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.errors import EndpointUnavailable, StoreError, StoreFull
from remora.model.position import Position
from remora.model.shard import LockToken, Mend, QueueRoom, Shard
from remora.model.spill import Spill, SpillLook, SpillUsage
from remora.policy.queues.mends import Heal
from remora.policy.queues.spill import SpillRules
from support.credit import Host, a_meter, shaping

RING, PAGE = 1_000_000, 50_000
START = Position(0, 24576)


@dataclass
class FilledRing:
    """A ring that gets so many bytes a second; a move takes a page of it."""

    may_spill = True
    rate: float = 0.0
    used: float = 0.0
    spilled: int = 0
    pinned: int = 0
    refused: float = 0.0
    guarded_at: float = -1.0
    guard_s: float = 4.0
    unguarded: int = 0
    unguard_failures: int = 0
    moves: list[float] = field(default_factory=list)
    elsewhere: dict[Shard, int] = field(default_factory=lambda: {Shard("other"): 500_000})
    failure: StoreFull | None = None
    usage_failure: StoreError | None = None
    asked: int = 0
    leaks: float = 0.0
    leaked: float = 0.0
    last: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    def come(self) -> None:
        now = asyncio.get_running_loop().time()
        self.used += self.rate * (now - self.last)
        self.leaked = min(RING, self.leaked + self.leaks * self.rate * (now - self.last))
        self.last = now
        self.refused += max(0.0, self.used + self.leaked - RING)
        self.used = self.pinned or min(self.used, RING - self.leaked)

    async def look(self, token: LockToken) -> SpillLook:
        await asyncio.sleep(0.01)
        self.come()
        room = QueueRoom(RING, int(self.used), int(self.leaked), 0)
        return SpillLook(room, Spill(START, self.spilled, self.spilled // 1000))

    async def guard(self, token: LockToken) -> bool:
        now = asyncio.get_running_loop().time()
        if self.guarded_at < 0:
            self.guarded_at = now
        return now - self.guarded_at >= self.guard_s

    async def unguard(self, token: LockToken) -> None:
        if self.unguard_failures:
            self.unguard_failures -= 1
            raise StoreError("it cannot be looked at")
        self.unguarded += 1
        self.guarded_at = -1.0

    async def move(self, token: LockToken) -> int:
        await asyncio.sleep(0.02)
        if self.failure is not None:
            raise self.failure
        self.come()
        page = min(PAGE, int(self.used))
        self.used -= page
        self.spilled += page
        self.moves.append(asyncio.get_running_loop().time())
        return page // 1000

    async def usage(self) -> SpillUsage:
        self.asked += 1
        if self.usage_failure is not None:
            raise self.usage_failure
        return SpillUsage({**({Shard("t"): self.spilled} if self.spilled else {}), **self.elsewhere})


@dataclass
class LeakingRing:
    """The mends of a store whose ring leaks."""

    ring: FilledRing
    times: int = 0

    async def mend(self, token: LockToken) -> Mend:
        self.times += 1
        before, self.ring.leaked = QueueRoom(RING, int(self.ring.used), int(self.ring.leaked), 0), 0.0
        return Mend(before, QueueRoom(RING, int(self.ring.used), 0, 0))


@dataclass
class Stage:
    """A worker with one topic, whose endpoint is away or not."""

    ring: FilledRing
    endpoint: FakeEndpoint
    telemetry: Telemetry
    store: FakeStore
    mends: LeakingRing


@asynccontextmanager
async def staged(
    *,
    away: bool = True,
    args: str = "",
    rules: SpillRules | None = None,
    heal: Heal = "calm",
    traffic: ShapingSettings | None = None,
) -> AsyncIterator[Stage]:
    store, telemetry, endpoint = FakeStore(), Telemetry(), FakeEndpoint()
    store.spill = ring = FilledRing()
    store.mends = mends = LeakingRing(ring)  # type: ignore[assignment]  # the part of the store that it stands for
    store.make("t", *(raw_entry("k", i) for i in range(50)))
    store.metadata["t"] = a_topic("t", args=args)
    if away:
        endpoint.opening = lambda _: EndpointUnavailable("it is away")
    rules, gate, host = rules or SpillRules(enabled=True), None, None
    if traffic is not None:
        host = Host(traffic)
        gate = Gate(telemetry, host.bank())
        gate.configure(traffic.rules, traffic.tick_s)
    setup = WorkerSetup("remora/h/b/w1", QUICK, DeliverySettings(), spill=rules, heal=heal, gate=gate)
    async with running(Worker(store, [endpoint], telemetry, setup, Random(7))) as task:
        ticking = asyncio.ensure_future(host.shaper.run()) if host else None
        await asyncio.sleep(3)
        ring.come()
        yield Stage(ring, endpoint, telemetry, store, mends)
        if ticking:
            ticking.cancel()
        task.cancel()


@in_virtual_time
async def test_a_small_ring_of_a_topic_that_fails_refuses_nothing() -> None:
    """A megabyte that 200 events a second fill in seven seconds outlasts ten minutes."""
    async with staged() as stage:
        stage.ring.rate = 140_000
        await asyncio.sleep(600)
        stage.ring.come()

        assert stage.ring.refused == 0
        assert stage.ring.spilled > 0.9 * 600 * 140_000 - RING
        moved = sample_value(stage.telemetry.registry, "remora_spill_moved_total", {"topic": "t"})
        assert moved == len(stage.ring.moves) * PAGE // 1000


@in_virtual_time
@pytest.mark.parametrize(("heal", "is_mended"), [("calm", True), ("full", True), ("off", False)])
async def test_a_ring_that_leaks_and_spills_is_mended(heal: Heal, is_mended: bool) -> None:
    """What a Ceph that leaks ten bytes an entry takes of a small ring comes back while entries are moved out of it, so
    that it refuses nothing for half an hour."""
    async with staged(heal=heal) as stage:
        stage.ring.rate, stage.ring.leaks = 140_000, 10 / 700
        await asyncio.sleep(1_800)
        stage.ring.come()

        assert (stage.ring.refused == 0) is is_mended
        assert (stage.mends.times > 10) is is_mended


@in_virtual_time
async def test_nothing_is_moved_before_others_know() -> None:
    """The first page leaves the ring when the guard has been set for as long as the store wants."""
    async with staged() as stage:
        stage.ring.rate = 140_000
        await asyncio.sleep(30)

        assert stage.ring.moves[0] - stage.ring.guarded_at >= stage.ring.guard_s


@in_virtual_time
@pytest.mark.parametrize(("used", "a_second"), [(600_000, 20), (950_000, 33)])
async def test_moves_leave_the_store_to_others_between_pages(used: int, a_second: int) -> None:
    """After each page a move rests for as long as that took, and not at all while the ring is nearly full; what it
    takes is timed as a stage."""
    async with staged() as stage:
        stage.ring.guarded_at, stage.ring.pinned, stage.ring.rate = 0.0, used, 1.0
        await asyncio.sleep(10)
        begun = len(stage.ring.moves)
        await asyncio.sleep(10)
        moves = len(stage.ring.moves)
        timed = sample_value(stage.telemetry.registry, "remora_stage_seconds_count", {"stage": "spill", "at": "fake"})

    assert (moves - begun) / 10 == pytest.approx(a_second, abs=2)
    assert timed == pytest.approx(moves, abs=1)


@in_virtual_time
@pytest.mark.parametrize(("used", "share"), [(600_000, 1.0), (950_000, 10.0)])
async def test_moves_take_credit_of_the_store(used: int, share: float) -> None:
    """What is moved counts twice, listed and written, in the class `idle` of the host's traffic with its store, and
    waits for its credit; while the ring is nearly full it counts as `max`, and waits for nothing."""
    idle, most = a_meter(100_000, 100_000, 100_000), a_meter(10**9, 10**9)
    scope = ScopeSettings(name="osds", of="store", enabled=True, meters=MetersSettings(idle=idle, max=most))
    async with staged(traffic=shaping(scope, tick_s=1.0)) as stage:
        stage.ring.guarded_at, stage.ring.pinned, stage.ring.rate = 0.0, used, 1.0
        await asyncio.sleep(5)
        begun = stage.ring.spilled
        await asyncio.sleep(20)
        moved = (stage.ring.spilled - begun) / 20
        names = {"scope": "osds", "priority": "idle" if used < 900_000 else "max"}
        taken = sample_value(stage.telemetry.registry, "remora_shaping_granted_bytes_total", names)

    assert 40_000 * share <= moved <= 60_000 * share**2
    assert taken == pytest.approx(2 * stage.ring.spilled, abs=4 * PAGE)


@in_virtual_time
@pytest.mark.parametrize(
    ("away", "args", "enabled", "rate", "moves"),
    [
        (True, "", True, 140_000, True),
        (True, "", False, 140_000, False),
        (True, "remora-spill=on", False, 140_000, True),
        (True, "remora-spill=off", True, 140_000, False),
        (True, "", True, 500, False),
        (False, "", True, 140_000, False),
    ],
)
async def test_which_queues_are_spilled(away: bool, args: str, enabled: bool, rate: float, moves: bool) -> None:
    """Those that fail and fill, as far as their topic or the configuration wants it; not one that is merely busy."""
    async with staged(away=away, args=args, rules=SpillRules(enabled=enabled)) as stage:
        stage.ring.rate = rate
        await asyncio.sleep(60)

        assert bool(stage.ring.moves) is moves


@in_virtual_time
@pytest.mark.parametrize("of", ["topic", "all", "pool"])
async def test_bounds_hold_by_a_page(of: str) -> None:
    """Nothing is moved beyond the topic's bound, that of all topics, or what the pool takes, and the log says why."""
    bound = 500_000
    rules = SpillRules(
        enabled=True,
        topic_bytes=bound if of == "topic" else 10**9,
        total_bytes=2 * bound if of == "all" else 10**9,
    )
    async with staged(rules=rules) as stage:
        if of == "pool":
            stage.ring.failure = StoreFull("the pool's quota is used up")
        stage.ring.rate = 140_000
        await asyncio.sleep(120)

        assert stage.ring.spilled <= bound + PAGE
        assert stage.ring.refused > 0
        if of != "pool":
            ratio = sample_value(stage.telemetry.registry, "remora_spill_bound_ratio", {"topic": "t"})
            assert ratio is not None
            assert ratio >= 1


@in_virtual_time
async def test_a_topic_that_is_delivered_again_is_spilled_on_while_it_has_runs() -> None:
    """Runs come first, so the ring may fill behind them; when they are delivered, nothing is moved and guarded."""
    async with staged() as stage:
        stage.ring.rate = 140_000
        await asyncio.sleep(60)
        stage.endpoint.opening = lambda _: None
        await asyncio.sleep(60)
        assert asyncio.get_running_loop().time() - stage.ring.moves[-1] < 10
        assert stage.ring.refused == 0

        stage.ring.rate, stage.ring.used, stage.ring.spilled = 0, 0, 0
        await asyncio.sleep(60)

        assert asyncio.get_running_loop().time() - stage.ring.moves[-1] > 40
        assert stage.ring.unguarded


@in_virtual_time
async def test_a_guard_that_could_not_be_lifted_is_lifted_later() -> None:
    """A queue that needs no guard any more loses it as soon as the store answers again."""
    async with staged() as stage:
        stage.ring.rate = 140_000
        await asyncio.sleep(60)
        stage.ring.unguard_failures = 3
        stage.endpoint.opening = lambda _: None
        stage.ring.rate, stage.ring.used, stage.ring.spilled = 0, 0, 0
        await asyncio.sleep(60)

        assert stage.ring.unguard_failures == 0
        assert stage.ring.unguarded == 1


@in_virtual_time
async def test_the_bound_is_shown_as_it_is_while_runs_are_delivered() -> None:
    """When nothing more has to be moved, what is left of the runs is what the metric has, and not what was once."""
    rules = SpillRules(enabled=True, topic_bytes=10_000_000)
    async with staged(rules=rules) as stage:
        stage.ring.rate = 140_000
        await asyncio.sleep(40)
        stage.ring.rate, stage.ring.used, stage.ring.spilled = 0, 0, 1_000_000
        await asyncio.sleep(40)

        ratio = sample_value(stage.telemetry.registry, "remora_spill_bound_ratio", {"topic": "t"})

    assert ratio == pytest.approx(0.1)


@in_virtual_time
async def test_a_list_of_runs_that_cannot_be_read_is_asked_for_now_and_then() -> None:
    """What all runs take is read every 30 s, and every 5 s while that fails, however often queues are looked at."""
    async with staged() as stage:
        stage.ring.rate, stage.ring.usage_failure = 140_000, StoreError("it cannot be read")
        await asyncio.sleep(30)
        before = stage.ring.asked
        await asyncio.sleep(50)

        assert 8 <= stage.ring.asked - before <= 10
