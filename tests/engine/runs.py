"""A worker on a scripted store and endpoint, started and finished around a test's body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from engine.fakes import FakeStore
from remora.config import DeliverySettings, OwnershipSettings, QuarantineSettings
from remora.engine.admission.gate import Gate
from remora.engine.ownership.worker_info import Meters
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry
from remora.model.topic import Target, Topic
from remora.ports.delivery import DeliveryStore
from remora.ports.endpoint import Endpoint
from remora.ports.tracing import NO_TRACER, Tracer

QUICK = OwnershipSettings(lease_s=9, renew_interval_s=3, trust_margin_s=1, discovery_interval_s=1)
SELDOM = DeliverySettings(idle_min_s=1.0)
"""For tests in which queues wait for minutes and no look into them matters: 20 times as many are usual."""


START_S = 1_700_000_000.0
"""When the entries of `raw_entry` were made, unless it is told otherwise."""


def a_topic(
    queue: str = "t",
    uri: str = "kafka://b:9092",
    to: str = "t",
    max_retries: int | None = None,
    retry_sleep_s: int | None = None,
    shards: int = 1,
    args: str = "",
) -> Topic:
    target = Target(uri, args, to)
    return Topic(queue, "", queue, target, max_retries=max_retries, retry_sleep_s=retry_sleep_s, shards=shards)


def a_worker(
    store: DeliveryStore,
    endpoint: Endpoint,
    delivery: DeliverySettings | None = None,
    cookie: str = "remora/h/b/w1",
    telemetry: Telemetry | None = None,
    ownership: OwnershipSettings = QUICK,
    group_size: int = 1,
    meters: Meters | None = None,
    gate: Gate | None = None,
    quarantine: QuarantineSettings | None = None,
    tracer: Tracer = NO_TRACER,
) -> Worker:
    telemetry, delivery = telemetry or Telemetry(), delivery or DeliverySettings()
    layouts = store if isinstance(store, FakeStore) else None
    quarantine = quarantine or QuarantineSettings()
    setup = WorkerSetup(
        cookie, ownership, delivery, group_size, meters, gate, quarantine, layouts=layouts, tracer=tracer
    )
    return Worker(store, [endpoint], telemetry, setup, Random(7))


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(worker.run())
        try:
            yield task
        finally:
            worker.end()


class Turns:
    """Counts calls, those of each turn of the event loop by themselves."""

    def __init__(self) -> None:
        self.counts = [0]

    def count(self, *_: object) -> None:
        if not self.counts[-1]:
            asyncio.get_running_loop().call_soon(self.counts.append, 0)
        self.counts[-1] += 1


async def until(condition: Callable[[], object], within_s: float = 3600) -> None:
    """Waits for a condition. It is looked at more seldom the longer the wait lasts, and seen a hundredth of it late."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  # the clock is virtual
            await asyncio.sleep(max(0.01, (loop.time() - began) / 100))


async def drained(store: FakeStore, *queues: str, within_s: float = 3600) -> None:
    await until(lambda: not any(store.queues[each].waiting for each in queues or store.queues), within_s)
