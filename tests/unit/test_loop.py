"""The end of a process's event loop: nothing that is left of it holds the process up."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from remora.model.exits import Exit

LEAVES = """
import asyncio, sys, threading
from remora.config import LogSettings
from remora.metrics import configure_logging
from remora.model.exits import Exit
from remora.process.program import end_at_once
from remora.process.loop import run_loop

kept = []

async def main():
    configure_logging(LogSettings(format="json"))
    loop = asyncio.get_running_loop()
    match sys.argv[1]:
        case "a connection":
            kept.append(await asyncio.open_connection("127.0.0.1", int(sys.argv[2])))
        case "a thread":
            loop.run_in_executor(None, threading.Event().wait)
        case "a crash":
            loop.run_in_executor(None, threading.Event().wait)
            raise LookupError
    return Exit.DRAIN_TIMEOUT

end_at_once(run_loop(main(), float(sys.argv[3])))
"""
"""A process whose work ends and leaves something behind."""


def left(what: str, port: int = 0, within_s: float = 0.1) -> tuple[int, list[dict[str, object]]]:
    """The exit code and the log of a process that leaves this behind; warnings are errors, as in all tests."""
    command = [sys.executable, "-W", "error", "-c", LEAVES, what, str(port), str(within_s)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]


def test_nothing_is_left() -> None:
    """A loop that closes ends with the exit code of its work, and says nothing."""
    assert left("nothing", within_s=600) == (Exit.DRAIN_TIMEOUT, [])


def test_a_connection_is_left() -> None:
    """A connection that nobody closes holds nothing up: the process ends with its exit code, and says where it led."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        code, (line,) = left("a connection", port)

    assert code == Exit.DRAIN_TIMEOUT
    assert (line["event"], line["connections"]) == ("loop_not_closed", [f"127.0.0.1:{port}"])


@pytest.mark.parametrize(("what", "code"), [("a thread", Exit.DRAIN_TIMEOUT), ("a crash", Exit.FAILURE)])
def test_a_thread_is_left(what: str, code: Exit) -> None:
    """A thread that waits for ever holds nothing up, also where the work fails, and is named."""
    ended, (line,) = left(what)

    assert ended == code
    assert (line["event"], line["connections"]) == ("loop_not_closed", [])
    assert "uvloop_0" in line["threads"]  # type: ignore[operator]  # a list of names
