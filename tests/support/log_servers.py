"""Sequencers in the test's own process, on a store, with real connections; and a store whose answers get lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from remora.config import SequencerSettings
from remora.engine.sequencer import Sequencing
from remora.metrics.sequencer import SequencerTelemetry
from remora.model.errors import StoreUnavailable
from remora.model.log import LogName, Projection, StaleEpoch
from remora.servers.sequencer import Rounds
from support.sequencer import listening

LEASE_S = 3600.0


class Served:
    """A sequencer that listens."""

    def __init__(self, address: str, sequencing: Sequencing) -> None:
        self.address = address
        self.sequencing = sequencing


@asynccontextmanager
async def serving(logs: Any, folder: Path, name: str = "s") -> AsyncIterator[Served]:
    """A sequencer for the logs of a store, until the block ends; then it gives its locks back."""
    address = f"unix:{folder / name}"
    settings = SequencerSettings(lease_s=LEASE_S)
    sequencing = Sequencing(logs, settings, address, Random(1), SequencerTelemetry())
    with listening(folder / name) as listener:
        async with Rounds(sequencing.core, [listener], before=sequencing.before, after=sequencing.after) as rounds:
            sequencing.resume = rounds.resume
            try:
                yield Served(address, sequencing)
            finally:
                await sequencing.close()
    (folder / name).unlink()


class FaultyLogs:
    """The logs of a store, of which calls fail as a test says; everything else goes to the store."""

    def __init__(self, logs: Any) -> None:
        self._logs = logs
        self.faults: list[Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]] = []
        """What becomes of the next appends, one each."""
        self.is_away = False
        """Whether fills and reads fail, too."""
        self.is_half_begun = False
        """Whether the projection has an epoch that no stripe has yet."""
        self.refused = 0
        """Fills that were refused for their epoch."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logs, name)

    async def append(self, log: LogName, epoch: int, position: int, data: bytes) -> None:
        fault = self.faults.pop(0) if self.faults else None
        if fault is None:
            await self._logs.append(log, epoch, position, data)
        else:
            await fault(lambda: self._logs.append(log, epoch, position, data))

    async def projection(self, log: LogName) -> Projection:
        found: Projection = await self._logs.projection(log)
        return replace(found, epoch=found.epoch + self.is_half_begun)

    async def fill(self, log: LogName, epoch: int, position: int) -> None:
        self._answer()
        try:
            await self._logs.fill(log, epoch, position)
        except StaleEpoch:
            self.refused += 1
            raise

    async def read(self, log: LogName, position: int) -> Any:
        self._answer()
        return await self._logs.read(log, position)

    def _answer(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")


async def answer_lost(write: Callable[[], Awaitable[None]]) -> None:
    """Carry a write out, and say that its outcome is unknown."""
    await write()
    raise StoreUnavailable("no answer in time")


async def write_lost(_: Callable[[], Awaitable[None]]) -> None:
    """Do nothing, and say that the outcome is unknown."""
    raise StoreUnavailable("no answer in time")


class Held:
    """A write that is carried out when the test says so, long after its caller was told that the outcome is unknown."""

    def __init__(self) -> None:
        self._write: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, write: Callable[[], Awaitable[None]]) -> None:
        self._write = write
        raise StoreUnavailable("no answer in time")

    async def carry_out(self) -> None:
        assert self._write is not None
        await asyncio.shield(self._write())
