"""Maintenance of a lake: nothing of a table's rows changes, and nothing that a table needs is removed."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.transforms import IdentityTransform

from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.pipeline.iceberg import upkeep
from remora_pipeline.replay.pipeline.iceberg.commits import LandedOffsets, append, commit, landed_in
from remora_pipeline.replay.pipeline.iceberg.files import planned
from remora_pipeline.replay.pipeline.iceberg.inventory import _is_by_parts
from remora_pipeline.replay.pipeline.iceberg.lag import newest_us
from remora_pipeline.replay.pipeline.iceberg.upkeep import Upkeep, UpkeepPlan, compact, maintain
from replay.lakes import START, event, files, lake, rows, table


def land(journal: Table, *offsets: int, bucket: str = "photos") -> None:
    """A batch of one file."""
    before = landed_in(journal)
    after = LandedOffsets(before.batch + 1, {0: max(offsets) + 1}, before.events + len(offsets))
    append(journal, files(journal, *[event(each, bucket=bucket) for each in offsets]), before, after)


def test_a_bucket_of_any_name_lands_and_is_maintained(tmp_path: Path) -> None:
    """A name that is too long for a folder, or no name of one, stops no landing; two that only end otherwise have
    folders of their own."""
    journal = table(tmp_path, "events")
    names = ["x" * 300, "x" * 299 + "y", "\u00fc" * 100, "..", "a/b", "\0", "a b", "z" * 190]
    for offset, name in enumerate(name for name in names for _ in range(2)):
        land(journal, offset, bucket=name)
    before = rows(journal, "offset", "bucket")

    (done,) = maintain(UpkeepPlan(lake(tmp_path), keep_s=0, orphans_s=-60))

    assert (done.compacted, done.files) == (2 * len(names), len(names))
    assert rows(journal, "offset", "bucket") == before
    folders = {Path(task.file.file_path).parent.name for task in journal.scan().plan_files()}
    assert len(folders) == len(names)
    assert max(map(len, folders)) == 200
    assert "bucket=" + "z" * 190 in folders
    assert "write.py-location-provider.impl" not in journal.properties


def test_who_says_where_files_lie_is_heard(tmp_path: Path) -> None:
    """A table whose files somebody wants elsewhere has them there."""
    journal = table(tmp_path, "events")
    with journal.transaction() as change:
        change.set_properties(
            {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}
        )

    land(journal, 0, bucket="x" * 300)

    (task,) = journal.scan().plan_files()
    assert "bucket=" not in task.file.file_path


def test_maintained_tables_have_the_same_rows(tmp_path: Path) -> None:
    """Small files of a partition become one, snapshots and files of no table go when they are old, and the landing goes
    on behind what it had landed; a second run finds nothing to do."""
    journal = table(tmp_path, "events")
    for offset in (2, 0, 1):
        land(journal, offset)
    land(journal, 3, bucket="other")
    landed, before = landed_in(journal), rows(journal, "offset", "bucket")
    stray = tmp_path / "warehouse/remora/events/data/stray.parquet"
    stray.write_bytes(b"of a batch that was killed")
    young = UpkeepPlan(lake(tmp_path))

    (kept,) = maintain(young)

    assert kept == Upkeep("remora.events", compacted=3, files=1, expired=0, removed=0)
    assert stray.exists()
    assert rows(journal, "offset", "bucket") == before
    assert len(list(journal.scan().plan_files())) == 2

    (gone,) = maintain(UpkeepPlan(lake(tmp_path), keep_s=0, orphans_s=-60))
    assert (gone.compacted, gone.expired) == (0, 4)
    assert not stray.exists()
    assert rows(journal, "offset", "bucket") == before
    assert landed_in(table(tmp_path, "events")) == landed
    assert len(list((tmp_path / "warehouse").rglob("*.parquet"))) == 2
    (nothing,) = maintain(UpkeepPlan(lake(tmp_path), keep_s=0, orphans_s=-60))
    assert (nothing.compacted, nothing.expired, nothing.removed) == (0, 0, 0)
    land(journal, 4)
    assert len(rows(journal, "offset")) == 5


def test_a_landing_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch lands while files are put together, the batch stays and they stay as they are for the next run."""
    journal = table(tmp_path, "events")
    land(journal, 0)
    land(journal, 1)

    def interrupted(*args: Any) -> None:
        land(table(tmp_path, "events"), 2)
        commit(*args)

    monkeypatch.setattr(upkeep, "commit", interrupted)
    assert compact(journal, 1 << 20, 100) == (0, 0, True)

    assert rows(journal, "offset") == [(0,), (1,), (2,)]
    assert landed_in(journal).batch == 2


