"""How long this process stands still: how late its event loop wakes up, and while Python looks for garbage.

A process that waits for a processor, that a control group's quota holds back, or that is stopped and continued again
and again, uses little processor time and can still do no more. What it is kept from shows in timers that are late
while the process computes nothing. /proc/self/schedstat counts waits for a processor only, not a stopped process.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from remora.metrics import Telemetry

PROBE_S = 0.05
"""Half of a quota's period of 100 ms, so that much of each pause is seen; a quarter of a percent of a core."""


class Kept:
    """Counts the seconds for which this process was kept from running."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """So far, of one core; a loop that is late because it computes does not count."""

    async def run(self) -> None:
        """Count until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due, used_s = loop.time() + PROBE_S, time.process_time()
            await asyncio.sleep(PROBE_S)
            self.seconds += kept_s(loop.time() - due, time.process_time() - used_s)


def kept_s(late_s: float, used_s: float) -> float:
    """For how long a timer that is `late_s` late was kept back, beside `used_s` of processor time since it was set."""
    return max(0.0, late_s - used_s)


async def measure_lag(telemetry: Telemetry, interval_s: float = 1.0) -> None:
    """Report the loop's lag every `interval_s` until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_s
        await asyncio.sleep(interval_s)
        telemetry.loop_lag(max(0.0, loop.time() - due))


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
