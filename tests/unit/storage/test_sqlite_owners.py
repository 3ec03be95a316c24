"""Whose locks count in the embedded store, by the files that its openers keep locked."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

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


def descriptors() -> set[str]:
    """All that this process has open."""
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("fails", ["listing", "making", "locking"])
def test_who_cannot_become_an_owner_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """Where the folder cannot be listed, or takes no file or no lock, no descriptor and no file is left, however often
    it is tried."""
    really = os.open

    def refused(path: Path, flags: int, *rest: int, **options: int) -> int:
        if fails == ("listing" if flags & os.O_DIRECTORY else "making"):
            raise OSError(errno.EMFILE, "no more files")
        return really(path, flags, *rest, **options)

    def unlocked(*_: int) -> None:
        raise OSError(errno.ENOLCK, "no more locks")

    before = descriptors()
    monkeypatch.setattr(os, "open", refused)
    if fails == "locking":
        monkeypatch.setattr(fcntl, "flock", unlocked)
    for _ in range(3):
        with pytest.raises(OSError, match="no more"):
            Owner(tmp_path)

    monkeypatch.undo()
    assert descriptors() == before
    assert list((tmp_path / DIRECTORY).iterdir()) == []


def test_a_name_that_is_none_is_not_taken_for_dead(tmp_path: Path) -> None:
    """An owner whose name in a damaged row is no name of a file counts as alive: the lease decides."""
    own = Owner(tmp_path)

    assert not own.is_dead("pid-\0")

    own.close()
