"""What the devkit reads of processes."""

from __future__ import annotations

import os
import subprocess
import sys

from devkit.processes.processes import memory_bytes


def test_a_process_that_has_ended_unreaped_has_no_memory() -> None:
    """A child that nobody has waited for yet is counted as nothing, and its family's memory is still known."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

        now, most = memory_bytes(os.getpid())

        assert memory_bytes(child.pid) == (0, 0)
        assert 0 < now <= most
    finally:
        child.wait()
