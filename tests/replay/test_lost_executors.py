"""What jobs ask of a cluster that may lose an executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest
from pyspark.sql import SparkSession

from remora.cli import group
from remora_pipeline.replay import session
from remora_pipeline.replay.pipeline import reconcile
from remora_pipeline.replay.pipeline.directory import LandedDirectory
from remora_pipeline.replay.pipeline.iceberg import inventory as lake_inventory
from remora_pipeline.replay.pipeline.iceberg.commits import LandedOffsets, append
from remora_pipeline.replay.pipeline.inventory import InventoryPlan, take
from remora_pipeline.replay.pipeline.reconcile_plan import ReconcilePlan
from remora_pipeline.replay.session import AGAIN, ONCE
from replay.lakes import event, files, lake, table
from replay.prepared import Wanted, prepare
from replay.sample import SAMPLE


class Asked(Exception):
    """A session was asked for."""


def of_folder(folder: Path) -> None:
    """An inventory of a landing in a folder."""
    landing = LandedDirectory(folder / "landed")
    landing.path.mkdir()
    landing.bind(folder / "checkpoint", "t", None, None)
    take(InventoryPlan(landing.path, folder / "inventory"))


def of_lake(folder: Path) -> None:
    """An inventory of a journal."""
    journal = table(folder, "events")
    append(journal, files(journal, event(0)), LandedOffsets(), LandedOffsets(0, {0: 1}, 1))
    lake_inventory.take_in_lake(lake(folder))


def of_bucket(folder: Path) -> None:
    """A reconcile."""
    listing = folder / "listing.json"
    listing.touch()
    reconcile.reconcile(ReconcilePlan(bucket="photos", out=folder / "out", inventory=None, listing=listing))


def of_log(folder: Path) -> None:
    """A trace that is made of a log."""
    group(["replay", "prepare", str(SAMPLE), "--out", str(folder / "trace")], standalone_mode=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """The settings of sessions that jobs ask for, in place of which they get `Asked`."""
    found: list[Mapping[str, str]] = []

    def recorded(builder: SparkSession.Builder) -> NoReturn:
        found.append(dict(builder._options))
        raise Asked

    monkeypatch.setattr(session, "_running", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", recorded)
    return found


@pytest.mark.parametrize("job", [of_folder, of_lake, of_bucket, of_log], ids=lambda each: each.__name__)
def test_a_task_is_tried_again(job: Callable[[Path], None], tmp_path: Path, asked: list[Mapping[str, str]]) -> None:
    """A job that only reads, and writes files, asks for a session that tries a task again which fails."""
    with pytest.raises(Asked):
        job(tmp_path)

    assert [{key: settings.get(key) for key in AGAIN} for settings in asked] == [AGAIN]


def test_a_task_that_sends_is_tried_once(tmp_path: Path, asked: list[Mapping[str, str]]) -> None:
    """A run asks for a session that tries nothing again, since it would send twice."""
    prepared = prepare(tmp_path / "trace", [Wanted(0, "PUT", "k")])
    argv = ["replay", "run", str(prepared.path), "--out", str(tmp_path / "run"), "--null", "--topic", "t"]
    with pytest.raises(Asked):
        group(argv, standalone_mode=False)

    assert [{key: settings.get(key) for key in ONCE} for settings in asked] == [ONCE]
