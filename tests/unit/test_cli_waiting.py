"""Commands that wait say so, and for what."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from devkit.processes.daemon import write_config
from remora.cli.output import run_async
from remora.cli.send import WaitNotice
from remora.cluster_answer import answered
from remora.config import RadosSettings
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


def test_a_claim_says_what_it_waits_for(
    remora: Run, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no worker takes what is claimed a line stands on standard error, and each queue has its own failure."""
    write_config(config, {"store": {"kind": "sqlite"}, "sqlite": {"directory": str(tmp_path / "queues"), "files": 1}})
    assert remora("topic", "create", "t", "--endpoint", "http://h", "--shards", "2", "-c", config).code == Exit.OK
    monkeypatch.setattr("remora.cli.which.SILENT_S", 0.0)
    monkeypatch.setattr("remora.engine.claims.CLAIM_S", 0.01)

    done = remora("shard", "claim", "t", "t.1", "-c", config)

    waits, *failures = done.err.splitlines()
    assert waits == "remora: 00:00 waiting for a worker to take what is claimed, for up to 20 s a queue"
    assert len(failures) == 2
    assert done.code != Exit.OK


def test_sending_without_a_daemon_says_what_it_waits_for(remora: Run, config: Path, folder: Path) -> None:
    """The first line comes with the first attempt that fails, and the last one says how long it was tried."""
    config.write_text("")
    record = folder / "record"
    record.write_text('{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": "k"}}}\n')

    done = remora("send", "t", record, "--to", f"unix:{folder}/none", "--timeout", "1s", "-c", config)

    assert done.code == Exit.UNAVAILABLE
    assert done.err.splitlines()[0].startswith(f"remora: waiting, unix:{folder}/none: cannot connect: No such file")


async def _answered_late() -> None:
    known = asyncio.Event()
    asyncio.get_running_loop().call_soon(known.set)
    await answered(known, RadosSettings(mount_timeout_s=10.0))


def test_a_cluster_that_does_not_answer_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    """A command says at once what it waits for, and for how long; a program that opens a log says nothing."""
    run_async(_answered_late())
    assert capsys.readouterr().err == "remora: 00:00 waiting for the Ceph cluster to answer, for up to 11 s\n"

    asyncio.run(_answered_late())
    assert capsys.readouterr().err == ""
