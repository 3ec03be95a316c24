"""The trace in the system log of commands that change a store."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from remora.cli import trace as trace_module
from remora.cli.trace import myself, trace
from remora.config import Settings


def test_a_command_writes_a_line_to_the_system_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """One datagram has the event, what was and what is, and whose process wrote it, in a form that syslog reads."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(f"{folder}/log")
        monkeypatch.setattr(trace_module, "SOCKET", Path(folder, "log"))

        trace(
            "shard_claim", "a queue was claimed", queue="t", old="radosgw 1", new="nobody", **myself(Settings()).known
        )
        line = log.recv(4096).decode()

    host = Settings().ownership.host
    who = f"uid={os.getuid()} pid={os.getpid()} host={host}"
    said = f'INFO shard_claim: a queue was claimed queue=t old="radosgw 1" new=nobody {who}'
    assert line == f"<30>remora[{os.getpid()}]: {said}"


def test_a_host_without_a_system_log_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a container a command does what it is to do, and leaves no line."""
    monkeypatch.setattr(trace_module, "SOCKET", tmp_path / "none")

    trace("shard_claim", "a queue was claimed", queue="t")
