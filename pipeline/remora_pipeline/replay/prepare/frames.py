"""From what the lines say to events in order. Each function begins and ends with a select."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from remora_pipeline.replay.prepare.entry import MALFORMED
from remora_pipeline.replay.prepare.task import DROPPED, LINES, REFUSED, WRITE
from remora_pipeline.replay.shape import DELETE, EVENT, WRITES

SECOND_US = 1_000_000
ORDER = ("ts_us", "end_us", "piece", "line", "item", "clone")
"""By time; of what began at once, what ended first; then as it stands in the files."""

_INPUT_ORDER = ("ts_us", "end_us", "piece", "line", "item")
_LINE = ("ts_us", "end_us", "piece", "line", "item", "op", "bucket", "key", "size")
_HASH_BITS = 52  # as many as a double has

TWICE = "logged twice (the same request)"
LATER = "after --until"
NOT_SAMPLED = "not in --sample-keys"


def writes(read: DataFrame) -> DataFrame:
    """The rows that are writes; `reason` says why one is left out after all, and is null for now."""
    rows = read.select("kind", *_LINE, "request")
    return rows.where(F.col("kind") == WRITE).select(*_LINE, "request", F.lit(None).cast("string").alias("reason"))


def summary(read: DataFrame, examples: int, reasons: int) -> DataFrame:
    """What was read, in few rows: all writes in one; one for each reason to drop lines, up to `reasons`; and the first
    few of the files that were refused. `first` has the first lines of each, as (piece, line, text).
    """
    rows = read.select("kind", "reason", "piece", "line", "count", "text", "ts_us")
    some = rows.where(F.col("kind") != LINES)
    place = F.when(F.col("kind") != WRITE, F.struct("piece", "line", "text"))
    is_whole = F.coalesce(F.bool_and(F.col("ts_us") % SECOND_US == 0), F.lit(False))
    grouped = some.groupBy("kind", "reason").agg(
        F.sum(F.coalesce("count", F.lit(1))).alias("count"),
        F.slice(F.sort_array(F.collect_list(place)), 1, examples).alias("first"),
        F.min("ts_us").alias("first_us"),
        is_whole.alias("is_whole_seconds"),
    )
    rank = F.array_position(F.array(F.lit(WRITE), F.lit(REFUSED), F.lit(DROPPED)), F.col("kind"))
    told = grouped.orderBy(rank, F.desc("count"), "reason").limit(reasons)
    return told.select("kind", "reason", "count", "first", "first_us", "is_whole_seconds")


def dropped_lines(read: DataFrame) -> DataFrame:
    """One row: how many lines were dropped."""
    rows = read.select("kind", "count").where(F.col("kind") == DROPPED)
    return rows.agg(F.coalesce(F.sum("count"), F.lit(0)).alias("count")).select("count")


def refused(read: DataFrame) -> DataFrame:
    """The pieces that were not read to their end, and why."""
    return read.select("kind", "piece", "reason").where(F.col("kind") == REFUSED).select("piece", "reason")


def malformed(read: DataFrame) -> DataFrame:
    """How many lines of each piece are not of its format (`wrong`), and how many there are of all."""
    rows = read.select("kind", "piece", "reason", "count").where(F.col("kind").isin(WRITE, DROPPED))
    is_wrong = F.coalesce(F.col("reason").startswith(MALFORMED), F.lit(False))
    counted = rows.select("piece", F.coalesce("count", F.lit(1)).alias("count"), is_wrong.alias("is_wrong"))
    by_piece = counted.groupBy("piece").agg(
        F.sum(F.when(F.col("is_wrong"), F.col("count")).otherwise(0)).alias("wrong"), F.sum("count").alias("count")
    )
    return by_piece.select("piece", "wrong", "count")


def lines(read: DataFrame) -> DataFrame:
    """The lines of each piece."""
    return read.select("kind", "piece", "count").where(F.col("kind") == LINES).select("piece", "count")


def mark_repeated(lines: DataFrame) -> DataFrame:
    """Mark what has the request of an earlier line; those without a request stay."""
    # A name of its own for each that has none, or they would all be sorted in one task.
    alone = F.concat_ws(" ", F.lit("\u0000"), "piece", "line", "item")
    rows = lines.select(*_LINE, "reason", F.coalesce("request", alone).alias("request"))
    nth = F.row_number().over(Window.partitionBy("request").orderBy(*_INPUT_ORDER))
    return rows.select(*_LINE, "request", F.when(nth > 1, TWICE).otherwise(F.col("reason")).alias("reason"))


def mark_later(lines: DataFrame, until_us: int) -> DataFrame:
    """Mark what is not before this time."""
    is_later = F.col("reason").isNull() & (F.col("ts_us") >= until_us)
    return lines.select(*_LINE, "request", F.when(is_later, LATER).otherwise(F.col("reason")).alias("reason"))


def spread_evenly(lines: DataFrame) -> DataFrame:
    """Give the unmarked writes of a second even distances within it, in their order."""
    rows = lines.select(*_LINE, "request", "reason", _second().alias("second"))
    in_order = Window.partitionBy("second", F.col("reason").isNull()).orderBy(*_INPUT_ORDER)
    everyone = Window.partitionBy("second", F.col("reason").isNull())
    before = (F.row_number().over(in_order) - 1).cast("long")
    offset_us = F.floor(before * SECOND_US / F.count(F.lit(1)).over(everyone))
    return _moved(rows, offset_us)


def spread_randomly(lines: DataFrame, seed: int) -> DataFrame:
    """Give the unmarked writes of a second the times of as many uniform draws within it, sorted, in their order.

    The distances of n sorted draws are those of n + 1 exponential ones, scaled to the second: so they come one by one.
    """
    rows = lines.select(*_LINE, "request", "reason", _second().alias("second"))
    in_order = Window.partitionBy("second", F.col("reason").isNull()).orderBy(*_INPUT_ORDER)
    everyone = Window.partitionBy("second", F.col("reason").isNull())
    numbered = rows.withColumn("nth", F.row_number().over(in_order))
    so_far = F.sum(_exponential(seed, F.col("nth"))).over(in_order)
    summed = numbered.withColumn("so_far", so_far)
    whole = F.max("so_far").over(everyone) + _exponential(seed, F.lit(0))
    return _moved(summed, F.floor(F.col("so_far") / whole * SECOND_US))


def _exponential(seed: int, nth: Column) -> Column:
    """An exponential draw that depends on nothing but the seed, the second and the place in it."""
    bits = F.xxhash64(F.lit(seed), F.col("second"), nth.cast("int")).bitwiseAND((1 << _HASH_BITS) - 1)
    return -F.log((bits + 0.5) / float(1 << _HASH_BITS))


def _second() -> Column:
    return F.floor(F.col("ts_us") / SECOND_US)


def _moved(rows: DataFrame, offset_us: Column) -> DataFrame:
    ts_us = (F.col("second") * SECOND_US + offset_us).cast("long")
    return rows.select(ts_us.alias("ts_us"), *_LINE[1:], "request", "reason")


def mark_unsampled(lines: DataFrame, one_in: int) -> DataFrame:
    """Mark all but one key of `one_in`, by a hash of bucket and key, so that what is left of a key is all of it."""
    # Salted: `run` places keys by the bare hash, and would else have one part that gets all of them.
    is_sampled = F.pmod(F.xxhash64(F.lit("sample"), F.col("bucket"), F.col("key")), F.lit(one_in)) == 0
    unsampled = F.col("reason").isNull() & ~is_sampled
    return lines.select(*_LINE, "request", F.when(unsampled, NOT_SAMPLED).otherwise(F.col("reason")).alias("reason"))


def shaped(lines: DataFrame, clones: int, size_cap: int | None) -> DataFrame:
    """The unmarked writes, each `clones` times with keys of their own (`#1` ...), no size beyond the cap."""
    rows = lines.where(F.col("reason").isNull()).select(*_LINE)
    copies = F.explode(F.sequence(F.lit(0), F.lit(clones - 1)))
    cloned = rows.select(*_LINE, copies.alias("clone"))
    is_original = F.col("clone") == 0
    key = F.when(is_original, F.col("key")).otherwise(F.concat("key", F.lit("#"), "clone"))
    size = F.col("size") if size_cap is None else F.least("size", F.lit(size_cap))
    # least() takes the other one where a size is null.
    size = F.when(F.col("size").isNotNull(), size)
    return cloned.select(*_LINE[:-2], key.alias("key"), size.cast("long").alias("size"), "clone")


def in_order(rows: DataFrame, partitions: int) -> DataFrame:
    """Partitions that follow each other in time, each in order: file by file this is the whole order."""
    columns = (*_LINE, "clone")
    ranged = rows.select(*columns).repartitionByRange(partitions, *ORDER)
    return ranged.sortWithinPartitions(*ORDER).select(*columns)


def numbered(ordered: DataFrame, before: DataFrame) -> DataFrame:
    """`seq` for the files of `in_order`, by their names and the events in files `before` them (`events_before`)."""
    place = (F.col("_metadata.file_name").alias("file"), F.col("_metadata.row_index").alias("row"))
    rows = ordered.select("ts_us", "op", "bucket", "key", "size", *place)
    same_file = rows["file"] == before["file"]
    seq = F.col("events_before") + F.col("row")
    return rows.join(F.broadcast(before), same_file, how="inner").select(
        seq.alias("seq"), "ts_us", "op", "bucket", "key", "size", rows["file"].alias("file"), "last_us_before"
    )


def gaps(events: DataFrame, most_us: int) -> DataFrame:
    """How much of the time before each event is beyond `most_us`, summed up within its file (`cut_us`)."""
    rows = events.select("seq", "ts_us", "op", "bucket", "key", "size", "file", "last_us_before")
    within = Window.partitionBy("file").orderBy("seq")
    previous = F.coalesce(F.lag("ts_us").over(within), "last_us_before", "ts_us")
    beyond = rows.withColumn("beyond", F.greatest(F.col("ts_us") - previous - most_us, F.lit(0)))
    return beyond.select(
        "seq", "ts_us", "op", "bucket", "key", "size", "file", F.sum("beyond").over(within).alias("cut_us")
    )


def without_gaps(cut: DataFrame, before: DataFrame) -> DataFrame:
    """The events earlier by all that was cut: in their file, and in the files before (`file`, `cut_before_us`)."""
    rows = cut.select("seq", "ts_us", "op", "bucket", "key", "size", "file", "cut_us")
    same_file = rows["file"] == before["file"]
    ts_us = F.col("ts_us") - F.col("cut_us") - F.col("cut_before_us")
    return rows.join(F.broadcast(before), same_file, how="inner").select(
        "seq", ts_us.alias("ts_us"), "op", "bucket", "key", "size"
    )


def events(rows: DataFrame, file_events: int, files: int) -> DataFrame:
    """shape.EVENT: `kseq` counts a key's events; `file_events` to a file, in order."""
    columns = rows.select("seq", "ts_us", "op", "bucket", "key", "size")
    of_key = Window.partitionBy("bucket", "key").orderBy("seq")
    counted = columns.withColumn("kseq", (F.row_number().over(of_key) - 1).cast("long"))
    placed = counted.withColumn("file", F.floor(F.col("seq") / file_events).cast("int"))
    ranged = placed.repartitionById(files, "file").sortWithinPartitions("seq")
    return ranged.select(*EVENT.names)


