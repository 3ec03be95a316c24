"""Which task sends which events: each key in one of them, in the order of the trace, and about as many in each."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # the usual name

MOST_HOT = 1000
"""Lanes that are given to a part one by one, those with the most events; all others go by their number."""

_SENT = ("seq", "ts_us", "op", "bucket", "key", "size", "kseq", "lane")
"""What a task needs of an event. Bucket and key are bytes, whatever they are; a lane stands for both."""


def with_lanes(events: DataFrame) -> DataFrame:
    """Events (shape.EVENT) as tasks take them."""
    lane = F.xxhash64("bucket", "key").alias("lane")
    bucket, key = (F.col(name).cast("binary").alias(name) for name in ("bucket", "key"))
    return events.select("seq", "ts_us", "op", bucket, key, "size", "kseq", lane)


def hottest(events: DataFrame) -> DataFrame:
    """The lanes with the most events, at most MOST_HOT of them: `lane` and `events`, always in the same order."""
    counts = events.select("lane").groupBy("lane").agg(F.count("*").alias("events"))
    return counts.orderBy(F.desc("events"), "lane").limit(MOST_HOT).select("lane", "events")


def spread(hot: Mapping[int, int], parts: int) -> dict[int, int]:
    """A part for each of these lanes, by their numbers of events: the largest first, into the part with the least."""
    heap = [(0, part) for part in range(parts)]
    chosen = {}
    for lane, events in sorted(hot.items(), key=lambda item: (-item[1], item[0])):
        load, part = heapq.heappop(heap)
        chosen[lane] = part
        heapq.heappush(heap, (load + events, part))
    return chosen


def with_parts(spark: SparkSession, events: DataFrame, chosen: Mapping[int, int], parts: int) -> DataFrame:
    """Events with the part that sends them: as chosen, else by the lane's number."""
    by_number = F.pmod(events["lane"], F.lit(parts)).cast("int")
    table = spark.createDataFrame(list(chosen.items()), "lane long, chosen int")
    is_same_lane = events["lane"] == table["lane"]
    part = F.coalesce(table["chosen"], by_number)
    return events.join(F.broadcast(table), is_same_lane, how="left").select(
        *[events[name] for name in _SENT], part.alias("part")
    )


def not_attempted(events: DataFrame, journal: DataFrame) -> DataFrame:
    """The events that no journal (shape.JOURNAL) tells of."""
    attempted = journal.select(F.explode("seqs").alias("told"))
    is_told = events["seq"] == attempted["told"]
    return events.join(attempted, is_told, how="left_anti").select(*events.columns)


def ordered(events: DataFrame, parts: int) -> DataFrame:
    """Events by part, one partition each, in the order of the trace."""
    return events.repartitionById(parts, F.col("part")).sortWithinPartitions("ts_us", "seq").select(*_SENT)
