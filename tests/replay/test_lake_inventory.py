"""The current objects as a table of a catalog: kept up by what is new, and the same as from all events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import SparkSession

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.pipeline.iceberg import inventory as taking
from remora_pipeline.replay.pipeline.iceberg.commits import FileChange, LandedOffsets, append, landed_in
from remora_pipeline.replay.pipeline.iceberg.inventory import LakeInventory, take_in_lake
from remora_pipeline.replay.pipeline.iceberg.renewal import part_of
from remora_pipeline.replay.pipeline.iceberg.tables import KEY_PARTS
from remora_pipeline.replay.pipeline.reconcile import plan_emission, reconcile
from remora_pipeline.replay.pipeline.reconcile_plan import ReconcilePlan
from remora_pipeline.replay.pipeline.reconciliation import ReconciledDirectory
from replay.lakes import event, files, lake, rows, table
from replay.test_pipeline_inventory import DELETE, MARKER, PUT, START, sequencer
from replay.test_reconcile import GRACE_S, LISTED_AT, listing

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def told(key: str, name: str, at: int | None, version: str | None = None, **changes: Any) -> dict[str, Any]:
    """What a test cares about in an event."""
    return {
        "key": key, "event_name": name, "version_id": version, "event_source": "ceph:s3", "e_tag": "e",
        "record_timestamp": START,
        "sequence_number": None if at is None else sequencer(at), **changes,
    }  # fmt: skip


def land(journal: Table, *events: dict[str, Any]) -> None:
    """A batch as the landing commits it."""
    before = landed_in(journal)
    rows = [event(before.events + number, batch=before.batch + 1, **each) for number, each in enumerate(events)]
    after = LandedOffsets(before.batch + 1, {0: before.events + len(rows)}, before.events + len(rows))
    append(journal, files(journal, *rows), before, after)


@pytest.mark.full("the gate compares a bucket with folders, and keeps the tables up")
def test_a_bucket_beside_the_tables_of_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    """Reconcile finds the same in a catalog's tables as in folders, events behind the inventory included; what has
    landed since is not sent, and another catalog's tables are refused."""
    address = lake(tmp_path)
    plan = ReconcilePlan(
        bucket="photos",
        out=tmp_path / "out",
        inventory=None,
        lake=address,
        listing=listing(
            tmp_path / "listing.json",
            ("same", 0, "e", "v1", START),
            ("size", 9, "e", "null", START),
            ("missing", 5, "e", "null", START),
            ("behind", 5, "e", "null", START),
        ),
        listed_at_us=int(LISTED_AT.timestamp() * 1_000_000),
        grace_s=GRACE_S,
    )
    journal = table(tmp_path, "events")
    with pytest.raises(ReplayRefused, match=r"remora\.inventory: there is none"):
        reconcile(plan)
    land(
        journal,
        told("same", PUT, 1, "v1"), told("size", PUT, 3), told("extra", PUT, 2), told("theirs", PUT, 1, bucket="x"),
        told("theirs", PUT, 1, tenant="y"),
    )  # fmt: skip
    take_in_lake(address)
    land(journal, told("behind", PUT, 4))

    found = reconcile(plan)

    assert found.counts == {"missing": 1, "extra": 1, "differing": 1, "changing": 0}
    assert (found.listed, found.told, found.batch) == (4, 4, 1)
    land(journal, told("extra", DELETE, 20))
    folder = tmp_path / "other"
    folder.mkdir()
    land(table(folder, "events"), told("a", PUT, 1))
    take_in_lake(lake(folder))
    with pytest.raises(ReplayRefused, match="another landing"):
        plan_emission(plan.out, lake=lake(folder))
    plan_emission(plan.out, lake=address)
    left = pq.read_table(ReconciledDirectory(plan.out).emit / "plan").to_pylist()
    assert sorted(row["key"] for row in left) == ["missing", "size"]


