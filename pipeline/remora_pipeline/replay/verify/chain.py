"""The chain of positions: each record says where its entry began in its queue, and where the next one begins.

A record without a predecessor shows that something before it is missing, unless it is the first of its queue in the
window. Copies of one entry that name different next ones break the chain, too: one of those is nowhere, or follows
another entry. The chain of a shard that was taken over from ends where the first record of the other one says
(`remora-after`). What was missing went elsewhere when dead letters fill the gap without a gap of their own. Positions
are compared within one incarnation of a queue, as (turn, place): on RADOS a turn of the ring ends and the next begins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.sql.window import Window

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.paths import pattern
from remora_pipeline.replay.verify.records import split_number, split_position
from remora_pipeline.replay.verify.seams import ends_of_parents

PLACES = ("shard", "incarnation", "turn", "place", "next_turn", "next_place")
LETTERS = (*PLACES, "sequence", "number")
"""Columns of dead letters; the last two are nulls where a letter tells no number (`numbers`)."""

_QUEUE = ("shard", "incarnation")

_OFFSET_BITS = 44
"""Enough for any offset; the partition stands above them."""

_MOST_SEEN = 32 << 20
"""Bytes of a file of dead letters that are looked at before Spark starts."""

Place = Annotated[str, msgspec.Meta(pattern=r"(\A|:)[0-9]{1,18}/[0-9]{1,18}\Z")]
"""A turn and a place, whatever stands before its last colon."""

_LETTER_FILE = StructType(
    [StructField(name, StringType()) for name in ("queue", "incarnation", "position", "next_position", "sequence")]
)


class ShownLetter(msgspec.Struct, frozen=True):
    """What of a dead letter `remora dlq list --json` tells the chain."""

    queue: str
    incarnation: str
    position: Place
    next_position: Place
    sequence: str | None = None


def see_letters(path: Path) -> None:
    """Raise ReplayRefused for a file that `remora dlq list --json` has not written. Of a large one only the beginning
    is looked at here; the rest is Spark's to read."""
    with path.open("rb") as file:
        begin = file.read(_MOST_SEEN + 1)
    try:
        if len(begin) <= _MOST_SEEN:
            msgspec.json.decode(begin, type=list[ShownLetter])
        elif not begin.lstrip().startswith(b"["):
            raise ValueError("it is no list")
    except (ValueError, RecursionError) as exc:
        raise ReplayRefused(f"{path}: is not what `remora dlq list --json` writes: {exc}") from exc


def letters_of_file(spark: SparkSession, path: Path) -> DataFrame:
    """Dead letters as `remora dlq list --json` wrote them."""
    read = spark.read.schema(_LETTER_FILE).option("multiLine", "true").option("mode", "FAILFAST").json(pattern(path))
    positions = [split_position(name) for name in ("position", "next_position")]
    (turn, place), (next_turn, next_place) = positions
    return read.select(
        F.col("queue").alias("shard"),
        "incarnation",
        turn.alias("turn"),
        place.alias("place"),
        next_turn.alias("next_turn"),
        next_place.alias("next_place"),
        *split_number("sequence"),
    ).toDF(*LETTERS)


def links(records: DataFrame, letters: DataFrame | None, ended: DataFrame | None) -> DataFrame:
    """A row for each position that is named: by records, by letters, as their own or as the next one.

    Where a shard ended that another one took over from counts as a record's own position: something leads to it. A
    record is the other one's first, which says so; `ended` has what it leaves out (seams.ends_of_file).

    `log_us` and `spot` (partition and offset) are of the first record whose own it is; `least_next` and `most_next`,
    hashes of the next positions that these records name, are the same where all agree.
    """
    # One number, since sums and minima of numbers need no sorting.
    spot = F.shiftleft(F.col("partition").cast("bigint"), _OFFSET_BITS).bitwiseOR(F.col("offset"))
    unknown = F.lit(None).cast("bigint").alias("next")
    own = [F.col("log_us"), spot.alias("spot"), F.xxhash64("next_turn", "next_place").alias("next")]
    nobody = [F.lit(None).cast("bigint").alias(name) for name in ("log_us", "spot", "next")]
    named = [
        records.select(*_QUEUE, "turn", "place", F.lit("record").alias("by"), *own),
        records.select(*_QUEUE, *_next(), F.lit("record next").alias("by"), *nobody),
        ends_of_parents(records, ended).select(
            *_QUEUE, "turn", "place", F.lit("record").alias("by"), "log_us", spot.alias("spot"), unknown
        ),
    ]
    if letters is not None:
        named.append(letters.select(*_QUEUE, "turn", "place", F.lit("letter").alias("by"), *nobody))
        named.append(letters.select(*_QUEUE, *_next(), F.lit("letter next").alias("by"), *nobody))
    rows = named[0]
    for more in named[1:]:
        rows = rows.union(more)
    return rows.groupBy(*_QUEUE, "turn", "place").agg(
        *[
            F.max(F.col("by") == by).alias(by.replace(" ", "_"))
            for by in ("record", "record next", "letter", "letter next")
        ],
        F.min("log_us").alias("log_us"),
        F.min("spot").alias("spot"),
        F.min("next").alias("least_next"),
        F.max("next").alias("most_next"),
    )