def test_a_run_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run puts together at most as many files as it is asked to, and as many rows as memory holds; it leaves large
    files, and keeps those of two partitions apart."""
    journal = table(tmp_path, "events")
    for number, bucket in enumerate("aabbab"):
        land(journal, number, bucket=bucket)
    made = [task.file for task in journal.scan().plan_files()]
    size = max(each.file_size_in_bytes for each in made)

    found = upkeep.groups(made, 10 * size, 4)

    assert [{file.partition[1] for file in group} for group in found] == [{"a"}]
    assert [len(group) for group in upkeep.groups(made, 10 * size, 6)] == [3, 3]
    assert [len(group) for group in upkeep.groups(made, int(2.5 * size), 6)] == [2, 2]
    assert upkeep.groups(made, size, 6) == []
    monkeypatch.setattr(upkeep, "_MOST_ROWS", 2)
    assert [len(group) for group in upkeep.groups(made, 10 * size, 6)] == [2, 2]


def test_what_is_put_together_is_one_file(tmp_path: Path) -> None:
    """Files that are put together become one, whatever their rows take in memory: else each run would do it again."""
    journal = table(tmp_path, "events")
    for offset in range(3):
        land(journal, offset)
    with journal.transaction() as change:
        change.set_properties({"write.target-file-size-bytes": "1"})  # each row would be a file

    (kept,) = maintain(UpkeepPlan(lake(tmp_path)))

    assert (kept.compacted, kept.files) == (3, 1)
    assert [task.file.record_count for task in journal.refresh().scan().plan_files()] == [3]


def test_where_there_are_no_tables(tmp_path: Path) -> None:
    """A catalog that is not there is refused and not made, and a namespace without tables of remora's by the name of
    one."""
    with pytest.raises(ReplayRefused, match="there is no such file"):
        maintain(UpkeepPlan(lake(tmp_path)))
    assert os.listdir(tmp_path) == []
    lake(tmp_path).connected()
    with pytest.raises(ReplayRefused, match=r"^remora\.events: there is none; `remora pipeline land` makes it$"):
        maintain(UpkeepPlan(lake(tmp_path)))
    assert os.listdir(tmp_path) == ["catalog.db"]


def test_what_has_landed_stays_said(tmp_path: Path) -> None:
    """Where another program has written last, the snapshots back to that of the last landing stay, however old: a
    landing goes on, and then they go."""
    journal = table(tmp_path, "events")
    land(journal, 0)
    land(journal, 1)
    landed = landed_in(journal)
    for _ in range(2):
        journal.append(pa.Table.from_pylist([], journal.schema().as_arrow()))
    old = UpkeepPlan(lake(tmp_path), target_bytes=2, keep_s=0)

    (first,) = maintain(old)

    assert first.expired == 1
    assert landed_in(table(tmp_path, "events")) == landed
    land(table(tmp_path, "events"), 2)
    (second,) = maintain(old)
    assert second.expired == 3
    assert landed_in(table(tmp_path, "events")).batch == 2


def test_snapshots_with_a_name_stay(tmp_path: Path) -> None:
    """A tag keeps its snapshot, and what another program expires beside it is no hindrance."""
    journal = table(tmp_path, "events")
    land(journal, 0)
    tagged = journal.refresh().current_snapshot()
    assert tagged is not None
    journal.manage_snapshots().create_tag(tagged.snapshot_id, "tuesday").commit()
    land(journal, 1)
    land(journal, 2)

    assert upkeep.expire(journal, 0) == 1
    assert journal.refresh().snapshot_by_id(tagged.snapshot_id) is not None


def test_an_expiry_that_is_overtaken_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch lands first, the snapshots go all the same; where one always does, that is said in one line."""
    journal = table(tmp_path, "events")
    land(journal, 0)
    land(journal, 1)
    commits, refused = SqlCatalog.commit_table, [False, True]

    def overtaken(*args: Any) -> Any:
        if refused.pop():
            raise CommitFailedException("another process was quicker")
        return commits(*args)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)
    assert upkeep.expire(journal, 0) == 1

    refused[:] = [False] * 10
    land(journal, 2)
    refused[:] = [True] * 10
    with pytest.raises(ReplayError, match=r"^remora\.events: its catalog has refused a commit 10 times$"):
        upkeep.expire(journal, 0)


def test_another_table_below_a_table_stays(tmp_path: Path) -> None:
    """Files beside the folders of a table are not its own: they may be those of a table in a namespace of its name."""
    land(table(tmp_path, "events"), 0)
    theirs = tmp_path / "warehouse/remora/events/inventory/data/theirs.parquet"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"of another table")

    maintain(UpkeepPlan(lake(tmp_path), orphans_s=-60))

    assert theirs.exists()


def test_the_newest_event_is_that_of_the_newest_day(tmp_path: Path) -> None:
    """Also beside events from before 1970, whose days are negative."""
    journal = table(tmp_path, "events")
    assert newest_us(journal) == 0
    land(journal, 0)
    newest = newest_us(journal)
    old = event(1, record_timestamp=datetime(1969, 12, 31, tzinfo=UTC))
    append(journal, files(journal, old), landed_in(journal), LandedOffsets(1, {0: 2}, 2))

    assert newest_us(journal) == newest == int(START.timestamp() * 1e6)


def test_rows_that_another_program_has_removed_stay_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with files of deletes beside them are not put together, and a job that would read them is refused."""
    journal = table(tmp_path, "events")
    for offset in range(4):
        land(journal, offset)
    plan_files = DataScan.plan_files

    def with_deletes(scan: DataScan) -> list[FileScanTask]:
        tasks = sorted(plan_files(scan), key=lambda task: task.file.file_path)
        return [*tasks[:2], *(FileScanTask(task.file, {task.file}) for task in tasks[2:])]

    assert len(planned(journal)) == 4
    monkeypatch.setattr(DataScan, "plan_files", with_deletes)

    with pytest.raises(ReplayRefused, match=r"remora\.events: another program has removed rows by files of deletes"):
        planned(journal)
    assert compact(journal, 1 << 20, 100) == (2, 1, False)


def test_a_table_that_another_program_has_divided_otherwise_is_known(tmp_path: Path) -> None:
    """An inventory is kept up by its parts as long as each of its files is of one, and so will be the next."""
    inventory = table(tmp_path, "inventory")
    assert _is_by_parts(inventory)
    with inventory.update_spec() as spec:
        spec.add_field("bucket", IdentityTransform(), "bucket")
    assert _is_by_parts(inventory)

    with inventory.update_spec() as spec:
        spec.remove_field("key_part")

    assert not _is_by_parts(inventory)
