"""The tables: their columns, with the names of Amazon S3 Metadata's journal where it has them, and their partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    IcebergType,
    IntegerType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from remora_pipeline.replay.pipeline.columns import BAD, EVENT, OBJECT
from remora_pipeline.replay.pipeline.frames import CREATES, HIDES, REMOVES

EVENTS, ASIDE, INVENTORY = "events", "bad", "inventory"

S3_NAMES = {
    "event_time": "record_timestamp",
    "sequencer": "sequence_number",
    "etag": "e_tag",
    "tags": "object_tags",
    "metadata": "user_metadata",
    "user": "requester",
    "source_ip": "source_ip_address",
    "sequence": "topic_sequence",
}
"""Columns that have another name than in a landing of Parquet; `topic_sequence` makes room for S3's."""

_DERIVED = {"record_type": StringType(), "is_delete_marker": BooleanType()}
_LEFT_OUT = ("day", "bucket_dir")
_MAP_IDS = 1000
"""Where the ids of maps' keys and values begin; columns may be added below."""


_TYPES: dict[str, Callable[[int], IcebergType]] = {
    "string": lambda _: StringType(),
    "int": lambda _: IntegerType(),
    "bigint": lambda _: LongType(),
    "timestamp": lambda _: TimestamptzType(),
    "binary": lambda _: BinaryType(),
    "map<string,string>": lambda number: MapType(
        _MAP_IDS + 2 * number, StringType(), _MAP_IDS + 2 * number + 1, StringType(), value_required=False
    ),
}
"""The type of a column with a number."""


def by_lake_names(columns: StructType) -> StructType:
    """Columns of a landing of Parquet as a table has them."""
    return StructType(
        [
            StructField(S3_NAMES.get(each.name, each.name), each.dataType)
            for each in columns.fields
            if each.name not in _LEFT_OUT
        ]
    )


def _schema(columns: StructType, derived: Mapping[str, IcebergType]) -> Schema:
    fields = [
        NestedField(
            number, S3_NAMES.get(each.name, each.name), _TYPES[each.dataType.simpleString()](number), required=False
        )
        for number, each in enumerate((each for each in columns.fields if each.name not in _LEFT_OUT), 1)
    ]
    more = [NestedField(len(fields) + number, name, kind) for number, (name, kind) in enumerate(derived.items(), 1)]
    return Schema(*fields, *more)


def _spec(schema: Schema, *fields: tuple[str, Transform[Any, Any], str]) -> PartitionSpec:
    return PartitionSpec(
        *[
            PartitionField(schema.find_field(column).field_id, 1000 + number, transform, name)
            for number, (column, transform, name) in enumerate(fields)
        ]
    )


JOURNAL = _schema(EVENT, _DERIVED)
KEPT_ASIDE = _schema(BAD, {})
OBJECTS = _schema(OBJECT, {})

KEY_PARTS = 16
"""Parts of the inventory, by a hash of the key: a change writes those anew that it touches."""

FORMS = {
    EVENTS: (
        JOURNAL,
        _spec(
            JOURNAL,
            ("record_timestamp", DayTransform(), "record_day"),
            ("bucket", IdentityTransform(), "bucket"),
        ),
    ),
    ASIDE: (KEPT_ASIDE, PartitionSpec()),
    INVENTORY: (
        OBJECTS,
        _spec(OBJECTS, ("key", BucketTransform(KEY_PARTS), "key_part")),
    ),
}


def journal_rows(events: DataFrame) -> DataFrame:
    """Events as they land (columns.EVENT) as rows of the journal."""
    name = F.col("event_name")
    kind = F.when(name.rlike(CREATES), "CREATE").when(name.rlike(HIDES) | name.rlike(REMOVES), "DELETE")
    derived = {
        "record_type": kind.otherwise("UPDATE_METADATA"),
        "is_delete_marker": F.coalesce(name.rlike("Delet(e|ion)MarkerCreated$"), F.lit(False)),
    }
    return events.select(*_renamed(EVENT), *[value.alias(each) for each, value in derived.items()])


def lake_rows(rows: DataFrame, columns: StructType) -> DataFrame:
    """Rows of a landing of Parquet under the names of a table."""
    return rows.select(*_renamed(columns))


def as_landed(rows: DataFrame) -> DataFrame:
    """Rows of a table under the names of a landing of Parquet, by which the rules of order know them."""
    names = {lakes: ours for ours, lakes in S3_NAMES.items()}
    return rows.select(*[F.col(name).alias(names.get(name, name)) for name in rows.columns])


def _renamed(columns: StructType) -> list[Column]:
    return [F.col(name).alias(S3_NAMES.get(name, name)) for name in columns.names if name not in _LEFT_OUT]
