"""An inventory's parts written anew by a task, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, IntegerType, StructField, StructType

from remora_pipeline.replay.pipeline.columns import OBJECT
from remora_pipeline.replay.pipeline.iceberg.commits import FileChange, commit
from remora_pipeline.replay.pipeline.iceberg.files import TableInTasks, object_ids
from remora_pipeline.replay.pipeline.iceberg.renewal import IS_THERE, PART, PartRenewal, part_of
from remora_pipeline.replay.pipeline.iceberg.tables import by_lake_names
from replay.lakes import START, files, rows, table

CHANGED = to_arrow_schema(
    StructType([StructField(PART, IntegerType()), StructField(IS_THERE, BooleanType()), *by_lake_names(OBJECT).fields]),
    timezone="UTC",
)


def thing(key: str, size: int, bucket: str = "photos", **more: Any) -> dict[str, Any]:
    """An object of the inventory."""
    return {
        "tenant": "", "bucket": bucket, "key": key, "size": size, "event_name": "ObjectCreated:Put",
        "record_timestamp": START, "user_metadata": [("colour", "red")], "object_tags": [], **more,
    }  # fmt: skip


def changed(*objects: dict[str, Any]) -> pa.RecordBatch:
    """Rows as Spark gives them to a task: an object without a size is gone."""
    found = [
        {**dict.fromkeys(CHANGED.names), **each, PART: part_of(each["key"]), IS_THERE: each["size"] is not None or None}
        for each in objects
    ]
    return pa.RecordBatch.from_pylist(found, CHANGED)


def test_parts_written_anew(tmp_path: Path) -> None:
    """Changed objects have one row, as they are by now, those that are gone have none, new ones come, all others stay
    as they were with their metadata, the same key in another bucket too, and other parts are not written."""
    inventory = table(tmp_path, "inventory")
    keys = [f"k{number}" for number in range(60)]
    before = files(inventory, *(thing(key, 1) for key in keys), thing("k1", 1, "other"))
    commit(inventory, FileChange(before), {}, lambda: True, lambda: False)
    inventory.refresh()
    now = changed(thing("k1", 2), {"tenant": "", "bucket": "photos", "key": "k2", "size": None}, thing("new", 3))
    parts = {part_of(key) for key in ("k1", "k2", "new")}
    old = [task.file for task in inventory.scan().plan_files() if task.file.partition[0] in parts]
    of_parts = {n: [pickle.dumps(each) for each in old if each.partition[0] == n] for n in parts if n is not None}

    renewal = PartRenewal(TableInTasks(inventory), of_parts)
    new = [pickle.loads(file) for told in renewal.write([now]) for file in told.column(0).to_pylist()]

    assert {file.partition[0] for file in new} == parts
    commit(inventory, FileChange(new, old), {}, lambda: True, lambda: False)
    expected = [("photos", key, 2 if key == "k1" else 1) for key in keys if key != "k2"]
    assert rows(inventory, "bucket", "key", "size") == sorted([*expected, ("photos", "new", 3), ("other", "k1", 1)])
    assert all(told == [("colour", "red")] for (told,) in rows(inventory, "user_metadata"))
    assert not list(renewal.write([]))


def test_ids_of_objects() -> None:
    """Two objects have the same id only where tenant, bucket and key are the same, whatever characters they have."""
    names = [("", "b", "k"), ("b", "", "k"), ("", "b k", ""), ("", "b", " k"), (" ", "b", "k"), ("1", "1 b", "k")]
    columns = [pa.array(each) for each in zip(*names, strict=True)]
    ids = object_ids(pa.Table.from_arrays(columns, names=["tenant", "bucket", "key"])).to_pylist()
    assert len(set(ids)) == len(names)
