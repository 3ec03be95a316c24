"""Which removals the records of a gateway are of."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from remora_pipeline.replay.verify.deletes import with_deletes

pytestmark = pytest.mark.spark

_FOUND = (
    "problem string, run_id string, seq long, kseq long, event_name string, bucket string, key string, partition int,"
    " offset long, shard string, incarnation string, turn long, place long"
)


@pytest.mark.full("a gateway's replay is a release's")
def test_the_mark_in_a_removal_is_that_of_what_is_removed(spark: SparkSession) -> None:
    """A removal whose record bears the mark of the object that it removes, or none, is taken for its own event."""
    operations = ("PUT", "DELETE", "PUT", "PUT", "DELETE", "DELETE", "PUT")
    marks = (0, 0, 2, 3, 3, None, 6)
    expected = spark.createDataFrame(
        [(n, n, operation, "b", "k", "acked") for n, operation in enumerate(operations)],
        "seq long, kseq long, op string, bucket string, key string, outcome string",
    )
    names = {"PUT": "ObjectCreated:Put", "DELETE": "ObjectRemoved:Delete"}
    records = [
        (None, None if mark is None else "r", mark, mark, names[operation], "b", "k", 0, n, "s", "i", 1, n)
        for n, (operation, mark) in enumerate(zip(operations, marks, strict=True))
    ]

    found = with_deletes(spark.createDataFrame(records, _FOUND), expected, "r", F.lit(True)).collect()

    assert sorted((row.offset, row.run_id, row.seq, row.kseq) for row in found) == [(n, "r", n, n) for n in range(7)]
