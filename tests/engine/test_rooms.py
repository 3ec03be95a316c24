"""The room of held queues is watched, and what leaks is given back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest

from devkit.clock import in_virtual_time
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import QUICK, a_topic, running
from remora.config import DeliverySettings
from remora.engine.backlog import BACKLOG_INTERVAL_S
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.errors import RemoraError, StoreUnavailable
from remora.model.shard import QueueRoom
from remora.policy.queues.mends import Heal

MB = 1_000_000
WELL = QueueRoom(128 * MB, 0, 0, 0, (1,))
LEAKS = replace(WELL, reserved_bytes=127 * MB)
ROUND_S = BACKLOG_INTERVAL_S + 1


@asynccontextmanager
async def watched(heal: Heal, **rooms: QueueRoom) -> AsyncIterator[tuple[FakeStore, Telemetry]]:
    """A worker that holds queues with these rooms, each of a topic of its name."""
    store, telemetry = FakeStore(), Telemetry()
    for queue, room in rooms.items():
        store.make(queue)
        store.metadata[queue] = a_topic(queue)
        store.rooms[queue] = room
    setup = WorkerSetup("remora/h/b/w1", QUICK, DeliverySettings(), heal=heal)
    async with running(Worker(store, [FakeEndpoint()], telemetry, setup, Random(7))) as task:
        await asyncio.sleep(5)
        yield store, telemetry
        task.cancel()


def shown(telemetry: Telemetry, topic: str) -> tuple[float | None, ...]:
    """What is left of the topic's worst queue, what leaks, and for how long it lasts."""
    names = ("room_bytes", "leaked_bytes", "seconds_until_full")
    return tuple(sample_value(telemetry.registry, f"remora_queue_{name}", {"topic": topic}) for name in names)


@in_virtual_time
async def test_a_queue_that_is_full_by_a_leak_is_mended_within_a_minute() -> None:
    """It is shown within 30 seconds, mended in the same round, counted, and well at the next look."""
    async with watched("full", t=WELL, fine=WELL) as (store, telemetry):
        store.rooms["t"] = LEAKS
        seen: list[tuple[float | None, ...]] = []
        store.before = lambda call: seen.append(shown(telemetry, "t")[:2]) if call == "mend" else None
        await asyncio.sleep(30)

        assert seen == [(MB, 127 * MB)]
        assert store.calls["mend"] == 1
        assert sample_value(telemetry.registry, "remora_queue_mends_total", {}) == 1
        await asyncio.sleep(ROUND_S)
        assert shown(telemetry, "t") == shown(telemetry, "fine") == (128 * MB, 0, math.inf)


@in_virtual_time
@pytest.mark.parametrize(
    ("heal", "leaked", "pulses", "mends"),
    [
        ("off", 127 * MB, False, 0),
        ("full", 60 * MB, False, 0),
        ("calm", 60 * MB, False, 1),
        ("calm", 60 * MB, True, 0),
        ("calm", 127 * MB, True, 1),
    ],
)
async def test_when_a_queue_is_mended(heal: Heal, leaked: int, pulses: bool, mends: int) -> None:
    """As `rados.heal` says: never, when it refuses, or also when nothing came between two looks."""
    async with watched(heal, t=replace(WELL, reserved_bytes=leaked)) as (store, _):
        number = 0

        def pulse(call: str) -> RemoraError | None:
            nonlocal number
            if call == "balances" and pulses:
                number += 1
                store.rooms["t"] = replace(store.rooms["t"], pulse=(number,))
            return None

        store.before = pulse
        await asyncio.sleep(4 * ROUND_S)

        assert store.calls["mend"] == mends


@in_virtual_time
async def test_a_mend_that_fails_is_tried_again() -> None:
    """A store that does not answer a mend ends nothing; the next round mends the queue."""
    async with watched("full", t=LEAKS, other=LEAKS) as (store, telemetry):
        away = [True]
        store.before = lambda call: StoreUnavailable("away") if call == "mend" and away[0] else None
        await asyncio.sleep(ROUND_S)
        assert sample_value(telemetry.registry, "remora_queue_mends_total", {}) == 0

        away[0] = False
        await asyncio.sleep(ROUND_S)
        assert sample_value(telemetry.registry, "remora_queue_mends_total", {}) == 2


@in_virtual_time
async def test_how_long_a_queue_lasts_follows_its_growth() -> None:
    """A queue that fills tells how long it lasts, for ever when it no longer grows; its series end with it."""
    async with watched("full", t=WELL) as (store, telemetry):

        def grow(call: str) -> RemoraError | None:
            if call == "balances":
                store.rooms["t"] = replace(store.rooms["t"], used_bytes=store.rooms["t"].used_bytes + 3 * MB)
            return None

        await asyncio.sleep(2 * ROUND_S)
        assert shown(telemetry, "t")[2] == math.inf
        store.before = grow
        await asyncio.sleep(20 * ROUND_S)
        room, _, seconds = shown(telemetry, "t")
        assert room is not None
        assert seconds == pytest.approx(room / (3 * MB / BACKLOG_INTERVAL_S), rel=0.3)

        store.before = lambda _: None
        await asyncio.sleep(700)
        assert shown(telemetry, "t")[2] == math.inf
        del store.queues["t"], store.metadata["t"]
        await asyncio.sleep(60)
        assert shown(telemetry, "t") == (None, None, None)


@in_virtual_time
async def test_the_room_of_a_queue_without_reservations_is_known_too() -> None:
    """A store that tells no room with its balances tells it with what waits; an emptied queue has all its room."""
    async with watched("full", t=WELL) as (store, telemetry):
        del store.rooms["t"]
        store.full_percent = 90
        store.before = lambda call: StoreUnavailable("a read that fails") if call == "read" else None
        store.queues["t"].append(b"x")
        await asyncio.sleep(2 * ROUND_S)
        assert shown(telemetry, "t")[:2] == (10, 0)

        store.before = lambda _: None
        store.queues["t"].front = 1
        await asyncio.sleep(2 * ROUND_S)
        assert shown(telemetry, "t") == (100, 0, math.inf)
