"""The numbers of a topic that numbers its events (`remora-seq`): dense, each of one entry, and increasing in a queue.

A number that no record has is a gap, which dead letters explain that name the missing numbers. All copies of an entry
have its number.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from remora_pipeline.replay.verify import chain

_ENTRY = ("shard", "incarnation", "turn", "place")


def breaks(records: DataFrame, letters: DataFrame | None) -> DataFrame:
    """Where numbers may be missing, for chain.gaps. That gives `shard` (the topic's id), `place` (a number), log_us,
    partition and offset of the record that has it. Those before it are missing, and `explained` tells whether dead
    letters have all of them.

    It is the chain once more, of each topic with its numbers as positions.
    """
    none = F.lit(None).cast("string").alias("after")
    own = _numbered(records).select(*_as_positions(), "log_us", "partition", "offset", none)
    return chain.breaks(own, None if letters is None else _numbered(letters).select(*_as_positions()))


def _numbered(rows: DataFrame) -> DataFrame:
    return rows.filter(F.col("number").isNotNull())


def _as_positions() -> list[Column]:
    none = F.lit(0).cast("bigint")
    return [
        F.col("sequence").alias("shard"),
        F.lit("").alias("incarnation"),
        none.alias("turn"),
        F.col("number").alias("place"),
        none.alias("next_turn"),
        (F.col("number") + 1).alias("next_place"),
    ]


def entries(records: DataFrame, letters: DataFrame | None) -> DataFrame:
    """A row for each entry that a record is of: _ENTRY, sequence, number, and log_us, partition and offset of the first
    such record. `is_torn` where copies do not agree on the number, `is_early` where the entry before it in its queue
    has no smaller one.

    `records` all tell their places.
    """
    none = F.lit(None)
    own = records.select(
        *_ENTRY,
        F.struct("log_us", "partition", "offset").alias("spot"),
        "sequence",
        "number",
        none.cast("bigint").alias("before"),
    )
    rows = own.union(_behind(own, records))
    if letters is not None:
        rows = rows.union(_behind(own, letters))
    number = F.col("number")
    found = rows.groupBy(*_ENTRY).agg(
        F.min("spot").alias("spot"),
        F.min("sequence").alias("sequence"),
        F.min(number).alias("number"),
        ((F.min(number) < F.max(number)) | F.count(number).between(1, F.count("spot") - 1)).alias("is_torn"),
        (F.min(number) <= F.max("before")).alias("is_early"),
    )
    return found.filter(F.col("spot").isNotNull()).select(
        *_ENTRY,
        "sequence",
        "number",
        "spot.*",
        F.coalesce("is_torn", F.lit(False)).alias("is_torn"),
        F.coalesce("is_early", F.lit(False)).alias("is_early"),
    )


def _behind(like: DataFrame, rows: DataFrame) -> DataFrame:
    """For each place behind a row its number, in the columns of `like`."""
    empty = [F.lit(None).cast(like.schema[name].dataType).alias(name) for name in ("spot", "sequence", "number")]
    place = [F.col("next_turn").alias("turn"), F.col("next_place").alias("place")]
    return rows.select("shard", "incarnation", *place, *empty, F.col("number").alias("before"))


def repeated(entries: DataFrame) -> DataFrame:
    """Each number that several entries have: sequence, number, and log_us, partition and offset of a record."""
    found = _numbered(entries).groupBy("sequence", "number")
    spot = F.struct("log_us", "partition", "offset")
    several = found.agg(F.count(F.lit(1)).alias("entries"), F.max(spot).alias("spot")).filter("entries > 1")
    return several.select("sequence", "number", "spot.*")


def without_number(letters: DataFrame | None, entries: DataFrame) -> int:
    """How many letters name no number though their queue has some: those of entries that were corrupt."""
    if letters is None:
        return 0
    queues = _numbered(entries).select("shard", "incarnation").distinct()
    nameless = letters.filter(F.col("number").isNull()).select(*_ENTRY).distinct()
    return nameless.join(F.broadcast(queues), on=["shard", "incarnation"], how="left_semi").count()
