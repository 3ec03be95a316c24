"""Requests whose topic gets another number of shards: they are repeated, and no sender need know of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from remora.model.errors import TopicMoved
from remora.servers.http.begun import in_task

T = TypeVar("T")

MOVING_S, MOVED_PAUSE_S = 10.0, 0.02
"""For how long, and with which pauses, a request is repeated whose topic gets another number of shards."""


async def while_moving(work: Callable[[], Awaitable[T]]) -> T:
    """Do something, and again while it is refused because the topic moves: nothing was done then.

    Raises TopicMoved when the topic still moves after MOVING_S.
    """
    until = asyncio.get_running_loop().time() + MOVING_S
    while True:
        try:
            return await work()
        except TopicMoved:
            if asyncio.get_running_loop().time() >= until:
                raise
        await in_task()
        await asyncio.sleep(MOVED_PAUSE_S)
