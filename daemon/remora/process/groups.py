"""The control groups of this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CGROUP, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def control_groups(proc: Path = CGROUP, root: Path = ROOT) -> list[Path]:
    """The folders of this process's group of version 2 and of all that it lies in."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return []
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    own = root / path.lstrip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]


def memory_limit(proc: Path = CGROUP, root: Path = ROOT, names: Sequence[str] = ("memory.max",)) -> int:
    """Returns the bytes of memory that the kernel grants this process's groups; 0 where it says nothing.

    `names` are the files of a group that count: systemd writes `MemoryMax=` into memory.max and `MemoryHigh=` into
    memory.high.
    """
    most = (_most(folder / name) for folder in control_groups(proc, root) for name in names)
    return min((each for each in most if each), default=0)


def _most(file: Path) -> int:
    try:
        text = file.read_text().strip()
        return 0 if text == "max" else int(text)
    except (OSError, ValueError):
        return 0
