"""How many cores may be used: the affinity, and the quotas of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remora.process.usage import default_workers, usable_cores


@pytest.mark.parametrize(
    ("own", "above", "cores"),
    [
        ("max 100000", "max 100000", 8),
        ("200000 100000", "max 100000", 2),
        ("max 100000", "350000 100000", 3),
        ("50000 100000", "max 100000", 1),
        ("nonsense", "max 100000", 8),
        ("1600000 100000", "max 100000", 8),
    ],
)
def test_the_smallest_bound_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, above: str, cores: int
) -> None:
    """A quota of the group or of one that it lies in bounds the affinity, and at least one core is used."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    group = tmp_path / "system.slice" / "remora.service"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(own)
    (group.parent / "cpu.max").write_text(above)
    (tmp_path / "cgroup").write_text("1:cpu:/elsewhere\n0::/system.slice/remora.service\n")

    assert usable_cores(tmp_path / "cgroup", tmp_path) == cores


@pytest.mark.parametrize(
    ("own", "above", "cores"),
    [(-1, -1, 8), (200_000, -1, 2), (-1, 350_000, 3), (50_000, -1, 1), (200_000, 100_000, 1)],
)
def test_a_quota_of_version_1_counts_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: int, above: int, cores: int
) -> None:
    """Where a host has a tree of groups for each controller, that of the processors has a quota and a period."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    group = tmp_path / "cpu" / "remora"
    group.mkdir(parents=True)
    for folder, quota in ((group, own), (group.parent, above)):
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cgroup").write_text("9:memory:/\n4:cpu,cpuacct:/remora\n0::/\n")

    assert usable_cores(tmp_path / "cgroup", tmp_path) == cores


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    """A missing file is no bound."""
    assert usable_cores(tmp_path / "none", tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (3, 3), (4, 4), (64, 4)])
def test_there_are_as_many_workers_as_cores_up_to_four(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    """A large host does not start a worker for each of its cores, most of which would only take memory."""
    monkeypatch.setattr("remora.process.usage.usable_cores", lambda: cores)

    assert default_workers() == workers
