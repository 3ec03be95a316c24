"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

from remora.process.groups import control_groups


def usable_cores(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores of this process's affinity, or what its control group's quota allows where that is less; at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = min((_quota(folder) for folder in control_groups(proc, root)), default=float("inf"))
    return max(1, min(cores, int(quota))) if quota != float("inf") else cores


def _quota(folder: Path) -> float:
    """Cores' worth of time that a group may use; infinite where nothing is said."""
    try:
        most, period = (folder / "cpu.max").read_text().split()
        return float("inf") if most == "max" else int(most) / int(period)
    except (OSError, ValueError):
        return float("inf")
