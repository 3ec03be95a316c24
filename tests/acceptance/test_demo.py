"""The README's first commands do what the README says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.programs import program

DEMO = Path(__file__).parents[2] / "scripts/demo"


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_the_demo_of_the_embedded_store(tmp_path: Path) -> None:
    """`scripts/demo`, typed in another folder, ends with PASS, exits 0 and leaves nothing running."""
    for needed, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        program(needed, package)
    before = running()

    done = demo(tmp_path, timeout_s=280)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip().splitlines()[-1].startswith("PASS")
    assert running() == before


@pytest.mark.ceph
@pytest.mark.kafka
@pytest.mark.timeout(420)
def test_the_demo_of_a_cluster(tmp_path: Path) -> None:
    """`scripts/demo --store rados`, typed in another folder, ends with PASS, exits 0 and removes its clusters."""
    for needed, package in (("ceph-osd", "ceph-osd"), ("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        program(needed, package)
    before = running()

    done = demo(tmp_path, "--store", "rados", timeout_s=400)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip().splitlines()[-1].startswith("PASS")
    assert running() == before


def demo(folder: Path, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """The demo, run to its end."""
    return subprocess.run(
        [DEMO, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=timeout_s
    )


def running() -> str:
    """The development clusters that there are."""
    return subprocess.run([DEMO.parent / "dev/running"], capture_output=True, text=True, check=True).stdout
