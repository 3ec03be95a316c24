"""Credit for what a command does with a store on RADOS, where the host's daemon shapes traffic with its store.

A command uses the store first and asks then, in portions: what it took is charged by force, and it waits until that is
paid back. So a command that reads little waits for nothing, and one that waits holds no credit.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from remora.cluster_answer import notice
from remora.config import Settings
from remora.model.errors import ChangeNotAllowed, DaemonNotReachable
from remora.model.traffic import Priority, TrafficClass
from remora.ports.credit import NO_TRAFFIC, StoreTraffic

PORTION = 256 * 1024
"""Reads are charged in such portions: a question costs some milliseconds."""

AGAIN_S = 1.0
"""How often who waits asks whether that has become shorter: credit comes from other classes and by commands, too."""

_SCANS, _REDRIVES = TrafficClass.IDLE.priority, TrafficClass.REPLAY.priority


@asynccontextmanager
async def metered(settings: Settings) -> AsyncIterator[StoreTraffic]:
    """Meters a command's traffic where a scope of the store is configured, and its user may ask the daemon."""
    if (scope := settings.shaping.of_store) is None:
        yield NO_TRAFFIC
        return
    async with CommandTraffic(settings, scope) as traffic:
        yield traffic


class CommandTraffic:
    """Asks the daemon while it answers; without one, and for a user whom it lets change nothing, everything passes."""

    def __init__(self, settings: Settings, scope: str) -> None:
        self._settings = settings
        self._scope = scope
        self._read = 0
        self._answers = True

    async def __aenter__(self) -> CommandTraffic:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Charges what was read since the last portion."""
        if self._read and kind is None:
            await self._ask(_SCANS, self._taken())

    def committed(self, nbytes: int) -> None:
        """Commands commit by re-drives alone."""

    def looked(self, nbytes: int) -> None:
        """A look is charged with the next portion, and waits for nothing."""
        self._read += nbytes

    async def walked(self, nbytes: int) -> None:
        """A walk over entries or letters has read so many bytes; returns when it may go on."""
        self._read += nbytes
        if self._read >= PORTION:
            await self._take(_SCANS, self._taken())

    async def redriven(self, nbytes: int) -> None:
        """A re-drive has sent so many bytes and removes as many; returns when it may go on."""
        await self._take(_REDRIVES, 2 * nbytes)

    def _taken(self) -> int:
        nbytes, self._read = self._read, 0
        return nbytes

    async def _take(self, priority: Priority, nbytes: int) -> None:
        """Charge by force, and wait for as long as it takes to pay that back."""
        now = asyncio.get_running_loop().time
        until = now() + await self._ask(priority, nbytes)
        if until <= now():
            return
        with notice.get()(f"waiting for {priority} of {self._scope}, as `remora shaping show` has it"):
            while (left_s := until - now()) > 0:
                await asyncio.sleep(min(left_s, AGAIN_S))
                until = min(until, now() + await self._ask(priority, 0))

    async def _ask(self, priority: Priority, nbytes: int) -> float:
        """In how many seconds that is paid back, as far as the daemon knows; 0 where none answers."""
        if not self._answers:
            return 0.0
        from remora.cli.admin_client import DaemonControl  # what most commands on most hosts do without

        try:
            wait_s = await DaemonControl(self._settings).use_store(priority, nbytes)
        except (ChangeNotAllowed, DaemonNotReachable):
            self._answers = False
            return 0.0
        return math.inf if wait_s is None else wait_s
