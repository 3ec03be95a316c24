"""A host whose supervisor deals credit out to workers, all in one process, and only when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from random import Random

from remora.config import LimitSettings, MeterSettings, MetersSettings, ScopeSettings, ShapingSettings
from remora.model.traffic import Priority
from remora.policy.shaping.cells import MemberAccount
from remora.process.credit import CreditMemory, HostCredit, account_of
from remora.supervisor.shaper import Shaper


def a_meter(guaranteed: int, burst: int, most: int | None = None) -> MeterSettings:
    return MeterSettings(guaranteed=guaranteed, burst=burst, max=most)


def a_host(**meters: MeterSettings) -> ScopeSettings:
    """A scope of all that a host sends."""
    return ScopeSettings(name="uplink", of="host", enabled=True, meters=MetersSettings(**meters))


def shaping(*scopes: ScopeSettings, tick_s: float = 0.01, groups: int = 256) -> ShapingSettings:
    return ShapingSettings(scope=scopes, tick_s=tick_s, groups=groups)


class Host:
    """A shaper with workers at the first places."""

    def __init__(
        self, settings: ShapingSettings, workers: int = 1, limits: Iterable[LimitSettings] = (), seed: int = 7
    ) -> None:
        self.memory = CreditMemory.alone(workers)
        self.shaper = Shaper(self.memory, Random(seed))
        self.shaper.configure(settings, limits)
        for place in range(workers):
            self.shaper.add(place)

    def account(self, place: int = 0, group: str = "uplink") -> MemberAccount:
        return account_of(self.memory, place, self.shaper.slots[group])

    def level(self, place: int = 0, priority: str = Priority.CLIENT_LOW, group: str = "uplink") -> int:
        return self.account(place, group).level(priority)

    def bank(self, place: int = 0) -> HostCredit:
        """What a worker has of it; a group that it asks for is there as soon as it learns of it."""

        def want(group: str) -> None:
            if self.shaper.want(group):
                bank.learn(self.shaper.slots)

        bank = HostCredit(self.memory, place, want)
        bank.learn(self.shaper.slots)
        return bank

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.shaper.tick()

    @asynccontextmanager
    async def dealing(self) -> AsyncIterator[None]:
        """It ticks by itself for as long as the block runs."""
        ticking = asyncio.ensure_future(self.shaper.run())
        try:
            yield
        finally:
            ticking.cancel()
