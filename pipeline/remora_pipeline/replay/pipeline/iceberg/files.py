"""Data files of a table, written and read by Spark's tasks: no program of Iceberg's runs in Spark's Java."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.pipeline.iceberg.locations import data_files

FILE = "file binary"
"""The column of rows that tell of files."""

_MOST_BYTES = 1 << 27
"""Rows that a task holds before it writes files."""


@dataclass(frozen=True)
class FileSelection:
    """What is read of files: columns by the table's names, and the rows that pass a condition.

    With `objects`, which are object_ids, only their rows.
    """

    columns: StructType
    condition: BooleanExpression = field(default_factory=AlwaysTrue)
    objects: pa.Array | None = None


def object_ids(rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """Name the object of each row by a text. Any of the three names may hold any character."""
    names = [pc.fill_null(rows[name].cast(pa.string()), "") for name in ("tenant", "bucket", "key")]
    lengths = [pc.binary_length(name).cast(pa.string()) for name in names[:2]]
    return pc.binary_join_element_wise(*lengths, *names, " ")


class TableInTasks:
    """A table as Spark's tasks know it, which have no catalog."""

    def __init__(self, table: Table) -> None:
        self._metadata, self._properties = table.metadata.model_dump_json(), dict(table.io.properties)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write rows as files for the table; gives rows of FILE."""
        table = TableMetadataUtil.parse_raw(self._metadata)
        store = load_file_io(self._properties, table.location)
        for part in _parts(batches):
            files = data_files(table, part, store)
            yield pa.RecordBatch.from_pydict({"file": [pickle.dumps(file) for file in files]})

    def read(self, files: Iterable[bytes], part: FileSelection) -> Iterator[pa.RecordBatch]:
        """Some of the rows of some files, as rows of FILE have them."""
        table = TableMetadataUtil.parse_raw(self._metadata)
        columns = to_arrow_schema(part.columns, timezone="UTC")
        wanted = table.schema().select(*columns.names)
        scan = ArrowScan(table, load_file_io(self._properties, table.location), wanted, part.condition)
        for file in files:
            for found in scan.to_record_batches([FileScanTask(pickle.loads(file))]):  # noqa: S301 - made by us
                rows = pa.RecordBatch.from_arrays(
                    [found[each.name].cast(each.type) for each in columns], schema=columns
                )
                yield rows if part.objects is None else rows.filter(pc.is_in(object_ids(rows), part.objects))


def planned(table: Table, condition: BooleanExpression | None = None) -> list[DataFile]:
    """The files of a table, of those that may have rows which pass a condition.

    Raises ReplayRefused where another program has removed rows by files of deletes, which are not read here: the rows
    would be there again.
    """
    tasks = list(table.scan(row_filter=AlwaysTrue() if condition is None else condition).plan_files())
    if any(task.delete_files for task in tasks):
        raise ReplayRefused(
            f"{'.'.join(table.name())}: another program has removed rows by files of deletes, which are not read here:"
            " it must rewrite the data files"
        )
    return [task.file for task in tasks]


def write(frame: DataFrame, table: Table) -> list[DataFile]:
    """Write the rows of a frame as files for a table; they belong to it once they are committed."""
    return told_files(frame.mapInArrow(TableInTasks(table).write, FILE))


def told_files(rows: DataFrame) -> list[DataFile]:
    """The files that rows of FILE tell of. What a task that failed has written is in none, and so in no table."""
    return [pickle.loads(row["file"]) for row in rows.collect()]  # noqa: S301 - made by our own tasks


def read(spark: SparkSession, table: Table, found: Sequence[DataFile], part: FileSelection) -> DataFrame:
    """Some of the rows of some files, by the table's columns of today."""
    if not found:
        return spark.createDataFrame([], part.columns)
    files = [(pickle.dumps(file),) for file in found]
    of_table = TableInTasks(table)

    def read_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from of_table.read(batch.column(0).to_pylist(), part)

    each_its_task = spark.sparkContext.parallelize(files, len(files))  # repartition() gives some two, and others none
    return spark.createDataFrame(each_its_task, FILE).mapInArrow(read_files, part.columns)


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            nbytes += batch.nbytes
        if nbytes > _MOST_BYTES:
            yield pa.Table.from_batches(held)
            held, nbytes = [], 0
    if held:
        yield pa.Table.from_batches(held)
