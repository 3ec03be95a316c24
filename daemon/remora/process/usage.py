"""What this process uses of its host: processor and memory, in percent.

psutil would read the same two files of /proc, but not the limit of a control group, and is a dependency to compile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from remora.config import BalanceSettings
from remora.process.groups import memory_limit

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_IDLE = (3, 4)
"""The columns of /proc/stat in which a processor does nothing, or waits for a disk."""
_COUNTED = 8
"""What follows these columns, time of virtual machines, is in the first two already."""


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds of the clock, of this process with those that it was kept from, and the host's ticks: busy ones, all."""

    clock_s: float
    process_s: float
    busy: int
    all: int


class Usage:
    """Asked again and again, it says what was used since the last time."""

    def __init__(self, workers: int, proc: Path = Path("/proc"), kept_s: Callable[[], float] = lambda: 0.0) -> None:
        """`workers` workers share the memory of the control group; `kept_s` says for how long, in all, this process was
        kept from running."""
        self._proc = proc
        self._kept_s = kept_s
        self._limit = memory_limit() // max(1, workers)
        self._last = self._times()

    def percents(self, settings: BalanceSettings) -> Mapping[str, float]:
        """The percentages of `cpu`, of one core, `host_cpu`, of all cores, and `memory`, of its limit.

        Time in which the process was kept from running counts as `cpu`: it can be used for nothing else.
        What cannot be read, or has no limit, counts as 0.
        """
        last, self._last = self._last, self._times()
        now, passed_s, ticks = self._last, self._last.clock_s - last.clock_s, self._last.all - last.all
        limit = settings.memory_limit or self._limit
        return {
            "cpu": 100 * (now.process_s - last.process_s) / passed_s if passed_s > 0 else 0.0,
            "host_cpu": 100 * (now.busy - last.busy) / ticks if ticks > 0 else 0.0,
            "memory": 100 * self._resident() / limit if limit else 0.0,
        }

    def _times(self) -> _Times:
        try:
            line = (self._proc / "stat").read_text().split("\n", 1)[0]
            ticks = [int(each) for each in line.split()[1:]][:_COUNTED]
        except (OSError, ValueError):
            ticks = []
        idle = sum(ticks[place] for place in _IDLE if place < len(ticks))
        return _Times(time.monotonic(), time.process_time() + self._kept_s(), sum(ticks) - idle, sum(ticks))

    def _resident(self) -> int:
        try:
            return int((self._proc / "self" / "statm").read_text().split()[1]) * PAGE_BYTES
        except (OSError, ValueError, IndexError):
            return 0
