"""How long this process stands still while Python looks for garbage."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol

_MOST = 10_000


class CountsCollections(Protocol):
    """Counts a collection of a generation, which took so long."""

    def collected(self, generation: int, seconds: float) -> None: ...


class GarbageWatch:
    """Notes each collection while it is entered. It may happen in any thread, at any allocation, also while a metric's
    lock is held: so a collection is only noted, and `report` counts it."""

    def __init__(self) -> None:
        self._found: deque[tuple[int, float]] = deque(maxlen=_MOST)
        self._began = 0.0

    def __enter__(self) -> GarbageWatch:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._found.append((info["generation"], time.perf_counter() - self._began))

    def report(self, to: CountsCollections) -> None:
        """Count what was noted since the last time."""
        while self._found:
            to.collected(*self._found.popleft())
