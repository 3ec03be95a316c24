"""What a catalog's tables tell of one bucket, in the columns of a landing of Parquet."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.pipeline.columns import EVENT, OBJECT
from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress, existing, told_as
from remora_pipeline.replay.pipeline.iceberg.commits import carried, landed_in, understood
from remora_pipeline.replay.pipeline.iceberg.files import FileSelection, planned, read
from remora_pipeline.replay.pipeline.iceberg.inventory import SAID, InventoryPosition
from remora_pipeline.replay.pipeline.iceberg.tables import EVENTS, INVENTORY, as_landed, by_lake_names


@dataclass(frozen=True)
class BucketTables:
    """A bucket's objects by the inventory (columns.OBJECT), which goes up to the batch `inventoried`, and all its
    events up to `batch` (columns.EVENT)."""

    objects: DataFrame
    events: DataFrame
    landing: str
    batch: int
    inventoried: int


def tables_there(lake: LakeAddress) -> tuple[Table, Table]:
    """The inventory and the journal. Raises ReplayRefused where there is none."""
    catalog = lake.connected(makes=False)
    inventory, journal = (existing(catalog, lake, name) for name in (INVENTORY, EVENTS))
    if journal is None:
        raise ReplayRefused(f"{lake.named(EVENTS)}: there is none; `remora pipeline land` makes it")
    if inventory is None:
        raise ReplayRefused(f"{lake.named(INVENTORY)}: there is none; `remora pipeline inventory` makes it")
    return inventory, journal


def tables_of_bucket(spark: SparkSession, lake: LakeAddress, bucket: str, tenant: str) -> BucketTables:
    """What is known of a bucket by now. Raises ReplayRefused where there is no inventory."""
    inventory, journal = tables_there(lake)
    with told_as(lake.uri):
        return BucketTables(
            _of_bucket(spark, inventory, OBJECT, bucket, tenant),
            _of_bucket(spark, journal, EVENT, bucket, tenant),
            str(journal.metadata.table_uuid),
            landed_in(journal).batch,
            _inventoried(inventory, journal),
        )


def _inventoried(inventory: Table, journal: Table) -> int:
    """The last batch that an inventory goes up to; -1 where the journal no longer knows."""
    said = carried(inventory).get(SAID)
    at = None if said is None else journal.snapshot_by_id(understood(inventory, said, InventoryPosition).journal)
    with suppress(ReplayRefused):
        return -1 if at is None else landed_in(journal, at).batch
    return -1


def _of_bucket(spark: SparkSession, table: Table, columns: StructType, bucket: str, tenant: str) -> DataFrame:
    """Only files that may have the bucket are read."""
    is_its = EqualTo("bucket", bucket)  # type: ignore[call-arg, arg-type]  # pydantic's plug-in
    rows = as_landed(read(spark, table, planned(table, is_its), FileSelection(by_lake_names(columns), is_its)))
    folders = {name: F.lit(None).cast("string") for name in columns.names if name not in rows.columns}
    return rows.where(F.col("tenant") == tenant).withColumns(folders).select(*columns.names)
