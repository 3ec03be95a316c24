"""The job of `remora pipeline inventory --table iceberg`: the current objects, kept up by what is new in the journal.

The inventory's snapshot says up to which snapshot of the journal it goes. What the journal was appended since names the
keys that have changed; the objects of these keys are found anew from all events of theirs, by the same rules as in a
folder, and replace the rows of these keys. So the order of events that come late, or twice, is as right as in an
inventory that is made at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, In, LessThanOrEqual
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.pipeline.columns import EVENT, OBJECT
from remora_pipeline.replay.pipeline.frames import current_objects
from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress, existing, made, told_as
from remora_pipeline.replay.pipeline.iceberg.commits import COMPACTED, FileChange, carried, commit, understood
from remora_pipeline.replay.pipeline.iceberg.files import FileSelection, object_ids, planned, read, write
from remora_pipeline.replay.pipeline.iceberg.renewal import IS_THERE, PART, part_of, renewed
from remora_pipeline.replay.pipeline.iceberg.tables import (
    EVENTS,
    FORMS,
    INVENTORY,
    as_landed,
    by_lake_names,
    lake_rows,
)
from remora_pipeline.replay.pipeline.spark import writing
from remora_pipeline.replay.session import session

SAID = "remora.inventory"
"""Where a snapshot of the inventory says its InventoryPosition."""

_OBJECT = ("tenant", "bucket", "key")

_MOST_CHANGED = 100_000
"""Objects that are looked up one by one; with more of them all objects are found anew."""

_MOST_BUCKETS = 200
"""With more buckets than these no file is left out for its buckets: pyiceberg would not compare them."""

_NEEDED = StructType(
    [
        each
        for each in EVENT.fields
        if each.name in {*OBJECT.names, "event_source", "record"} and each.name != "bucket_dir"
    ]
)


class InventoryPosition(msgspec.Struct, frozen=True):
    """Up to which snapshot of the journal an inventory goes."""

    journal: int


@dataclass(frozen=True)
class LakeInventory:
    """What an inventory came to. `changed` counts keys that were looked up; None where all objects were found anew."""

    objects: int
    is_new: bool
    changed: int | None = None


def take_in_lake(
    lake: LakeAddress, *, whole: bool = False, memory: str = "2g", master: str | None = None
) -> LakeInventory:
    """Bring the inventory up to what has landed; with `whole` from all events, whatever is there.

    Raises ReplayRefused where nothing has landed, or another process makes the inventory.
    """
    catalog = lake.connected(makes=False)
    journal = existing(catalog, lake, EVENTS)
    if journal is None or (head := journal.current_snapshot()) is None:
        raise ReplayRefused(f"{lake.named(EVENTS)}: nothing has landed there")
    inventory = made(catalog, lake, INVENTORY, FORMS[INVENTORY], {})
    said = _said_in(inventory)
    since = None if said is None or whole else understood(inventory, said, InventoryPosition).journal
    if since == head.snapshot_id:
        return LakeInventory(_objects(inventory), is_new=False)
    added = None if since is None or not _is_by_parts(inventory) else _added(journal, head, since)
    with (
        session("pipeline inventory", master=master, memory=memory) as spark,
        writing(spark),
        told_as(lake.uri),
    ):
        changed = None if added is None else _changed(spark, journal, added)
        old = planned(inventory)
        if changed is None:
            new = write(_found(spark, journal, AlwaysTrue()), inventory)
        else:
            touched = {part_of(key) for _, _, key in changed}
            old = [file for file in old if file.partition[0] in touched]
            new = renewed(_of_changed(spark, journal, changed), inventory, old) if changed else []
        _replace(inventory, FileChange(new, old), said, InventoryPosition(head.snapshot_id))
    return LakeInventory(_objects(inventory), is_new=True, changed=None if changed is None else len(changed))


def _said_in(inventory: Table) -> str | None:
    """How far an inventory goes; None where another program has expired what says so: then all is found anew."""
    with suppress(ReplayRefused):
        return carried(inventory).get(SAID)
    return None


def _is_by_parts(inventory: Table) -> bool:
    """Whether each file has objects of one part; not where another program has divided the table otherwise."""
    ours = FORMS[INVENTORY][1].fields[0].transform
    key = inventory.schema().find_field("key").field_id
    specs = {*(task.file.spec_id for task in inventory.scan().plan_files()), inventory.spec().spec_id}
    first = [inventory.specs()[spec_id].fields[:1] for spec_id in specs]
    return all(fields and (fields[0].source_id, fields[0].transform) == (key, ours) for fields in first)


def _objects(inventory: Table) -> int:
    snapshot = inventory.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary.additional_properties.get("total-records", "0"))


def _added(journal: Table, head: Snapshot, since: int) -> list[DataFile] | None:
    """The files that were appended since a snapshot; None where it is no ancestor of the head, or rows were removed."""
    found: list[DataFile] = []
    at: Snapshot | None = head
    while at is not None and at.snapshot_id != since:
        operation = at.summary.operation if at.summary else None
        has_same_rows = bool(at.summary and at.summary.additional_properties.get(COMPACTED))
        if operation == Operation.APPEND:
            found += _of_snapshot(journal, at)
        elif operation != Operation.REPLACE and not has_same_rows:
            return None
        at = None if at.parent_snapshot_id is None else journal.snapshot_by_id(at.parent_snapshot_id)
    return None if at is None else found


def _of_snapshot(journal: Table, snapshot: Snapshot) -> list[DataFile]:
    return [
        entry.data_file
        for manifest in snapshot.manifests(journal.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(journal.io)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]


def _changed(spark: SparkSession, journal: Table, added: Sequence[DataFile]) -> list[tuple[str, str, str]] | None:
    """The objects that some files name; None where it is better to take all."""
    columns = StructType([each for each in EVENT.fields if each.name in _OBJECT])
    keys = read(spark, journal, added, FileSelection(columns)).select(*_OBJECT).distinct()
    named = [(row[0], row[1], row[2]) for row in keys.limit(_MOST_CHANGED + 1).collect()]
    return named if len(named) <= _MOST_CHANGED else None


def _found(
    spark: SparkSession, journal: Table, condition: BooleanExpression, objects: pa.Array | None = None
) -> DataFrame:
    """Current objects, by the events that pass a condition and are of some objects, as rows of the inventory."""
    files = planned(journal, condition)
    events = read(spark, journal, files, FileSelection(by_lake_names(_NEEDED), condition, objects))
    return lake_rows(current_objects(as_landed(events).withColumn("bucket_dir", F.lit(None).cast("string"))), OBJECT)


def _of_changed(spark: SparkSession, journal: Table, changed: Sequence[tuple[str, str, str]]) -> DataFrame:
    """A row for each changed object, with its part: as a row of the inventory where `is_there`, else its names only.

    Files of other buckets, and without a key between the first and the last one, are not read.
    """
    named = StructType([StructField(PART, IntegerType()), *[each for each in OBJECT.fields if each.name in _OBJECT]])
    keys = [(part_of(key), tenant, bucket, key) for tenant, bucket, key in changed]
    texts = [pa.array(each, pa.string()) for each in zip(*changed, strict=True)]
    may_have: BooleanExpression = And(
        GreaterThanOrEqual("key", min(key for _, _, key in changed)),  # type: ignore[call-arg, arg-type, misc]
        LessThanOrEqual("key", max(key for _, _, key in changed)),  # type: ignore[call-arg, arg-type, misc]
    )
    if len(buckets := {bucket for _, bucket, _ in changed}) <= _MOST_BUCKETS:
        may_have = And(may_have, In("bucket", buckets))  # type: ignore[call-arg, arg-type]  # pydantic's plug-in
    found = _found(spark, journal, may_have, object_ids(pa.Table.from_arrays(texts, names=list(_OBJECT))))
    return spark.createDataFrame(keys, named).join(
        found.withColumn(IS_THERE, F.lit(True)), on=list(_OBJECT), how="left"
    )


def _replace(inventory: Table, change: FileChange, before: str | None, position: InventoryPosition) -> None:
    """Put new files in the place of old ones, in one commit, which says how far the inventory goes."""
    said = msgspec.json.encode(position).decode()

    def is_saying(what: str | None) -> bool:
        return _said_in(inventory) == what

    commit(inventory, change, {SAID: said}, lambda: is_saying(before), lambda: before != said and is_saying(said))
