"""Jobs and SIGTERM: a line and a code, and no traceback."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from devkit.processes.processes import family
from devkit.waits import until
from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.termination import ENDED, ended_by_sigterm
from support.replayed import events, prepare


def test_sigterm_ends_with_a_line_and_its_code(capfd: pytest.CaptureFixture[str]) -> None:
    """What was open is closed, one line says what happened, and the handler from before is back."""
    before, closed = signal.getsignal(signal.SIGTERM), threading.Event()

    def job() -> None:
        with ExitStack() as opened:
            opened.callback(closed.set)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught, ended_by_sigterm():
        job()

    assert caught.value.code == ENDED
    assert closed.is_set()
    assert capfd.readouterr().err == "remora: ended by SIGTERM; it can be run again\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_a_job_makes_of_the_signal_is_in_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    """A job that says how to go on has that in the line, and ends with the same code."""

    def job() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise ReplayError("interrupted; --resume goes on with it") from None

    with pytest.raises(SystemExit) as caught, ended_by_sigterm():
        job()

    assert caught.value.code == ENDED
    assert capfd.readouterr().err == "remora: ended by SIGTERM: interrupted; --resume goes on with it\n"


@pytest.mark.parametrize("error", [ReplayError("no such topic"), KeyboardInterrupt()])
def test_other_ends_are_as_they_were(error: BaseException) -> None:
    """Without the signal an error, and Ctrl-C, go on as they are."""
    with pytest.raises(type(error)), ended_by_sigterm():
        raise error


@pytest.mark.spark
@pytest.mark.full("the rule itself is held at the gate; this starts a Java of its own")
@pytest.mark.timeout(1800)
def test_a_job_ends_with_its_java(tmp_path: Path) -> None:
    """A replay that gets SIGTERM while it sends ends with the code, without a traceback, and leaves no process."""
    prepared = prepare(tmp_path / "prepared", events(40))
    argv = [sys.executable, "-m", "remora", "replay", "run", str(prepared.path), "--out", str(tmp_path / "run")]
    argv += ["--null", "--speed", "0.00001", "--parts", "2"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not list((tmp_path / "run").glob("journal/part=*/attempt=*.jsonl")):
            assert process.poll() is None, process.communicate()
            threading.Event().wait(0.1)
        children = family(process.pid)
        process.terminate()
        out, err = process.communicate()

    assert process.returncode == ENDED, err
    assert "Traceback" not in out + err
    assert err.endswith("remora: ended by SIGTERM: interrupted; --resume goes on with it\n")
    # Those that nobody waits for are gone a moment after their pipes.
    asyncio.run(until(lambda: not any(map(_runs, children)), "the end of its processes"))


def _runs(process: int) -> bool:
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())  # it is empty of one that has ended
    except OSError:
        return False
