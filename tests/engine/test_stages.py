"""Where the time of events goes, as a worker measures it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeEndpoint, FakeStore, Fate, Verdict
from engine.runs import a_topic, a_worker, drained, running, until
from remora.codec.trace_context import parse
from remora.metrics import Telemetry
from remora.metrics.stages import slow_lines, stages_shown
from remora.model.record import Record
from remora.policy.status.stages import EventStage
from remora.ports.tracing import NO_SPAN, Attributes, Span, StagesOf, Work


@asynccontextmanager
async def delivering(store: FakeStore, endpoint: FakeEndpoint, args: str) -> AsyncIterator[Telemetry]:
    """A worker that notes its stages each second, while four entries a second come in."""
    telemetry = Telemetry(clock=asyncio.get_running_loop().time)
    made = [0]

    async def load() -> None:
        while True:
            telemetry.note_stages(telemetry.clock())
            for _ in range(4):
                made[0] += 1
                store.queues["t"].append(raw_entry(f"k{made[0]}", made[0]))
                await asyncio.sleep(0.25)

    store.make("t")
    store.metadata["t"] = a_topic(args=args)
    async with running(a_worker(store, endpoint, telemetry=telemetry)):
        loading = asyncio.create_task(load())
        yield telemetry
        loading.cancel()
        await drained(store, "t")


def causes(telemetry: Telemetry) -> list[str]:
    """The stages that a status would name as causes."""
    return [each.split(" takes")[0] for each in slow_lines(stages_shown(telemetry.stages()))]


SLOWED = [
    pytest.param(0.05, 0.0, {"push (kafka)"}, id="an endpoint by 50 ms"),
    pytest.param(0.0, 0.02, {"list (fake)", "remove (fake)"}, id="a store by 20 ms"),
]


@pytest.mark.parametrize("args", ["", "remora-delivery=exactly-once"])
@pytest.mark.parametrize(("endpoint_s", "store_s", "named"), SLOWED)
@in_virtual_time
async def test_what_becomes_slow_is_named_within_half_a_minute(
    args: str, endpoint_s: float, store_s: float, named: set[str]
) -> None:
    """An endpoint or a store that is slowed is named as the cause, alone, and what waits for it is not."""
    store, endpoint = FakeStore(tells=True), FakeEndpoint()
    async with delivering(store, endpoint, args) as telemetry:
        await asyncio.sleep(100)
        assert causes(telemetry) == []

        endpoint.fate = lambda *_: Fate(wait_s=0.001 + endpoint_s)
        endpoint.verdict = lambda *_: Verdict(wait_s=0.02 + endpoint_s)
        store.before = lambda call: store_s if call in ("read", "remove") else 0.0
        await asyncio.sleep(30)
        found = set(causes(telemetry))
        endpoint.fate, endpoint.verdict, store.before = lambda *_: Fate(), lambda *_: Verdict(), lambda _: None

    assert found == named


@dataclass
class WayTracer:
    """Keeps of each event that arrived its age in seconds, and what stages say of it."""

    is_on = True
    ways: list[tuple[float, Mapping[EventStage, float]]] = field(default_factory=list)

    def begin(
        self, work: Work, name: str, attributes: Attributes, *, parent: bytes = b"", links: Sequence[bytes] = ()
    ) -> Span:
        return NO_SPAN

    def arrived(self, name: str, records: Sequence[Record], now_ns: int, batch: bytes, stages_of: StagesOf) -> None:
        self.ways += [((now_ns - each.created_ns) / 1e9, stages_of(each)) for each in records]


@pytest.mark.parametrize("args", ["", "remora-delivery=exactly-once"])
@pytest.mark.parametrize(("events", "at_once"), [(200, 1), (1000, 500)])
async def test_stages_cover_the_age_of_each_event(args: str, events: int, at_once: int) -> None:
    """Of events that come one by one, or in bursts, what the stages of each add up to is at least 95 % of its age."""
    store, endpoint, tracer = FakeStore(tells=True), FakeEndpoint(), WayTracer()
    store.make("t")
    store.metadata["t"] = a_topic(args=args)
    worker = a_worker(store, endpoint, tracer=tracer)

    async with running(worker):
        for number in range(0, events, at_once):
            now = time.time()
            context = parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
            entries = [raw_entry(f"k{each}", each, created=now) for each in range(number, number + at_once)]
            store.queues["t"].append(*(each + context for each in entries))
            await asyncio.sleep(0.001)
        await until(lambda: len(tracer.ways) == events)

    parts = [sum(stages.values()) / age_s for age_s, stages in tracer.ways]
    assert min(parts) >= 0.95, min(tracer.ways, key=lambda way: sum(way[1].values()) / way[0])
    assert all(seconds >= 0 for _, stages in tracer.ways for seconds in stages.values())
    names = {stage.value for _, stages in tracer.ways for stage in stages}
    assert names == {"wait_listing", "list", "wait_packing", "render", "wait_turn", "push"}
