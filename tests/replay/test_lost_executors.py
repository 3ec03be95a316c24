"""What jobs ask of a cluster that may lose an executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from remora.cli import group
from remora_pipeline.cli import replay_prepare
from remora_pipeline.replay.pipeline import inventory, reconcile
from remora_pipeline.replay.pipeline.directory import LandedDirectory
from remora_pipeline.replay.pipeline.iceberg import inventory as lake_inventory
from remora_pipeline.replay.pipeline.iceberg.commits import LandedOffsets, append
from remora_pipeline.replay.pipeline.inventory import InventoryPlan, take
from remora_pipeline.replay.pipeline.reconcile import ReconcilePlan
from remora_pipeline.replay.session import AGAIN
from replay.lakes import event, files, lake, table
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
    plan = ReconcilePlan(bucket="photos", out=folder / "out", inventory=None, listing=folder / "listing.json")
    reconcile.reconcile(plan)


def of_log(folder: Path) -> None:
    """A trace that is made of a log."""
    group(["replay", "prepare", str(SAMPLE), "--out", str(folder / "trace")], standalone_mode=False)


@pytest.mark.parametrize(
    ("place", "job"),
    [(inventory, of_folder), (lake_inventory, of_lake), (reconcile, of_bucket), (replay_prepare, of_log)],
    ids=lambda each: each.__name__,
)
def test_a_task_is_tried_again(
    place: Any, job: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that only reads, and writes files, asks for a session that tries a task again which fails."""
    asked: list[Mapping[str, str]] = []

    def recorded(_name: str, *, settings: Mapping[str, str] | None = None, **_rest: object) -> NoReturn:
        asked.append(settings or {})
        raise Asked

    monkeypatch.setattr(place, "session", recorded)
    with pytest.raises(Asked):
        job(tmp_path)

    assert [{key: settings.get(key) for key in AGAIN} for settings in asked] == [AGAIN]
