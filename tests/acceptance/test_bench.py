"""The benchmarks run, on a load that is far too small to measure anything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.programs import program

BENCH = Path(__file__).parents[2] / "scripts/bench"


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """Clusters that the benchmarks of this module share, and that are removed afterwards."""
    for needed, package in (("ceph-osd", "ceph-osd"), ("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        program(needed, package)
    if shutil.which("nginx", path="/usr/sbin:/usr/bin") is None:
        program("nginx", "nginx-light")
    chosen = f"bench-test-{os.getpid()}"
    yield chosen
    for kind in ("ceph", "kafka"):
        subprocess.run([BENCH.with_name(f"dev-{kind}"), "down", "--name", chosen], check=False, capture_output=True)


def figures(tmp_path: Path, *arguments: str) -> Any:
    """What a benchmark writes as JSON; what it prints goes into the failure when it fails."""
    file = tmp_path / "figures.json"
    argv = [str(BENCH), *arguments, "--keep", "--json", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(file.read_text())


@pytest.mark.ceph
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_drain_measures_both_and_counts_every_event(tmp_path: Path, name: str) -> None:
    """Remora and radosgw drain the same number of entries, and each figure of the comparison is there."""
    found = figures(tmp_path, "drain", "--entries", "2000", "--queues", "3", "--partitions", "2", "--name", name)

    assert found["delivered"]["events"] == 2000
    assert (found["delivered"]["copies"], found["delivered"]["lost"]) == (0, 0)
    assert found["posted"] == 2000
    assert set(found["ratio"]) == {"rate", "cpu", "peak_rss"}
    for kind in ("remora", "radosgw"):
        (turn,) = found["turns"][kind]
        assert turn["entries"] == 2000
        assert 0 < turn["counted"] <= 2000
        assert turn["rate"] > 0
        assert turn["peak_rss_bytes"] > 10_000_000
        assert set(turn["cpu_s_per_1000"]) == {"daemon", "sink", "osds"}


@pytest.mark.ceph
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_memory_is_told_for_each_backlog(tmp_path: Path, name: str) -> None:
    """Remora's memory is told idle, at each backlog and after the drain, which loses nothing."""
    found = figures(tmp_path, "memory", "--backlogs", "500,2000", "--hold", "1", "--queues", "3", "--name", name)

    assert [step["backlog"] for step in found["steps"]] == [0, 500, 2000, 0]
    assert all(step["peak_rss_bytes"] >= step["rss_bytes"] > 10_000_000 for step in found["steps"])
    assert found["delivered"]["lost"] == 0
