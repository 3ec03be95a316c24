"""What this process uses of its host, and what it may use: processor, memory, network, and its control groups.

psutil would read the same files, but neither the limits of control groups nor which card the default route has,
and is a dependency to compile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from remora.config.units import AUTO
from remora.config.workers import BalanceSettings
from remora.policy.ownership.loads import HostLimits

CGROUP, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")

_UNLIMITED = 1 << 60
"""What version 1 says where there is no limit is above this, and depends on the size of a page."""

MOST_WORKERS = 4
"""Workers that are started unless the settings ask for more. Each takes memory also where it has nothing to do, and
four deliver what most hosts take in."""


def control_groups(proc: Path = CGROUP, root: Path = ROOT, controller: str = "") -> list[Path]:
    """The folders of this process's group and of all that it lies in: of version 2, or of a controller of version 1.

    In a container /proc may name a group of the host, and only the container's part of it is mounted: a folder that is
    not there says nothing.
    """
    try:
        lines = [line.split(":", 2) for line in proc.read_text().splitlines()]
    except OSError:
        return []
    top = root / controller
    path = next((where for _, names, where in lines if controller in names.split(",")), None)
    if path is None:
        return []
    own = top / path.lstrip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(top)]


def memory_limit(proc: Path = CGROUP, root: Path = ROOT, names: Sequence[str] = ("memory.max",)) -> int:
    """Returns the bytes of memory that the kernel grants this process's groups; 0 where it says nothing.

    `names` are the files of a group that count: systemd writes `MemoryMax=` into memory.max and `MemoryHigh=` into
    memory.high. Version 1 has one limit, which always counts.
    """
    files = [folder / name for folder in control_groups(proc, root) for name in names]
    files += [folder / "memory.limit_in_bytes" for folder in control_groups(proc, root, "memory")]
    return min((each for each in map(_most, files) if 0 < each < _UNLIMITED), default=0)


def _most(file: Path) -> int:
    try:
        text = file.read_text().strip()
        return 0 if text == "max" else int(text)
    except (OSError, ValueError):
        return 0


PROC, SYS = Path("/proc"), Path("/sys/class/net")
_UP, _GATEWAY = 0x1, 0x2
"""Flags of a route: see route(8)."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card: `bytes_per_second` in each direction, 0 where it does not tell; `received` and `sent` since it is up."""

    name: str
    bytes_per_second: int
    received: int
    sent: int


def default_card(proc: Path = PROC, sys: Path = SYS) -> Card | None:
    """Returns the card of the default route with the least metric, of IPv4 before IPv6; None where there is none."""
    if (route := min(_default_routes(proc), default=None)) is None:
        return None
    name = route[2]
    received, sent = _traffic(proc, name)
    return Card(name, _speed(sys / name) * 10**6 // 8, received, sent)


def _default_routes(proc: Path) -> Iterator[tuple[int, int, str]]:
    """Family, metric and card of each default route; columns as in the kernel's fib_trie.c and route.c of IPv6."""
    for columns in _rows(proc / "net" / "route"):
        if len(columns) >= 8 and columns[1] == columns[7] == "00000000" and int(columns[3], 16) & _UP:
            yield 4, int(columns[6]), columns[0]
    for columns in _rows(proc / "net" / "ipv6_route"):
        if len(columns) >= 10 and set(columns[0]) == {"0"} and columns[1] == "00" and int(columns[8], 16) & _GATEWAY:
            yield 6, int(columns[5], 16), columns[9]


def _traffic(proc: Path, name: str) -> tuple[int, int]:
    for columns in _rows(proc / "net" / "dev", apart=":"):
        if columns[0] == name and len(columns) >= 10:
            return int(columns[1]), int(columns[9])
    return 0, 0


def _speed(card: Path) -> int:
    """Megabits per second; of a bridge, a bond or a VLAN that does not tell the sum of what lies below it."""
    try:
        own = int((card / "speed").read_text())
    except (OSError, ValueError):
        own = 0
    if own > 0:
        return own
    try:
        return sum(_speed(below) for below in card.iterdir() if below.name.startswith("lower_"))
    except OSError:
        return 0


def _rows(file: Path, apart: str = " ") -> Iterator[list[str]]:
    try:
        text = file.read_text()
    except OSError:
        return
    yield from (columns for line in text.splitlines() if (columns := line.replace(apart, " ", 1).split()))


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


def default_workers() -> int:
    """How many workers there are where `supervisor.workers` is 0."""
    return min(MOST_WORKERS, usable_cores())


def usable_cores(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores of this process's affinity, or what its control group's quota allows where that is less; at least 1."""
    cores = len(os.sched_getaffinity(0))
    quotas = [_quota(folder) for folder in control_groups(proc, root)]
    quotas += [_quota_of_version_1(folder) for folder in control_groups(proc, root, "cpu")]
    quota = min(quotas, default=float("inf"))
    return max(1, min(cores, int(quota))) if quota != float("inf") else cores


def _quota(folder: Path) -> float:
    """Cores' worth of time that a group may use; infinite where nothing is said."""
    try:
        most, period = (folder / "cpu.max").read_text().split()
        return float("inf") if most == "max" else int(most) / int(period)
    except (OSError, ValueError):
        return float("inf")


def _quota_of_version_1(folder: Path) -> float:
    """As `_quota`."""
    try:
        most, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return most / period if most > 0 else float("inf")
    except (OSError, ValueError):
        return float("inf")
