"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores of this process's affinity, or what its control group's quota allows where that is less; at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = min((_quota(folder) for folder in _groups(proc, root)), default=float("inf"))
    return max(1, min(cores, int(quota))) if quota != float("inf") else cores


def _groups(proc: Path, root: Path) -> list[Path]:
    """The folders of this process's group of version 2 and of all that it lies in."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return []
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    own = root / path.lstrip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]


def _quota(folder: Path) -> float:
    """Cores' worth of time that a group may use; infinite where nothing is said."""
    try:
        most, period = (folder / "cpu.max").read_text().split()
        return float("inf") if most == "max" else int(most) / int(period)
    except (OSError, ValueError):
        return float("inf")