def test_an_inventory_is_kept_up(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is new changes just the objects that it names, late events and versions included, as all events together
    would; a snapshot from before shows the bucket as it was; a run with nothing new makes none, two no row twice."""
    address = lake(tmp_path)
    with pytest.raises(ReplayRefused, match="there is no such file"):
        take_in_lake(address)
    address.connected()
    with pytest.raises(ReplayRefused, match=r"remora\.events: nothing has landed"):
        take_in_lake(address)
    journal = table(tmp_path, "events")
    land(
        journal,
        told("a", PUT, 1), told("b", PUT, 1), told("late", DELETE, 9), told("other", PUT, 1, bucket="007"),
        told("v", PUT, 1, "v1"), told("v", PUT, 2, "v2"), told("marked", PUT, 1, "v1"),
        told("queue", PUT, 3, shard="s"),
    )  # fmt: skip
    assert take_in_lake(address) == LakeInventory(6, is_new=True)
    assert take_in_lake(address) == LakeInventory(6, is_new=False)
    inventory = table(tmp_path, "inventory")
    monday, of_monday = inventory.current_snapshot(), rows(inventory, "bucket", "key", "version_id")

    land(journal, told("a", DELETE, 2), told("late", PUT, 8), told("new", PUT, 1))
    land(journal, told("v", DELETE, 3, "v2"), told("marked", MARKER, 2, "m1"), told("queue", DELETE, None, shard="s"))
    assert take_in_lake(address) == LakeInventory(4, is_new=True, changed=6)

    expected = [("007", "other", None), ("photos", "b", None), ("photos", "new", None), ("photos", "v", "v1")]
    assert rows(inventory, "bucket", "key", "version_id") == expected
    assert monday is not None
    seen = inventory.scan(snapshot_id=monday.snapshot_id).to_arrow().to_pylist()
    assert sorted((row["bucket"], row["key"], row["version_id"]) for row in seen) == of_monday
    kept_up = rows(inventory, *inventory.schema().column_names[:6])
    assert take_in_lake(address, whole=True) == LakeInventory(4, is_new=True)
    assert rows(inventory, *inventory.schema().column_names[:6]) == kept_up

    land(journal, told("c", PUT, 1), told("d", PUT, 1))
    monkeypatch.setattr(taking, "_MOST_CHANGED", 1)
    assert take_in_lake(address) == LakeInventory(6, is_new=True)
    land(journal, told("c", DELETE, 2))

    def contended(to: Table, change: FileChange, *rest: Any) -> None:
        monkeypatch.undo()
        take_in_lake(address)
        taking._replace(to, change, *rest)

    monkeypatch.setattr(taking, "_replace", contended)
    take_in_lake(address, whole=True)
    assert len(rows(inventory, "key")) == 5


def test_only_what_a_change_may_concern_is_read_and_written(spark: SparkSession, tmp_path: Path) -> None:
    """An inventory is kept up without the journal's files of other buckets and of keys beyond the changed ones, which
    may be gone, and leaves each part without a changed key in the file that it has; a batch without events changes
    nothing."""
    address, journal = lake(tmp_path), table(tmp_path, "events")
    land(journal, told("a", PUT, 1), told("z", PUT, 1), told("a", PUT, 1, bucket="other"))
    land(journal, *(told(f"m{number}", PUT, 1) for number in range(40)))
    take_in_lake(address)
    inventory = table(tmp_path, "inventory")
    before = {task.file.file_path for task in inventory.scan().plan_files()}
    for task in journal.scan().plan_files():
        if task.file.partition[1] == "other" or task.file.record_count == 40:
            Path(task.file.file_path.removeprefix("file://")).unlink()

    land(journal, told("z", DELETE, 2), told("zz", PUT, 2))
    assert take_in_lake(address) == LakeInventory(43, is_new=True, changed=2)

    inventory.refresh()
    after = {task.file.file_path for task in inventory.scan().plan_files()}
    touched = {part_of(key) for key in ("z", "zz")}
    assert len(before - after) <= len(touched)
    assert len(before & after) >= KEY_PARTS - len(touched) - 2
    found = rows(inventory, "bucket", "key")
    assert found == sorted(
        [("other", "a"), ("photos", "a"), ("photos", "zz"), *(("photos", f"m{n}") for n in range(40))]
    )
    land(journal)
    assert take_in_lake(address) == LakeInventory(43, is_new=True, changed=0)


def test_an_inventory_that_another_program_has_changed(spark: SparkSession, tmp_path: Path) -> None:
    """Where it has expired the snapshots that say how far the inventory goes, or divided the table otherwise, all is
    found anew: no object is lost or there twice."""
    address, journal = lake(tmp_path), table(tmp_path, "events")
    land(journal, told("a", PUT, 1), told("b", PUT, 1))
    take_in_lake(address)
    inventory = table(tmp_path, "inventory")
    first = inventory.current_snapshot()
    assert first is not None
    inventory.append(pa.Table.from_pylist([], inventory.schema().as_arrow()))
    inventory.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()

    land(journal, told("b", DELETE, 2), told("c", PUT, 1))
    assert take_in_lake(address) == LakeInventory(2, is_new=True)
    inventory.refresh()
    with inventory.update_spec() as spec:
        spec.remove_field("key_part")
        spec.add_field("bucket", IdentityTransform(), "bucket")
    land(journal, told("a", DELETE, 2), told("d", PUT, 1))
    assert take_in_lake(address) == LakeInventory(2, is_new=True)
    land(journal, told("d", DELETE, 2))
    assert take_in_lake(address) == LakeInventory(1, is_new=True)

    assert rows(inventory, "bucket", "key") == [("photos", "c")]
