"""Copies and gaps in a Spark query that keeps a checkpoint for each shard."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from remora.client import Deduplicator

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]  # there are no stubs

pytestmark = pytest.mark.timeout(900)

ROW = "shard string, part int, at_offset bigint, pos string, next string"


def fresh(key: tuple[Any, ...], tables: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """The new rows of a shard, of all that a micro-batch has; the state is its checkpoint."""
    import pandas as pd

    rows = pd.concat(list(tables)).sort_values(["part", "at_offset"])
    dedupe = Deduplicator(ahead=2, checkpoint=state.get[0].encode() if state.exists else ())
    is_new = [
        dedupe.is_new(
            row.part,
            (("remora-shard", key[0].encode()), ("remora-pos", row.pos.encode()), ("remora-next", row.next.encode())),
        )
        for row in rows.itertuples()
    ]
    state.update((dedupe.checkpoint().decode(),))
    yield rows[is_new]


def query(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.readStream.schema(ROW).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    return rows.groupBy("shard").applyInPandasWithState(fresh, ROW, "progress string", "append", "NoTimeout")


def give(folder: Path, name: str, *records: tuple[str, int, int]) -> None:
    """A file of records: shard, partition, and where the entry begins; each is ten places long."""
    lines = [
        {"shard": shard, "part": part, "at_offset": number, "pos": f"a1:0/{at}", "next": f"a1:0/{at + 10}"}
        for number, (shard, part, at) in enumerate(records)
    ]
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("\n".join(map(json.dumps, lines)))


def run(spark: SparkSession, folder: Path) -> set[tuple[str, str]]:
    """Take what was given since the last run; all that has come out by now."""
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # so that no other task is interrupted by the one that fails
    writing = query(spark, folder).writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    try:
        writing.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "out")).awaitTermination()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    found = spark.read.parquet(str(folder / "out")).collect()
    assert len({tuple(row) for row in found}) == len(found)
    return {(row.shard, row.pos) for row in found}


def test_copies_are_dropped_by_a_stateful_operator(spark: SparkSession, tmp_path: Path) -> None:
    """Over two runs of a query each entry comes out once, whichever partition is ahead; a gap ends it by name."""
    give(tmp_path, "1.json", ("t.0", 0, 0), ("t.0", 1, 20), ("t.0", 0, 0), ("t.1", 0, 0), ("t.0", 1, 20))
    first = run(spark, tmp_path)
    give(tmp_path, "2.json", ("t.0", 1, 20), ("t.0", 0, 10), ("t.1", 1, 10), ("t.1", 0, 0), ("t.0", 0, 30))
    second = run(spark, tmp_path)

    assert first == {("t.0", "a1:0/0"), ("t.0", "a1:0/20"), ("t.1", "a1:0/0")}
    assert second == first | {("t.0", "a1:0/10"), ("t.1", "a1:0/10"), ("t.0", "a1:0/30")}
    give(tmp_path, "3.json", *[("t.0", 0, at) for at in (50, 60, 70)])
    with pytest.raises(StreamingQueryException, match=r"t\.0: entries are missing from 0/40 up to 0/50"):
        run(spark, tmp_path)
