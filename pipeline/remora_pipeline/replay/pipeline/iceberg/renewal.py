"""The inventory's parts that a change touches, written anew: its objects as they are by now, all others as they were.

A part is written by one task, from its files and the rows of changed objects, and without Spark's Java: rows that stay
are not worth their way there and back.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from remora_pipeline.replay.pipeline.columns import OBJECT
from remora_pipeline.replay.pipeline.iceberg.files import FILE, FileSelection, TableInTasks, object_ids, told_files
from remora_pipeline.replay.pipeline.iceberg.tables import KEY_PARTS, by_lake_names

PART, IS_THERE = "key_part", "is_there"
"""What a changed object's row has beside the inventory's columns: its part, and true unless the object is gone."""

part_of = BucketTransform(KEY_PARTS).transform(StringType())
"""The part of a key."""


@dataclass(frozen=True)
class PartRenewal:
    """Writes parts of a table anew; `files` are those of each part, pickled."""

    table: TableInTasks
    files: Mapping[int, Sequence[bytes]]

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the parts of changed objects, within a task that has all of them of its parts; gives rows of FILE."""
        if given := list(batches):
            changed = pa.Table.from_batches(given)
            for number in changed[PART].unique().to_pylist():
                yield from self.table.write(self._rows(number, changed.filter(pc.equal(changed[PART], number))))

    def _rows(self, number: int, changed: pa.Table) -> Iterator[pa.RecordBatch]:
        part = FileSelection(by_lake_names(OBJECT))
        columns, ids = to_arrow_schema(part.columns, timezone="UTC"), object_ids(changed)
        for rows in self.table.read(self.files.get(number, ()), part):
            yield rows.filter(pc.invert(pc.is_in(object_ids(rows), ids)))
        yield from changed.filter(changed[IS_THERE]).select(columns.names).cast(columns).to_batches()


def renewed(changed: DataFrame, inventory: Table, old: Sequence[DataFile]) -> list[DataFile]:
    """Write the parts of changed objects anew, in the place of their old files; each object has one row."""
    files: dict[int, list[bytes]] = defaultdict(list)
    for file in old:
        files[file.partition[0]].append(pickle.dumps(file))
    renewal = PartRenewal(TableInTasks(inventory), dict(files))
    # A number that is given keeps Spark from putting parts together by the little that it sees of them.
    return told_files(changed.repartition(KEY_PARTS, PART).mapInArrow(renewal.write, FILE))
