"""Questions to brokers that may be away for a moment, as when one of them is restarted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from remora_pipeline.replay.errors import ReplayError, ReplayRefused

T = TypeVar("T")

_AGAIN_S = 0.5


def patiently(ask: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """The answer to a question, asked again for this long while it fails. Raises what the last one raised.

    A refusal is an answer.
    """
    return asyncio.run(_patiently(ask, patience_s))


async def _patiently(ask: Callable[[], Awaitable[T]], patience_s: float) -> T:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return await ask()
        except ReplayRefused:
            raise
        except ReplayError:
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(_AGAIN_S)