def _next() -> list[Column]:
    return [F.col("next_turn").alias("turn"), F.col("next_place").alias("place")]


def breaks(records: DataFrame, letters: DataFrame | None, ended: DataFrame | None = None) -> DataFrame:
    """The positions at which the chain may break, few of one that is whole: shard, incarnation, turn, place, log_us,
    spot, is_gap (no record leads to this one), is_open (neither does a letter) and is_torn.

    One pass over the links, since these are as many as records. Positions before the first record's are passed over.
    """
    position, first = F.struct("turn", "place"), F.col("first")
    is_behind = position > first
    is_gap = is_behind & F.col("record") & ~F.col("record_next")
    is_open = is_behind & (F.col("record") | F.col("letter")) & ~F.col("record_next") & ~F.col("letter_next")
    is_torn = F.col("record") & F.coalesce(F.col("least_next") < F.col("most_next"), F.lit(False))
    found = links(records, letters, ended).join(F.broadcast(_firsts(records, ended)), on=list(_QUEUE), how="inner")
    return found.select(
        *_QUEUE,
        "turn",
        "place",
        "log_us",
        "spot",
        is_gap.alias("is_gap"),
        is_open.alias("is_open"),
        is_torn.alias("is_torn"),
    ).filter("is_gap or is_open or is_torn")


def _firsts(records: DataFrame, ended: DataFrame | None) -> DataFrame:
    """The first position of each queue that records say is one of theirs: shard, incarnation, first."""
    ends = ends_of_parents(records, ended).select(*_QUEUE, "turn", "place")
    own = records.select(*_QUEUE, "turn", "place").union(ends)
    # Of each turn first: the least of two numbers at once would have all records sorted.
    of_turns = own.groupBy(*_QUEUE, "turn").agg(F.min("place").alias("place"))
    return of_turns.groupBy(*_QUEUE).agg(F.min(F.struct("turn", "place")).alias("first"))


def gaps(breaks: DataFrame) -> DataFrame:
    """Where the chain breaks: shard, incarnation, turn, place and log_us, partition, offset of a record.

    The break is before that record, and `explained` tells whether dead letters fill it; or, where it `is_torn`, behind
    it: its copies name different next ones. `breaks` is read more than once.
    """
    return _before(breaks).unionByName(_torn(breaks))


def _torn(breaks: DataFrame) -> DataFrame:
    return breaks.filter("is_torn").select(
        *_QUEUE,
        "turn",
        "place",
        "log_us",
        *_spot(F.col("spot")),
        F.lit(False).alias("explained"),
        F.lit(True).alias("is_torn"),
    )


def _before(breaks: DataFrame) -> DataFrame:
    bounds = breaks.filter("is_gap or is_open")
    before = Window.partitionBy(*_QUEUE).orderBy("turn", "place").rowsBetween(Window.unboundedPreceding, -1)
    numbered = bounds.select("*", F.coalesce(F.sum(F.col("is_gap").cast("long")).over(before), F.lit(0)).alias("gap"))
    each = numbered.groupBy(*_QUEUE, "gap").agg(
        F.max(F.when(F.col("is_gap"), F.struct("turn", "place", "log_us", "spot"))).alias("end"),
        (~F.max("is_open")).alias("explained"),
    )
    return each.filter(F.col("end").isNotNull()).select(
        *_QUEUE,
        "end.turn",
        "end.place",
        "end.log_us",
        *_spot(F.col("end.spot")),
        "explained",
        F.lit(False).alias("is_torn"),
    )


def _spot(spot: Column) -> list[Column]:
    return [
        F.shiftright(spot, _OFFSET_BITS).cast("int").alias("partition"),
        spot.bitwiseAND((1 << _OFFSET_BITS) - 1).alias("offset"),
    ]
