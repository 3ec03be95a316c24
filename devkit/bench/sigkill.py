"""A server that gets SIGKILL while clients ask it, and is started again in its directory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")

AGAIN_S = 0.02
"""The pause before a client sends again what got no answer."""

PATIENCE_S = 180.0
"""How long clients may take in all, the time without a server included."""


def over_a_sigkill(
    running: Callable[[], AbstractContextManager[Callable[[], object]]],
    clients: Callable[[Callable[[], None]], Coroutine[object, object, object]],
    look: Callable[[], T],
) -> T:
    """What a look finds in the server that was started again, once the clients have ended.

    `running` gives what kills the server. `clients` calls what it is given when the time for that has come.
    """
    due = threading.Event()

    async def asked() -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await clients(due.set)
        finally:
            due.set()

    with ThreadPoolExecutor(1) as pool, running() as kill:
        asking = pool.submit(asyncio.run, asked())
        due.wait()
        kill()
        with running():
            asking.result()
            return look()
