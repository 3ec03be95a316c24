"""What this process uses of its host: processor, memory and network, in percent.

psutil would read the same files of /proc, but not the limit of a control group, and is a dependency to compile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from remora.config.units import AUTO
from remora.config.workers import BalanceSettings
from remora.model.host_limits import HostLimits
from remora.process.groups import memory_limit
from remora.process.network import PROC, SYS, Card, default_card

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_IDLE = (3, 4)
"""The columns of /proc/stat in which a processor does nothing, or waits for a disk."""
_COUNTED = 8
"""What follows these columns, time of virtual machines, is in the first two already."""


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds of the clock, of this process with those that it was kept from, the host's ticks: busy ones, all; and the
    card of its default route."""

    clock_s: float
    process_s: float
    busy: int
    all: int
    card: Card | None


class Usage:
    """Asked again and again, it says what was used since the last time."""

    def __init__(
        self, workers: int, proc: Path = PROC, sys: Path = SYS, kept_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`workers` workers share the host's memory; `kept_s` says for how long, in all, this process was kept from
        running."""
        self._proc = proc
        self._sys = sys
        self._kept_s = kept_s
        self._workers = max(1, workers)
        self._last = self._times()

    def percents(self, limits: HostLimits) -> Mapping[str, float]:
        """Returns the percentages of `cpu`, of one core, `host_cpu`, of all cores, `memory`, of its limit, and
        `host_network_in` and `host_network_out`, of what the card of the default route can carry.

        Time in which the process was kept from running counts as `cpu`: it can be used for nothing else.
        What cannot be read, or has no limit, counts as 0.
        """
        last, self._last = self._last, self._times()
        now, passed_s, ticks = self._last, self._last.clock_s - last.clock_s, self._last.all - last.all
        came, went = _passed(last.card, now.card)
        carried = limits.network * passed_s
        return {
            "cpu": 100 * (now.process_s - last.process_s) / passed_s if passed_s > 0 else 0.0,
            "host_cpu": 100 * (now.busy - last.busy) / ticks if ticks > 0 else 0.0,
            "memory": 100 * self._resident() / limits.memory if limits.memory else 0.0,
            "host_network_in": 100 * came / carried if carried > 0 else 0.0,
            "host_network_out": 100 * went / carried if carried > 0 else 0.0,
        }

    def limits(self, settings: BalanceSettings) -> HostLimits:
        """Returns what this process's memory and the host's network are measured by, and where each figure is from."""
        memory, memory_from = self._memory(settings.memory_limit)
        network, network_from = self._network(settings.network_bytes)
        return HostLimits(memory, memory_from, network, network_from)

    def _memory(self, configured: int) -> tuple[int, str]:
        if configured > 0:
            return configured, "balance.memory_limit"
        names = ("memory.max", "memory.high") if configured == AUTO else ("memory.max",)
        if granted := memory_limit(names=names):
            return granted // self._workers, "control group"
        of_host = self._host_memory() if configured == AUTO else 0
        return (of_host // self._workers, "host") if of_host else (0, "")

    def _network(self, configured: int) -> tuple[int, str]:
        if configured != AUTO:
            return configured, "balance.network_bytes" if configured else ""
        card = self._last.card
        return (card.bytes_per_second, card.name) if card else (0, "")

    def _times(self) -> _Times:
        try:
            line = (self._proc / "stat").read_text().split("\n", 1)[0]
            ticks = [int(each) for each in line.split()[1:]][:_COUNTED]
        except (OSError, ValueError):
            ticks = []
        idle = sum(ticks[place] for place in _IDLE if place < len(ticks))
        card = default_card(self._proc, self._sys)
        return _Times(time.monotonic(), time.process_time() + self._kept_s(), sum(ticks) - idle, sum(ticks), card)

    def _host_memory(self) -> int:
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
        except (OSError, ValueError, IndexError, StopIteration):
            return 0

    def _resident(self) -> int:
        try:
            return int((self._proc / "self" / "statm").read_text().split()[1]) * PAGE_BYTES
        except (OSError, ValueError, IndexError):
            return 0


def _passed(last: Card | None, now: Card | None) -> tuple[int, int]:
    """What a card received and sent between two looks; nothing where it is another one, or was made anew."""
    if last is None or now is None or last.name != now.name:
        return 0, 0
    return max(0, now.received - last.received), max(0, now.sent - last.sent)
