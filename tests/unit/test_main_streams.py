"""Commands whose standard streams were closed before they began."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from devkit.processes.daemon import write_config


@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_runs_without_standard_error(tmp_path: Path, closed: str) -> None:
    """A command that tells its steps does its work where nobody reads them, and no file gets a stream's number."""
    store = tmp_path / "queues"
    config = write_config(tmp_path / "remora.toml", {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(store)}})
    program = [sys.executable, "-m", "remora"]
    created = [*program, "topic", "create", "orders", "--endpoint", "http://127.0.0.1:1", "-c", str(config)]
    assert subprocess.run(created, check=False).returncode == 0

    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *program, "store", "check", "-c", str(config)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) is (">&- 2" not in closed)


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_what_is_opened_later_gets_no_number_of_a_stream(tmp_path: Path, closed: str) -> None:
    """The first file that is opened is behind the standard streams, and what is written to these goes nowhere."""
    told = tmp_path / "told"
    text = (
        "import os, sys; from remora.__main__ import open_streams; open_streams(); print(1); print(2, file=sys.stderr);"
        f"sys.stderr.flush(); os.write(os.open({str(told)!r}, os.O_WRONLY | os.O_CREAT), b'kept'); os.write(2, b'lost')"
    )

    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", text], check=False)

    assert done.returncode == 0
    assert told.read_text() == "kept"
