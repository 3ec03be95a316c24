"""What Spark makes of a verification: how often rows are sent round, and into how many tasks they are divided."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from remora.replay.shape import EVENT, JOURNAL
from remora.replay.verify import chain, frames, numbers
from remora.replay.verify.record_frames import SMALL, sized, tasks
from remora.replay.verify.records import COLUMNS, records

pytestmark = [pytest.mark.timeout(900), pytest.mark.spark]

_RAW = {
    "partition": "int", "offset": "long", "timestamp": "timestamp", "timestampType": "int", "key": "binary",
    "value": "binary", "headers": "array<struct<key: string, value: binary>>",
}  # fmt: skip
"""What Spark's connector reads."""


def plan(frame: DataFrame) -> str:
    """The physical plan, as `explain` shows it."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


def exchanges(frame: DataFrame) -> list[str]:
    """By what the rows are divided in each exchange of the plan, without the numbers of columns."""
    found = re.findall(r"Exchange hashpartitioning\(((?:[^()]|\([^()]*\))*), \d+\)", plan(frame))
    return [re.sub(r"#\d+L?", "", each) for each in found]


@pytest.fixture
def large(spark: SparkSession) -> Iterator[SparkSession]:
    """A session in which nothing is small enough to be sent to every task."""
    key = "spark.sql.autoBroadcastJoinThreshold"
    before = spark.conf.get(key)
    spark.conf.set(key, "-1")
    yield spark
    spark.conf.set(key, before or "10MB")


def topic(spark: SparkSession) -> DataFrame:
    """Records of a topic, which are never computed."""
    made = [F.expr(f"cast(null as {kind})").alias(name) for name, kind in _RAW.items()]
    return records(spark.range(4).select(*made))


def empty(spark: SparkSession, schema: object) -> DataFrame:
    """A table of these columns, which is never computed."""
    return spark.range(4).select(*[F.lit(None).cast(each.dataType).alias(each.name) for each in schema])  # type: ignore[attr-defined]


def test_events_and_records_are_sent_round_by_their_number_once(large: SparkSession) -> None:
    """The trace, the records and the lines of journals are each divided once by the number of an event, and what joins
    and counts them finds them together: nothing is divided by it a fourth time."""
    journal = empty(large, JOURNAL).select("*", F.lit("f").alias("file"))
    events = empty(large, EVENT).select("seq", "ts_us", "op", "bucket", "key", "size", "kseq")
    expected = frames.expected(events, frames.outcomes(journal)).select("*", F.lit(None).cast("bigint").alias("digest"))
    named = topic(large).select(
        "seq", "kseq", "partition", "offset", "log_us", "bucket", "key", "event_name", "size", "shard", "incarnation",
        "turn", "place", F.lit(True).alias("is_id"), "is_keyed", "event_us", "digest", "has_id", "number",
    )  # fmt: skip

    found = exchanges(frames.compared(expected, named))

    assert found.count("seq") == 3
    assert len([each for each in found if "seq" not in each.split(", ")]) == len(found) - 3
    assert found.count("bucket, key") == 1


def test_the_chain_is_put_together_once(large: SparkSession) -> None:
    """Links of positions, as many as records, are divided once for all that is asked of them; and once more where a
    topic numbers its events."""
    found = topic(large)

    for breaks in (chain.breaks(found, None), numbers.breaks(found, None)):
        of_links = [each for each in exchanges(breaks) if re.fullmatch(r"shard, incarnation, turn, place", each)]
        assert len(of_links) == 1


@pytest.mark.parametrize(
    ("rows", "slots", "least", "expected"),
    [
        (3_000, 200, None, 1),
        (50_000, 200, None, 3),
        (50_000, 2, None, 2),
        (10_000_000, 8, None, 34),
        (3_000, 8, 2, 2),
        (10_000_000, 8, 500, 500),
        (0, 8, None, 1),
    ],
)
def test_rows_are_divided_by_their_number(rows: int, slots: int, least: int | None, expected: int) -> None:
    """Few rows make few tasks on a large cluster, many rows make enough, and what somebody set is the least."""
    assert tasks(rows, slots, least) == expected


def test_code_is_compiled_only_for_many_records(spark: SparkSession) -> None:
    """A small topic is worked through without compiling code for it, a large one with; and the session is afterwards as
    it was before."""
    key = "spark.sql.codegen.wholeStage"
    before = spark.conf.get(key)
    spark.conf.set(key, "true")
    try:
        with sized(spark, SMALL):
            assert spark.conf.get(key) == "false"
            assert "*(" not in plan(spark.range(5).filter("id > 2"))
        with sized(spark, SMALL + 1):
            assert spark.conf.get(key) == "true"
        assert spark.conf.get(key) == "true"
    finally:
        spark.conf.set(key, before or "true")


def test_a_topic_has_the_columns_of_records(spark: SparkSession) -> None:
    """The table that these plans are made of is that of a verification."""
    assert topic(spark).columns == list(COLUMNS)
