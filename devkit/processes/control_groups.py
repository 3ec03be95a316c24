"""Control groups with limits, of version 1 or 2 as this machine has them, for one command each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")

PERIOD_US = 100_000


@contextmanager
def limited(memory_bytes: int, cores: float = 0) -> Iterator[list[str]]:
    """What comes before a command that is to run in a group with these limits; 0 cores: as many as there are.

    Where no group can be made, it skips the test on a laptop and fails it in CI.
    """
    quota = round(cores * PERIOD_US)
    try:
        made = list(_made(memory_bytes, quota))
    except OSError as exc:
        if "CI" in os.environ:
            pytest.fail(f"no control group can be made: {exc}")
        pytest.skip(f"needs to be allowed to make control groups: {exc}")
    joins = " && ".join(f"echo $$ > {group}/cgroup.procs" for group in made)
    try:
        yield ["sh", "-c", f'{joins} && exec "$@"', "sh"]
    finally:
        for group in made:
            group.rmdir()


def _made(memory_bytes: int, quota_us: int) -> Iterator[Path]:
    name = f"remora-{os.getpid()}"
    if (ROOT / "memory").is_dir():
        limits = {"memory": {"memory.limit_in_bytes": memory_bytes}, "cpu": {"cpu.cfs_quota_us": quota_us or -1}}
        for controller, files in limits.items():
            yield _group(ROOT / controller / name, files)
        return
    _hand_down("memory", "cpu")
    most = f"{quota_us} {PERIOD_US}" if quota_us else f"max {PERIOD_US}"
    yield _group(ROOT / name, {"memory.max": memory_bytes, "cpu.max": most})


def _group(folder: Path, files: Mapping[str, object]) -> Path:
    folder.mkdir()
    for name, value in files.items():
        (folder / name).write_text(str(value))
    return folder


def _hand_down(*controllers: str) -> None:
    """Have groups below the topmost one get these controllers.

    The topmost group of a container may have processes of its own, which the kernel then wants in a group below.
    """
    control = ROOT / "cgroup.subtree_control"
    missing: Sequence[str] = [each for each in controllers if each not in control.read_text().split()]
    if not missing:
        return
    wanted = " ".join(f"+{each}" for each in missing)
    try:
        control.write_text(wanted)
    except OSError:
        rest = ROOT / "rest"
        rest.mkdir(exist_ok=True)
        for pid in (ROOT / "cgroup.procs").read_text().split():
            (rest / "cgroup.procs").write_text(pid)
        control.write_text(wanted)
