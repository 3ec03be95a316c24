"""`remora demo`: a daemon, ten events and a killed worker, of the installed package alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from remora.cli import demo, group

EVENTS = 10


def test_a_demo_delivers_each_event_though_a_worker_is_killed(tmp_path: Path) -> None:
    """All ten events are printed as they arrive, page and killed worker are named, and nothing is left."""
    done = subprocess.run(
        [sys.executable, "-m", "remora", "demo", "--pause", "0"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "REMORA_LOG_LEVEL": "nonsense of another daemon"},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    arrived = set(re.findall(r"^  arrived: ObjectCreated:Put album/(cat-\d+\.jpg)$", done.stdout, re.MULTILINE))
    assert arrived == {f"cat-{number}.jpg" for number in range(1, EVENTS + 1)}
    assert re.search(r"Its page: http://127\.0\.0\.1:\d+/\n", done.stdout)
    assert re.search(r"Killed worker [12] \(pid \d+\)", done.stdout)
    assert f"{EVENTS} of {EVENTS} events arrived" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("folder", "place"), [("/var/tmp", "/var/tmp"), ("/var/tmp/" + "x" * 60, "/tmp")])
def test_a_demo_of_a_daemon_that_ends_is_over(monkeypatch: pytest.MonkeyPatch, folder: str, place: str) -> None:
    """A daemon that cannot start ends the demo, which says what the daemon said, and does not wait for events. Its
    folder is where users have theirs, but for a path that is too long for sockets."""
    monkeypatch.setattr(demo, "COMMAND", (sys.executable, "-c", "import sys; sys.exit('no room')"))
    monkeypatch.setattr(demo, "LONGEST_S", 1e6)
    monkeypatch.setattr(tempfile, "tempdir", folder)

    done = CliRunner().invoke(group, ["demo"])

    assert done.exit_code == 1
    assert "no room" in done.output
    assert f"its queues in {place}/remora-demo-" in done.output
    assert f"0 of {EVENTS} events arrived" in done.output
