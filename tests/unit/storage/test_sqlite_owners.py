"""Whose locks count in the embedded store, by the files that its openers keep locked."""

from __future__ import annotations

import os
from pathlib import Path

from remora.storage.sqlite.files.owners import DIRECTORY, Owner


def died(owner: Owner) -> None:
    """End as a process does that is killed: its lock goes, its file stays."""
    os.close(owner._descriptor)


def test_only_who_surely_ended_is_dead(tmp_path: Path) -> None:
    """A file that is gone or that nobody has locked tells of an end; one that is locked does not, nor one that cannot
    be opened: whose it is may be delivering, and its lease decides."""
    own, alive, killed, closed = (Owner(tmp_path) for _ in range(4))
    died(killed)
    closed.close()
    (tmp_path / DIRECTORY / "loop").symlink_to("loop")

    dead = [own.is_dead(each) for each in (own.entity, alive.entity, "loop", killed.entity, closed.entity)]
    own.sweep()

    assert dead == [False, False, False, True, True]
    assert {path.name for path in (tmp_path / DIRECTORY).iterdir()} == {own.entity, alive.entity, "loop"}
    own.close()
    alive.close()


def test_nobody_is_dead_because_the_files_are_away(tmp_path: Path) -> None:
    """While the store's directory lies elsewhere, as that of a disk that is unmounted, and when all files of owners are
    deleted, whoever lived before is not taken for dead, and neither afterwards."""
    (here := tmp_path / "here").mkdir()
    own, alive = Owner(here), Owner(here)

    here.rename(tmp_path / "away")
    assert not own.is_dead(alive.entity)
    (tmp_path / "away").rename(here)
    for path in (here / DIRECTORY).iterdir():
        path.unlink()
    assert not own.is_dead(alive.entity)

    own.close()
    alive.close()
