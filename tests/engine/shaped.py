"""A worker whose host deals credit out to it, on a scripted store and endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings, ShapingSettings
from remora.engine.admission.gate import Gate
from remora.engine.worker import Worker
from remora.metrics import Telemetry
from remora.model.record import Record
from remora.model.topic import Delivery
from support.credit import Host, a_host, a_meter, shaping

BOTH = pytest.mark.parametrize("mode", Delivery)
NOTHING = a_meter(0, 0)
MUCH = a_meter(10**9, 10**9)


class Shaped:
    """A worker whose host deals credit out every 10 ms, to it and to others that do nothing."""

    def __init__(self, settings: ShapingSettings, mode: Delivery, workers: int = 1, **delivery: Any) -> None:
        self.store, self.endpoint = FakeStore(tells=True), FakeEndpoint()
        self.telemetry = Telemetry()
        self.host = Host(settings, workers)
        self.bank = self.host.bank()
        self.gate = Gate(self.telemetry, self.bank)
        self.gate.configure(settings.rules, settings.tick_s)
        chosen = DeliverySettings(mode=mode.value, **delivery)
        self.worker: Worker = a_worker(self.store, self.endpoint, chosen, telemetry=self.telemetry, gate=self.gate)

    def make(self, queue: str, entries: int, padding: int = 0) -> None:
        self.store.make(queue, *(raw_entry("k", i, padding=padding) for i in range(entries)))
        self.store.metadata[queue] = a_topic(queue, to=queue)

    def configure(self, settings: ShapingSettings) -> None:
        """As a reload does it."""
        self.host.shaper.configure(settings)
        self.bank.learn(self.host.shaper.slots)
        self.gate.configure(settings.rules, settings.tick_s)

    def sent(self) -> list[Record]:
        return [record for _, record in self.endpoint.arrived]

    def give(self, nbytes: int, *priorities: str) -> None:
        """Let a worker have credit that no tick has dealt out."""
        self.host.tick()  # from then on it knows its capacity
        for each in priorities or ("client_low",):
            self.host.account().release(each, nbytes)

    def level(self, priority: str = "client_low") -> int:
        return self.host.level(0, priority)

    def metric(self, name: str, **labels: str) -> float:
        return sample_value(self.telemetry.registry, name, labels) or 0.0

    async def backlog_took(self) -> tuple[float, int]:
        """Deliver a backlog of 600 entries, all of it; the seconds that the first 500 took, and their bytes."""
        self.make("t", 600, padding=1_000)
        async with self.running():
            began = asyncio.get_running_loop().time()
            await until(lambda: len(self.endpoint.arrived) >= 500)
            took_s = asyncio.get_running_loop().time() - began
            await drained(self.store)
        return took_s, sum(len(each.body) for each in self.sent()[:500])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.host.dealing(), running(self.worker):
            yield


def of_backlogs(guaranteed: int, burst: int, most: int | None = None) -> ShapingSettings:
    """A limit for what catches up, and as much as they like for all others."""
    low = a_meter(guaranteed, burst, most)
    return shaping(a_host(max=MUCH, client_high=MUCH, client_normal=MUCH, client_low=low))
