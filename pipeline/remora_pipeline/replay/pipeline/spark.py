"""What all jobs that write tables need of Spark: how they are written, and how many rows came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_WRITING = {
    # Parquet's own type; by default Spark writes one that few others know.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # Parts are put together and split by what they have: nobody knows before how much of a bucket there is.
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.files.maxRecordsPerFile": "2000000",
}


@contextmanager
def writing(spark: SparkSession) -> Iterator[None]:
    """The session with the settings that tables are written with, in whosever session the job runs.

    A batch of a stream has a session of its own, in which Spark has switched adaptive execution off.
    """
    before = {key: spark.conf.get(key) for key in _WRITING}
    for key, value in _WRITING.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        with suppress(Py4JError, ConnectionError):  # the Java may have gone
            for key, old in before.items():
                if old is not None:
                    spark.conf.set(key, old)


def rows(table: Path) -> int:
    """Rows that Spark has written into a table, by the footers of its files."""
    return sum(pq.read_metadata(file).num_rows for file in table.rglob("part-*.parquet"))
