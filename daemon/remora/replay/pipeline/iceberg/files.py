"""Data files of a table, written and read by Spark's tasks: no program of Iceberg's runs in Spark's Java."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_OverArrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_MOST_BYTES = 1 << 27
"""Rows that a task holds before it writes files."""


@dataclass(frozen=True)
class FileSelection:
    """What is read of files: columns by the table's names, and the rows that pass a condition."""

    columns: StructType
    condition: BooleanExpression = field(default_factory=AlwaysTrue)


def write(frame: DataFrame, table: Table) -> list[DataFile]:
    """Write the rows of a frame as files for a table; they belong to it once they are committed.

    What a task that failed has written is in no answer, and so in no table.
    """
    rows = frame.mapInArrow(_writer(table.metadata.model_dump_json(), dict(table.io.properties)), "file binary")
    return [pickle.loads(row["file"]) for row in rows.collect()]  # noqa: S301 - made by our own tasks


def _writer(metadata: str, properties: dict[str, str]) -> _OverArrow:
    def write_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = TableMetadataUtil.parse_raw(metadata)
        store = load_file_io(properties, table.location)
        for part in _parts(batches):
            files = _dataframe_to_data_files(table, part, store)
            yield pa.RecordBatch.from_pydict({"file": [pickle.dumps(file) for file in files]})

    return write_files


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        if sum(each.nbytes for each in held) > _MOST_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def read(spark: SparkSession, table: Table, found: Sequence[DataFile], part: FileSelection) -> DataFrame:
    """Some of the rows of some files, by the table's columns of today."""
    if not found:
        return spark.createDataFrame([], part.columns)
    tasks = [(pickle.dumps(FileScanTask(file)),) for file in found]
    reader = _reader(table.metadata.model_dump_json(), dict(table.io.properties), part)
    return spark.createDataFrame(tasks, "task binary").repartition(len(tasks)).mapInArrow(reader, part.columns)


def _reader(metadata: str, properties: dict[str, str], part: FileSelection) -> _OverArrow:
    schema, condition = to_arrow_schema(part.columns, timezone="UTC"), part.condition

    def read_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = TableMetadataUtil.parse_raw(metadata)
        wanted = table.schema().select(*schema.names)
        scan = ArrowScan(table, load_file_io(properties, table.location), wanted, condition)
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for found in scan.to_record_batches([pickle.loads(task)]):  # noqa: S301 - made by our own driver
                    yield pa.RecordBatch.from_arrays(
                        [found[each.name].cast(each.type) for each in schema], schema=schema
                    )

    return read_files
