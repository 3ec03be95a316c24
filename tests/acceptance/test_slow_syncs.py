"""Preloaded, devkit/clusters/slow_syncs.c makes the syncs of one program wait, and of no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.clusters.slow_syncs import SlowSyncs
from devkit.processes.programs import program

pytestmark = pytest.mark.full("a library that only a benchmark preloads")

SYNC = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for line in sys.stdin:
    began = time.monotonic()
    os.fdatasync(file)
    print(time.monotonic() - began, flush=True)
"""


class Syncer:
    """A Python that syncs a file when it is asked to."""

    def __init__(self, folder: Path, syncs: SlowSyncs) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SYNC, folder / "file"],
            env=os.environ | syncs.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def sync_s(self) -> float:
        """How long a sync takes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture(autouse=True)
def compiler() -> None:
    """What the library is made with."""
    program("cc", "gcc")


def test_syncs_of_the_program_wait_for_as_long_as_is_asked_meanwhile(tmp_path: Path) -> None:
    """A process that runs already takes each new delay from its next sync on, and waits for nothing afterwards."""
    syncs = SlowSyncs(tmp_path, of=Path(sys.executable).name)
    syncer = Syncer(tmp_path, syncs)

    before = [syncer.sync_s() for _ in range(20)]
    with syncs.waiting(0.2):
        short = syncer.sync_s()
    with syncs.waiting(1.2):
        long = syncer.sync_s()
    after = [syncer.sync_s() for _ in range(20)]
    syncer.end()

    assert short >= 0.2
    assert long >= 1.2
    assert min(before) < 0.1
    assert min(after) < 0.1


def test_syncs_of_other_programs_wait_for_nothing(tmp_path: Path) -> None:
    """A program of another name syncs as ever, though the library is preloaded into it."""
    syncs = SlowSyncs(tmp_path, of="ceph-osd")
    syncer = Syncer(tmp_path, syncs)

    with syncs.waiting(5.0):
        took_s = [syncer.sync_s() for _ in range(5)]
    syncer.end()

    assert min(took_s) < 5.0
