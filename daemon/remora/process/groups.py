"""The control groups of this process, of version 2 and of version 1, which hosts of older systems have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CGROUP, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")

_UNLIMITED = 1 << 60
"""What version 1 says where there is no limit is above this, and depends on the size of a page."""


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
