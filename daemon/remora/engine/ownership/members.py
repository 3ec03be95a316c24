"""The workers' rows in the store: writes this worker's, reads all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from remora.model.errors import StoreError
from remora.model.member import Member
from remora.policy.ownership.membership import POLL_S
from remora.ports.delivery import Members

TTL_S = 10.0
"""A worker that announces nothing for this time, or for a whole lease where that is shorter, no longer counts."""

ANNOUNCEMENTS_IN_TTL = 4
WITHDRAW_S = 1.0


class MemberRows:
    """See the module."""

    def __init__(self, store: Members, cookie: str, lease_s: float) -> None:
        self._store = store
        self._cookie = cookie
        self._ttl_s = min(TTL_S, lease_s)
        self._announced: Member | None = None
        self._announced_for_s = 0.0
        self._announced_at = asyncio.get_running_loop().time()

    async def announce(self, row: Member, look_s: float = 0.0) -> None:
        """Write this worker's row when it says something new, or will soon count no more. Raises StoreError.

        `look_s` is the usual pause between two readings of the rows: each row counts for several of them. So one that
        was written before it was known how many others there are is written again.
        """
        now = asyncio.get_running_loop().time()
        ttl_s = max(self._ttl_s, ANNOUNCEMENTS_IN_TTL * look_s) if look_s > POLL_S else self._ttl_s
        is_long_enough = self._announced_for_s >= 0.5 * ttl_s
        if row == self._announced and is_long_enough and now - self._announced_at < ttl_s / ANNOUNCEMENTS_IN_TTL:
            return
        await self._store.announce(row, ttl_s)
        self._announced, self._announced_at, self._announced_for_s = row, now, ttl_s

    async def read(self) -> Sequence[Member]:
        """The rows of all live workers. Raises StoreError."""
        return await self._store.live()

    async def remove(self, cookies: Sequence[str]) -> None:
        """Remove the rows of other workers, which have ended. Raises StoreError."""
        for each in cookies:
            await self._store.withdraw(each)

    async def withdraw(self) -> None:
        """Remove this worker's row, within a moment; if that fails it counts no more once its time is over."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(WITHDRAW_S):
                await asyncio.shield(asyncio.ensure_future(self._store.withdraw(self._cookie)))
