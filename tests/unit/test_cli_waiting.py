"""Commands that wait say so, and for what."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.cli.send import WaitNotice
from remora.model.exits import Exit
from support.commands import Run, config, remora

__all__ = ["config", "remora"]


def test_a_wait_is_told_at_once_and_then_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """However many attempts of however many requests fail, a line comes at the first and each 10 s after it."""
    now = 0.0
    waiting = WaitNotice(60.0, lambda: now)
    for tenth in range(250):
        now = tenth / 10
        waiting.tell("unix:/i: cannot connect: No such file or directory", now)

    assert capsys.readouterr().err.splitlines() == [
        f"remora: waiting, unix:/i: cannot connect: No such file or directory ({at} s of 60 s)" for at in (0, 10, 20)
    ]


def test_sending_without_a_daemon_says_what_it_waits_for(remora: Run, config: Path, folder: Path) -> None:
    """The first line comes with the first attempt that fails, and the last one says how long it was tried."""
    config.write_text("")
    record = folder / "record"
    record.write_text('{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": "k"}}}\n')

    done = remora("send", "t", record, "--to", f"unix:{folder}/none", "--timeout", "1s", "-c", config)

    assert done.code == Exit.UNAVAILABLE
    assert done.err.splitlines()[0].startswith(f"remora: waiting, unix:{folder}/none: cannot connect: No such file")
