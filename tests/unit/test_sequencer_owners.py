"""Which sequencers of a host have ended, by the files that they keep locked."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from remora.config import RadosSettings, Settings
from remora.process.liveness_lock import LivenessLock
from remora.sequencer.owners import LEASES_KEPT, Owners

LEASE_S = 5.0
KEPT_S = LEASES_KEPT * LEASE_S


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A sequencer on RADOS with a folder of its own."""
    plain = Settings()
    sequencer = replace(plain.sequencer, run_directory=str(tmp_path / "run"), lease_s=LEASE_S)
    return replace(plain, store=replace(plain.store, kind="rados"), sequencer=sequencer)


def killed(owners: Owners, name: str) -> Path:
    """The file of a server that was killed: it is there, and nothing has it locked."""
    lock = LivenessLock(owners._folder, name, owners._store)
    os.close(lock._descriptor)
    return lock._path


def test_the_file_of_a_killed_sequencer_is_deleted_when_its_locks_have_ended(settings: Settings) -> None:
    """Until then the server is known to have ended; a server that lives keeps its file however long it lives."""
    owners = Owners(settings)
    with owners.present("mine"):
        file = killed(owners, "gone")
        other = LivenessLock(owners._folder, "other", owners._store)

        owners.sweep(100.0)
        owners.sweep(100.0 + KEPT_S)
        kept = file.exists(), owners.is_dead("gone")
        owners.sweep(100.1 + KEPT_S)

        assert kept == (True, True)
        assert not file.exists()
        assert sorted(path.name for path in file.parent.iterdir()) == ["mine", "other"]
        other.close()
    assert not list(file.parent.iterdir())


@pytest.mark.parametrize(
    "rados", [RadosSettings(pool="other"), RadosSettings(cluster="other"), RadosSettings(pool="", zone="other")]
)
def test_a_sequencer_of_another_store_is_left_alone(settings: Settings, rados: RadosSettings) -> None:
    """A sweep leaves a server of another cluster, pool or zone alone, and does not know whether it has ended."""
    owners, others = Owners(settings), Owners(replace(settings, rados=rados))
    with owners.present("mine"):
        file = killed(others, "gone")

        for now in (0.0, 1000.0):
            owners.sweep(now)

        assert file.exists()
        assert not owners.is_dead("gone")


def test_a_folder_that_is_gone_ends_nothing(settings: Settings) -> None:
    """A sweep without the folder does nothing."""
    owners = Owners(settings)
    with owners.present("mine"):
        file = killed(owners, "gone")
        for each in file.parent.iterdir():
            each.unlink()
        file.parent.rmdir()

        owners.sweep(0.0)


def test_without_its_folder_no_server_counts_as_ended(settings: Settings) -> None:
    """A server whose run directory was taken away asks on without a failure, and leases decide."""
    owners = Owners(settings)
    with owners.present("mine"):
        killed(owners, "gone")
        assert owners.is_dead("gone")

        shutil.rmtree(settings.sequencer.run_directory)

        assert not owners.is_dead("gone")
        owners.sweep(100.0)
