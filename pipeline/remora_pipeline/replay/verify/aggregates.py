"""Counts of what the frames found, each a single row or a row for each partition."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from remora_pipeline.replay.shape import ACKED, DROPPED, REJECTED, UNKNOWN
from remora_pipeline.replay.verify.examples import is_ghost, is_strayed
from remora_pipeline.replay.verify.frames import ALTERED, FOREIGN, MISSING, THERE, is_missing
from remora_pipeline.replay.verify.placement import is_in_several_shards, is_misplaced
from remora_pipeline.replay.verify.seams import tells_generation


@dataclass(frozen=True)
class KafkaLog:
    """How many records each partition has, whose clock stamped them, and how many of them tell a number, or of the
    shards before theirs the generation only."""

    partitions: dict[str, int]
    timestamp_type: str
    numbered: int
    of_generations: int


def log(found: DataFrame) -> KafkaLog:
    """What partitions have, and of what kind."""
    rows = found.groupBy("partition").agg(
        F.count(F.lit(1)).alias("n"),
        F.min("log_type").alias("least"),
        F.max("log_type").alias("most"),
        F.count("number").alias("numbered"),
        _count(tells_generation()).alias("of_generations"),
    )
    collected = rows.orderBy("partition").collect()
    kinds = sorted({kind for row in collected for kind in (row.least, row.most)})
    names = {0: "CreateTime", 1: "LogAppendTime"}
    kind = "+".join(names.get(each, "NoTimestampType") for each in kinds)
    partitions = {str(row.partition): row.n for row in collected}
    numbered, of_generations = (sum(row[name] for row in collected) for name in ("numbered", "of_generations"))
    return KafkaLog(partitions, kind or "none", numbered, of_generations)


def stamp(log: KafkaLog) -> str:
    whose = {"CreateTime": ", set by the producer", "LogAppendTime": ", set by the broker"}
    return f"Kafka's time stamp ({log.timestamp_type}{whose.get(log.timestamp_type, '')})"


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, True))


def row(rows: DataFrame) -> Row:
    found = rows.head()
    assert found is not None
    return found


def count_events(compared: DataFrame, topic: str) -> DataFrame:
    """Of frames.compared; `topic` is that of the run."""
    kind, nth, outcome = F.col("kind"), F.col("nth"), F.col("outcome")
    event = F.col("op").isNotNull() & (nth == 1)
    there = kind == THERE
    return compared.agg(
        _count(event).alias("in_trace"),
        _count(event & outcome.isNotNull()).alias("offered"),
        _count(event & (F.col("tries") > 0)).alias("sent"),
        *[_count(event & (outcome == each)).alias(each) for each in (ACKED, REJECTED, UNKNOWN, DROPPED)],
        _count(kind != MISSING).alias("named"),
        _count(there & (nth == 1)).alias("distinct"),
        _count(there & (nth > 1)).alias("duplicates"),
        _count(there & (nth > 1) & F.col("resent")).alias("resent"),
        _count(is_missing()).alias("missing"),
        _count(F.col("is_before")).alias("before"),
        _count((kind != MISSING) & ~F.col("k_has_id")).alias("without_event_id"),
        _count((kind != MISSING) & ~F.col("k_has_number")).alias("without_number"),
        _count(is_ghost()).alias("ghosts"),
        _count(kind == ALTERED).alias("altered"),
        _count(kind == FOREIGN).alias("foreign"),
        _count((kind != MISSING) & ~F.col("chained")).alias("unchained"),
        _count(is_strayed(topic)).alias("strayed"),
        F.min("due_us").alias("first_due_us"),
        F.max("due_us").alias("last_due_us"),
        F.max(F.greatest("due_us", "acked_us", F.when(there, F.col("log_us")))).alias("last_us"),
    )


def count_waits(journal: DataFrame) -> DataFrame:
    """How often requests waited for a rate limit, and for how many microseconds; `journal` is shape.JOURNAL."""
    return journal.agg(*[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("limited", "limited_us")])


def count_others(found: DataFrame, is_judged: Column) -> DataFrame:
    bad = F.col("problem").isNotNull()
    return found.agg(
        _count(is_judged).alias("judged"),
        _count(~is_judged).alias("outside"),
        _count(is_judged & ~bad).alias("foreign"),
        _count(is_judged & bad).alias("malformed"),
        _count(is_judged & F.col("turn").isNull()).alias("unchained"),
    )


def count_keys(keys: DataFrame, **more: Column) -> DataFrame:
    return keys.agg(
        *[_count(condition).alias(name) for name, condition in more.items()],
        F.coalesce(F.sum("inversions"), F.lit(0)).alias("inversions"),
        _count(F.col("inversions") > 0).alias("keys_inverted"),
        F.coalesce(F.max("max_depth"), F.lit(0)).alias("max_depth"),
        _count(F.col("least_partition") < F.col("most_partition")).alias("keys_in_several_partitions"),
        _count(is_misplaced()).alias("keys_misplaced"),
        _count(is_in_several_shards()).alias("keys_in_several_shards"),
    )


def count_alone(judged: DataFrame) -> DataFrame:
    return judged.agg(
        _count(F.col("nth") == 1).alias("distinct"),
        _count(F.col("nth") > 1).alias("duplicates"),
        _count(F.col("is_early")).alias("early"),
        F.min("log_us").alias("first_us"),
        F.max("log_us").alias("last_us"),
    )


def count_numbers(entries: DataFrame) -> DataFrame:
    """Of numbers.entries."""
    return entries.agg(_count(F.col("is_torn")).alias("torn"), _count(F.col("is_early")).alias("early"))


def count_gaps(gaps: DataFrame) -> DataFrame:
    return gaps.agg(F.count(F.lit(1)).alias("chain_gaps"), _count(F.col("explained")).alias("chain_gaps_explained"))
