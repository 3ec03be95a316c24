"""What Spark makes of a verification: how often rows are sent round, and into how many tasks they are divided."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from remora_pipeline.replay.shape import EVENT, JOURNAL
from remora_pipeline.replay.verify import alone, chain, frames, numbers
from remora_pipeline.replay.verify.record_frames import kept_on_disk, named_and_others, tasks
from remora_pipeline.replay.verify.records import records
from remora_pipeline.replay.verify.sent import with_digests
from replay.verified import run

_RAW = (
    "partition int, offset long, timestamp timestamp, timestampType int, key binary, value binary,"
    " headers array<struct<key: string, value: binary>>"
)
"""What Spark's connector reads."""

POSITION = "shard, incarnation, turn, place"


def exchanges(frame: DataFrame) -> Counter[str]:
    """By what rows are divided in each exchange of a plan, without the numbers of columns and beside what is kept."""
    plan = "\n".join(_beside_kept(str(frame._jdf.queryExecution().executedPlan().toString())))
    divided = re.findall(r"(?<![A-Za-z])Exchange (\w+)(?:\(((?:[^()]|\([^()]*\))*)\))?", plan)
    named = (by.rpartition(", ")[0] if kind == "hashpartitioning" else kind for kind, by in divided)
    return Counter(re.sub(r"#\d+L?", "", each) for each in named)


def _beside_kept(plan: str) -> Iterator[str]:
    """The lines of a plan, without the plans of what it reads from tables that are kept."""
    kept: int | None = None
    for line in plan.splitlines():
        depth = len(line) - len(line.lstrip(" :+-"))
        if kept is None or depth <= kept:
            kept = depth if line[depth:].startswith("InMemoryRelation") else None
            yield line


def without_rows(spark: SparkSession, schema: StructType | str) -> DataFrame:
    """A table that is empty. Spark cannot see that when it plans."""
    nothing: list[tuple[object, ...]] = []
    return spark.createDataFrame(spark.sparkContext.parallelize(nothing, 2), schema)


@pytest.fixture
def kept(spark: SparkSession) -> Iterator[ExitStack]:
    """Keeps tables, in a session in which nothing is small enough to be sent to every task unasked."""
    key = "spark.sql.autoBroadcastJoinThreshold"
    before = spark.conf.get(key)
    spark.conf.set(key, "-1")
    with ExitStack() as stack:
        yield stack
    spark.conf.set(key, before or "10MB")


@pytest.fixture
def topic(spark: SparkSession, kept: ExitStack) -> DataFrame:
    """A topic's records, kept as a verification keeps them."""
    return kept_on_disk(kept, records(without_rows(spark, _RAW)))


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_events_and_records_are_sent_round_by_their_number_once(
    spark: SparkSession, kept: ExitStack, topic: DataFrame
) -> None:
    """The lines of journals, the trace and the records are each divided once by the number of an event; what pairs them
    is divided once by queue and once by key, and what counts keys finds them together."""
    journal = without_rows(spark, StructType([*JOURNAL.fields, StructField("file", StringType())]))
    outcomes = frames.outcomes(journal)
    of_journals = exchanges(outcomes)
    expected = with_digests(frames.expected(without_rows(spark, EVENT), kept_on_disk(kept, outcomes)), run())
    named, _ = named_and_others(topic, expected, run(), F.lit(True))
    compared = frames.compared(expected, named)

    of_queue = "k_shard, k_incarnation, partition, _w1"
    assert of_journals == {"seq": 1, "file": 1}
    assert exchanges(compared) == {"seq": 2, of_queue: 1, "bucket, key": 1}
    assert exchanges(frames.of_keys(kept_on_disk(kept, compared), 3)) == {}


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_chain_is_put_together_once(topic: DataFrame) -> None:
    """Links of positions, as many as records, are divided once for all that is asked of them; and once more where a
    topic numbers its events."""
    for breaks in (chain.breaks(topic, None), numbers.breaks(topic, None)):
        assert exchanges(breaks) == {POSITION: 1, "shard, incarnation, turn": 1, "shard, incarnation": 1}


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_topic_alone_is_sent_round_by_its_keys_once(kept: ExitStack, topic: DataFrame) -> None:
    """Without a journal records are divided once by their positions and once by their keys; what counts keys finds them
    together."""
    itself = alone.itself(topic, None)

    assert exchanges(itself) == {"_w0, _w1": 1, "bucket, key": 1}
    of_keys = exchanges(alone.of_keys(kept_on_disk(kept, itself), 3))
    assert of_keys == {"partition, shard, incarnation": 1, "SinglePartition": 1}, "of the spans of queues, few rows"


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
