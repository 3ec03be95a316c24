"""How a command waits for a cluster: for one that does not answer, and for its host's credit to use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar

from remora.config import RadosSettings, Settings
from remora.ports.credit import NO_TRAFFIC, StoreTraffic

notice: ContextVar[Callable[[str], AbstractContextManager[object]]] = ContextVar("notice", default=nullcontext)
"""Says what is waited for while its block lasts. Commands set it; where none runs nothing is said."""

credit: ContextVar[Callable[[Settings], AbstractAsyncContextManager[StoreTraffic]]] = ContextVar(
    "credit", default=lambda _: nullcontext(NO_TRAFFIC)
)
"""Meters what is done with the store while its block lasts. Commands set it, too."""


async def answered(known: asyncio.Event, rados: RadosSettings) -> None:
    """Wait for the cluster; where it is still not connected afterwards, the first call says why."""
    if known.is_set():
        return
    longest_s = rados.mount_timeout_s + 1
    with suppress(TimeoutError), notice.get()(f"waiting for the Ceph cluster to answer, for up to {longest_s:g} s"):
        async with asyncio.timeout(longest_s):
            await known.wait()
