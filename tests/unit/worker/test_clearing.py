"""How a worker shows that it lives, and whose locks it holds for those of the dead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remora.config import Settings, SqliteSettings, SupervisorSettings
from remora.metrics import Telemetry
from remora.model.cookie import WorkerCookie
from remora.servers.pipe import Start
from remora.worker.clearing import Clearing
from remora.worker.presence import Presence


def died(presence: Presence) -> None:
    """End as a process does that is killed: its lock goes, its file stays."""
    os.close(presence._descriptor)


def test_the_dead_are_told_from_the_living(tmp_path: Path) -> None:
    """A file that somebody locks is alive, one that nobody does is dead, and one that is gone is neither."""
    own = Presence(tmp_path, "own", "store")
    dead, alive, ended = (Presence(tmp_path, name, "store") for name in ("dead", "alive", "ended"))
    died(dead)
    ended.close()

    assert own.dead() == {"dead"}
    own.forget(own.dead())
    assert own.dead() == frozenset()
    alive.close()
    own.close()


def test_the_dead_of_another_store_are_not_ours(tmp_path: Path) -> None:
    """Who shares a folder and not a store clears nothing, and so forgets nobody."""
    own, other, longer = (Presence(tmp_path, name, name) for name in ("store", "other", "store-2"))
    died(other)
    died(longer)

    assert own.dead() == frozenset()
    own.close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """A file in its place raises OSError, which the worker logs and lives with."""
    (tmp_path / "run").write_text("")

    with pytest.raises(OSError, match="run"):
        Presence(tmp_path / "run", "own", "store")


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """The first worker of a host, whose supervisor has reaped one before."""
    return Start(
        number=1,
        cookie="remora/host/boot/own",
        settings=Settings(
            supervisor=SupervisorSettings(run_directory=str(tmp_path)), sqlite=SqliteSettings(directory="/q")
        ),
        listeners=(),
        load=-1,
        workers=1,
        dead=("remora/host/boot/reaped",),
        sweeps=True,
        drains=False,
    )


def test_only_the_surely_dead_lose_their_locks(start: Start, tmp_path: Path) -> None:
    """Those that were reaped, those of an earlier boot of this host, and those whose file is free; nobody else."""
    died(Presence(tmp_path, "left", "sqlite /q"))
    with Clearing(start, Telemetry()) as clearing:
        assert clearing._presence is not None
        clearing._left = clearing._presence.dead()

        assert clearing.is_dead("remora/host/boot/reaped")
        assert clearing.is_dead("remora/host/boot/left")
        assert clearing.is_dead("remora/host/earlier/any")
        assert not clearing.is_dead("remora/host/boot/own")
        assert not clearing.is_dead("remora/host/boot/unknown")
        assert not clearing.is_dead("remora/elsewhere/earlier/any")
        assert not clearing.is_dead("remora/claim/0123")
        assert not clearing.is_dead("gatewaycookie016")


def test_cookies_are_taken_apart_as_they_are_put_together() -> None:
    """A worker's cookie names host, boot and worker; all others are nobody's."""
    cookie = WorkerCookie("host", "boot", "worker")

    assert WorkerCookie.parse(str(cookie)) == cookie
    for other in ("", "remora/claim/x", "remora//boot/worker", "gateway", "remora/a/b/c/d"):
        assert WorkerCookie.parse(other) is None
