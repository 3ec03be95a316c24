"""Releases locks, so that another worker need not wait for the lease to end."""

from __future__ import annotations

import asyncio

from remora.engine.lease import RELEASE_WITHIN_S, Lease
from remora.metrics import Telemetry
from remora.model.errors import StoreError
from remora.ports.delivery import Locks

AT_ONCE = 256
PER_SECOND = 1000.0
"""How many locks are released side by side, and what a store manages at least when there are very many."""


class LeaseReleaser:
    """See the module."""

    def __init__(self, locks: Locks, telemetry: Telemetry, timeout_s: float) -> None:
        """`timeout_s` is for one lock; there is more time where very many are released together."""
        self._locks = locks
        self._telemetry = telemetry
        self._timeout_s = timeout_s
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def release(self, lease: Lease, among: int = 1, *, named: bool = True) -> None:
        """Release a lock, one of `among`. It goes on for a few seconds when cancelled; if it fails the lease ends."""
        release = asyncio.ensure_future(self._release(lease, among, named))
        try:
            await asyncio.shield(release)
        except asyncio.CancelledError:
            await asyncio.wait([release], timeout=RELEASE_WITHIN_S)
            raise

    async def _release(self, lease: Lease, among: int, named: bool) -> None:
        try:
            async with asyncio.timeout(self._timeout_s + among / PER_SECOND), self._gate:
                await self._locks.release(lease.token)
        except (StoreError, TimeoutError) as exc:
            self._telemetry.release_failed(lease.shard.queue, str(exc))
        else:
            self._telemetry.released(lease.shard.queue, named=named)
