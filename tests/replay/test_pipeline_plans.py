"""What Spark makes of the jobs behind Kafka: which files they read, and by how many tasks they write."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from remora_pipeline.replay.paths import location
from remora_pipeline.replay.pipeline.columns import EVENT, PARSED
from remora_pipeline.replay.pipeline.frames import current_objects, landed
from remora_pipeline.replay.pipeline.inventory import chosen
from remora_pipeline.replay.pipeline.spark import writing

pytestmark = [pytest.mark.timeout(900), pytest.mark.spark]


def plan(frame: DataFrame) -> str:
    """The physical plan, as `explain` shows it."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


def files_read(frame: DataFrame) -> int:
    """How many files Spark opens for all rows of this frame."""
    executed = frame._jdf.queryExecution().executedPlan()
    executed.executeCollect()
    leaf = executed.collectLeaves().head()
    return int(leaf.metrics().apply("numFiles").value())


def parsed(spark: SparkSession, hot: int, others: int, buckets: int = 3) -> DataFrame:
    """Events of one bucket's day, which is hot, and a few of other buckets; made by four tasks."""
    rows = spark.range(0, hot + others, 1, 4)
    bucket = F.when(F.col("id") < hot, "hot").otherwise(F.concat(F.lit("b"), F.col("id") % buckets))
    told = {
        "bucket": bucket, "bucket_dir": bucket, "day": F.lit("2026-11-21"),
        "key": F.sha2(F.col("id").cast("string"), 512),
        "partition": F.lit(0), "offset": F.col("id"), "record": F.lit(0),
    }  # fmt: skip
    columns = [told.get(each.name, F.lit(None)).cast(each.dataType).alias(each.name) for each in PARSED.fields]
    return rows.select(*columns)


@pytest.fixture
def small_parts(spark: SparkSession) -> Iterator[None]:
    """A session in which a part of 64 KB is a large one."""
    key = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
    before = spark.conf.get(key)
    spark.conf.set(key, "64kb")
    yield
    spark.conf.set(key, before or "64MB")


@pytest.mark.usefixtures("small_parts")
def test_a_hot_bucket_is_written_by_several_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """Its day becomes several files, each in Kafka's order and all events once; that of a small bucket becomes one."""
    with writing(spark):
        frame = landed(parsed(spark, hot=20_000, others=30), batch=0)
        frame.write.partitionBy("day", "bucket_dir").parquet(location(tmp_path / "events"))

    files = list((tmp_path / "events").rglob("part-*.parquet"))
    of = Counter(file.parent.name for file in files)
    assert of.pop("bucket_dir=hot") > 2
    assert of == {"bucket_dir=b0": 1, "bucket_dir=b1": 1, "bucket_dir=b2": 1}
    offsets = [pq.read_table(file, columns=["offset"])["offset"].to_pylist() for file in files]
    assert all(each == sorted(each) for each in offsets)
    assert sorted(offset for each in offsets for offset in each) == list(range(20_030))


def test_an_inventory_of_a_bucket_reads_its_folders_only(spark: SparkSession, tmp_path: Path) -> None:
    """The plan's filter of partitions names the bucket's folder, so that the files of others are never opened; without
    the name of a bucket all are read."""
    with writing(spark):
        landed(parsed(spark, hot=3, others=9), batch=0).write.partitionBy("day", "bucket_dir").parquet(
            location(tmp_path / "events")
        )
    events = spark.read.schema(EVENT).parquet(location(tmp_path / "events")).select(*EVENT.names)

    of_one, of_all = plan(chosen(events, ["b1"])), plan(chosen(events, []))

    (filters,) = re.findall(r"PartitionFilters: \[([^]]*)\]", of_one)
    assert "bucket_dir" in filters
    assert "b1" in filters
    assert re.findall(r"PartitionFilters: \[([^]]*)\]", of_all) == [""]
    for other in (tmp_path / "events").rglob("bucket_dir=hot/part-*"):
        other.write_bytes(b"no Parquet at all")
    assert chosen(events, ["b1"]).count() == 3


def test_an_inventory_of_one_bucket_of_a_hundred_reads_a_hundredth_of_the_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark opens the files of the named bucket alone, and those of all where none is named."""
    with writing(spark):
        landed(parsed(spark, hot=0, others=300, buckets=100), batch=0).write.partitionBy("day", "bucket_dir").parquet(
            location(tmp_path / "events")
        )
    events = spark.read.schema(EVENT).parquet(location(tmp_path / "events")).select(*EVENT.names)

    assert files_read(chosen(events, [])) >= 100
    assert files_read(chosen(events, ["b7"])) * 100 <= files_read(chosen(events, []))


def test_no_task_gets_all_events_of_an_object(spark: SparkSession, tmp_path: Path) -> None:
    """Each task keeps an object's last events of those that it reads, and sends only these to others: the task of an
    object with half of all events gets a row or two from each."""
    with writing(spark):
        landed(parsed(spark, hot=20, others=0), batch=0).write.parquet(location(tmp_path / "events"))
    events = spark.read.schema(EVENT).parquet(location(tmp_path / "events"))

    steps = plan(current_objects(events))

    assert steps.rindex("Exchange") < steps.index("partial_max_by")  # a plan begins with its last step