def totals(prepared: DataFrame) -> DataFrame:
    """One row: what Trace says of all events; a column for the number of each operation, by its name."""
    rows = prepared.select("bucket", "key", "ts_us", "op", "size")
    is_unknown = F.col("size").isNull() & (F.col("op") != DELETE)
    # First by key, which counts the keys without a second copy of every row.
    keys = rows.groupBy("bucket", "key").agg(
        F.count(F.lit(1)).alias("events"),
        F.min("ts_us").alias("first_us"),
        F.max("ts_us").alias("last_us"),
        F.sum("size").alias("bytes"),
        F.count_if(is_unknown).alias("without_size"),
        *(F.count_if(F.col("op") == op).alias(op) for op in WRITES),
    )
    return keys.agg(
        F.sum("events").alias("events"),
        F.count(F.lit(1)).alias("keys"),
        F.countDistinct("bucket").alias("buckets"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
        F.sum("without_size").alias("without_size"),
        *(F.sum(op).alias(op) for op in WRITES),
    ).select("events", "keys", "buckets", "first_us", "last_us", "bytes", "without_size", *WRITES)


def by_key(prepared: DataFrame) -> DataFrame:
    """Events of each key."""
    keys = prepared.select("bucket", "key").groupBy("bucket", "key")
    return keys.agg(F.count(F.lit(1)).alias("events")).select("bucket", "key", "events")


def peak(prepared: DataFrame) -> DataFrame:
    """One row: the most events of one second by the clock."""
    seconds = prepared.select(_second().alias("second")).groupBy("second").agg(F.count(F.lit(1)).alias("events"))
    return seconds.agg(F.max("events").alias("peak_per_s")).select("peak_per_s")


def hottest(prepared: DataFrame, keys: int) -> DataFrame:
    """The keys with the most events, and the most that any of them has within one second, wherever that begins."""
    top = by_key(prepared).orderBy(F.desc("events"), "bucket", "key").limit(keys)
    rows = prepared.select("bucket", "key", "ts_us")
    same_key = (rows["bucket"] == top["bucket"]) & (rows["key"] == top["key"])
    of_top = rows.join(F.broadcast(top), same_key, how="left_semi")
    second = Window.partitionBy("bucket", "key").orderBy("ts_us").rangeBetween(1 - SECOND_US, 0)
    within = of_top.select("bucket", "key", F.count(F.lit(1)).over(second).alias("in_second"))
    found = within.groupBy("bucket", "key").agg(
        F.count(F.lit(1)).alias("events"), F.max("in_second").alias("peak_per_s")
    )
    return found.orderBy(F.desc("events"), "bucket", "key").select("bucket", "key", "events", "peak_per_s")
