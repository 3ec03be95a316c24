"""The README's first commands do what the README says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from devkit.processes.programs import program

pytestmark = pytest.mark.full("the demo shows to people what other tests guard")

DEMO = Path(__file__).parents[2] / "scripts/demo"


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_demo_of_the_embedded_store(tmp_path: Path) -> None:
    """`scripts/demo`, typed in another folder, says PASS, keeps a report, exits 0 and leaves nothing running."""
    for needed, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        program(needed, package)

    pid, done = demo(tmp_path, "--seconds", "20", timeout_s=880)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search("^PASS", done.stdout, re.MULTILINE)
    assert re.search("events of 11 partitions in commit order", done.stdout)
    report = re.search(r"report: (/.*/index\.html)$", done.stdout, re.MULTILINE)
    assert report
    assert Path(report[1]).is_file()
    assert f"demo-{pid}" not in running()


@pytest.mark.ceph
@pytest.mark.kafka
def test_the_demo_of_a_cluster(tmp_path: Path) -> None:
    """`scripts/demo --store rados`, typed in another folder, ends with PASS, exits 0 and removes its clusters."""
    for needed, package in (("ceph-osd", "ceph-osd"), ("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        program(needed, package)

    pid, done = demo(tmp_path, "--store", "rados", timeout_s=400)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.strip().splitlines()[-1].startswith("PASS")
    assert f"demo-{pid}" not in running()


def demo(folder: Path, *arguments: str, timeout_s: float) -> tuple[int, subprocess.CompletedProcess[str]]:
    """The demo, run to its end; and the number of its process, which its clusters are named after."""
    command = [str(DEMO), *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return process.pid, subprocess.CompletedProcess(command, process.returncode, out, err)


def running() -> str:
    """The development clusters that there are."""
    return subprocess.run([DEMO.parent / "dev/running"], capture_output=True, text=True, check=True).stdout
