"""Breaks the locks of workers whose processes have ended, so that no worker waits for their leases.

One worker of each supervisor looks every second whether a process of this host has ended that showed that it lived: of
its own supervisor, an earlier one, or another that runs beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from remora.engine.worker import Worker
from remora.metrics import Telemetry
from remora.model.errors import StoreError
from remora.model.member import WorkerCookie
from remora.policy.ownership.lease import Evidence, has_ended, is_doubtful
from remora.process.liveness_lock import LivenessLock
from remora.process.pipe import Start

AGAIN_S = 1.0
"""The pause after a store that did not answer."""

LOOK_S = 1.0
"""How often it is looked whether other processes of this host have ended."""


class DeadOwnerSweep:
    """Who is dead: those that the supervisor reaped, and those that other supervisors of this host left.

    While the block runs, this worker shows that it lives itself.
    """

    def __init__(self, start: Start, telemetry: Telemetry) -> None:
        own = WorkerCookie.parse(start.cookie)
        assert own is not None, "the supervisor makes the cookies"
        self._own = own
        self._sweeps = start.sweeps
        self._folder = Path(start.settings.supervisor.run_directory)
        self._telemetry = telemetry
        self._store = start.settings.store_name
        self._reaped = set(start.dead)
        self._left: frozenset[str] = frozenset()
        self._cleared: frozenset[str] = frozenset()
        self._doubtful: set[str] = set()
        self._liveness: LivenessLock | None = None
        self._is_clean = False
        self._news = asyncio.Event()
        if self._reaped or self._sweeps:
            self._news.set()

    def __enter__(self) -> DeadOwnerSweep:
        try:
            self._liveness = LivenessLock(self._folder, self._own.worker, self._store)
        except OSError as exc:
            self._telemetry.presence_failed(str(self._folder), exc.strerror or str(exc))
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._liveness is not None and self._is_clean:
            self._liveness.close()

    def finished(self) -> None:
        """All locks were released: no worker needs to look for any."""
        self._is_clean = True

    def mark_dead(self, cookies: Iterable[str]) -> None:
        """The supervisor reaped these workers."""
        self._reaped.update(cookies)
        self._news.set()

    def is_dead(self, cookie: str, announced: bool) -> bool:
        """Whether a lock's holder surely has ended; `announced`, whether it is in the list of live workers."""
        evidence = self._evidence(cookie, announced)
        if is_doubtful(evidence):
            self._doubtful.add(cookie)
        return has_ended(evidence)

    def _evidence(self, cookie: str, announced: bool) -> Evidence:
        reaped, found = cookie in self._reaped, WorkerCookie.parse(cookie)
        if found is None or found.host != self._own.host or not self._sweeps:
            return Evidence(reaped, announced=announced)
        return Evidence(reaped, found.worker in self._left, found.boot != self._own.boot, announced)

    async def run(self, worker: Worker) -> None:
        """Clear whenever there is news, until cancelled. A store that is away is asked again."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if self._sweeps else None):
                    await self._news.wait()
            self._left = self._liveness.dead() if self._liveness is not None else frozenset()
            if self._sweeps and (self._left - self._cleared or not self._doubtful <= set(worker.others)):
                self._news.set()
            if self._news.is_set():
                self._news.clear()
                await self._clear(worker)

    async def _clear(self, worker: Worker) -> None:
        reaped, left = frozenset(self._reaped), self._left
        self._doubtful.clear()
        try:
            await worker.clear(self.is_dead)
        except StoreError as exc:
            self._telemetry.clearing_failed(str(exc))
            self._news.set()
            await asyncio.sleep(AGAIN_S)
        else:
            self._reaped -= reaped
            self._cleared = left
            if self._liveness is not None:
                named = frozenset(each.rpartition("/")[2] for each in reaped)
                self._liveness.forget(self._left | named if self._sweeps else named)
