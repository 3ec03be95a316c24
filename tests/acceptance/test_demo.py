"""The README's first command does what the README says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.programs import program

DEMO = Path(__file__).parents[2] / "scripts/demo"


@pytest.mark.ceph
@pytest.mark.kafka
@pytest.mark.timeout(420)
def test_the_demo_ends_with_pass_and_leaves_nothing_running(tmp_path: Path) -> None:
    """`scripts/demo --store rados`, typed in another folder, ends with PASS, exits 0 and removes its clusters."""
    for needed, package in (("ceph-osd", "ceph-osd"), ("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        program(needed, package)
    before = running()

    done = subprocess.run(
        [DEMO, "--store", "rados"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip().splitlines()[-1].startswith("PASS")
    assert running() == before


def running() -> str:
    """The development clusters that there are."""
    return subprocess.run([DEMO.parent / "dev/running"], capture_output=True, text=True, check=True).stdout
