"""How many cores this process may use, and how many workers it starts for them."""

from __future__ import annotations

import os
from pathlib import Path

from remora.process.usage import control_groups

MOST_WORKERS = 4
"""Workers that are started unless the settings ask for more. Each takes memory also where it has nothing to do, and
four deliver what most hosts take in."""


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
