"""A few of what each count is about."""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from remora_pipeline.replay.results import Example
from remora_pipeline.replay.verify.frames import ALTERED, FOREIGN, THERE, is_lost, is_missing
from remora_pipeline.replay.verify.placement import is_in_several_shards, is_misplaced

MOST = 20

_FIELDS = ("bucket", "key", "seq", "kseq", "partition", "offset", "shard", "position", "detail")


def pick(rows: DataFrame, order: tuple[str, ...], detail: Column | None = None) -> tuple[Example, ...]:
    """The first rows in this order, with those of an example's fields that they have."""
    chosen = rows if detail is None else rows.withColumn("detail", detail)
    names = [name for name in _FIELDS if name in chosen.columns]
    found = chosen.orderBy(*order).limit(MOST).select(*names).collect()
    return tuple(Example(**{name: row[name] for name in names}) for row in found)


_PLACE = ("partition", "offset")


def lost(compared: DataFrame) -> tuple[Example, ...]:
    """Events that were acknowledged and are not there, in the order of the trace."""
    return pick(compared.filter(is_lost()).drop("partition", "offset"), ("seq",))


def outside(compared: DataFrame) -> tuple[Example, ...]:
    """Events that were acknowledged and lie outside the window, in the order of the trace."""
    rows = compared.filter(is_missing() & F.col("is_outside")).drop("partition", "offset")
    return pick(rows, ("seq",), F.lit("by Kafka's time stamp it is of another time than is judged"))


def undecided(compared: DataFrame) -> tuple[Example, ...]:
    """Events that were acknowledged and lie behind an open transaction, in the order of the trace."""
    rows = compared.filter(is_missing() & F.col("is_undecided")).drop("partition", "offset")
    return pick(rows, ("seq",), F.lit("behind a transaction that is open"))


def without(compared: DataFrame, has: str, header: str) -> tuple[Example, ...]:
    """Records of the run's events that do not have a header."""
    rows = compared.filter(F.col("offset").isNotNull() & ~F.col(has))
    return pick(rows, _PLACE, F.lit(f"no {header}"))


def before(compared: DataFrame) -> tuple[Example, ...]:
    """Records that came behind one of their queue with a later position."""
    return pick(compared.filter("is_before"), _PLACE, F.lit("its position lies before that of a record in front of it"))


def strayed(compared: DataFrame, topic: str) -> tuple[Example, ...]:
    """Records whose shard is none of the run's topic."""
    rows = compared.filter(is_strayed(topic)).withColumn("shard", F.col("k_shard"))
    return pick(rows, _PLACE, F.lit(f"its shard is none of topic {topic}"))


def is_strayed(topic: str) -> Column:
    """A row of frames.compared that is a record whose shard is none of this topic of remora's own (model.topic)."""
    return F.col("chained") & ~F.col("k_shard").rlike(rf"^{re.escape(topic)}(@[0-9]+)?(\.[0-9]+)?\z")


def ghosts(compared: DataFrame) -> tuple[Example, ...]:
    """Events that are there and should not be."""
    rows = compared.filter(is_ghost())
    return pick(rows, _PLACE, F.coalesce("outcome", F.lit("never sent")))


def is_ghost() -> Column:
    """A row of frames.compared that is the first record of an event that was refused, or never sent."""
    is_due = F.col("outcome").isin("acked", "unknown")
    return (F.col("kind") == THERE) & (F.col("nth") == 1) & ~F.coalesce(is_due, F.lit(False))


def altered(compared: DataFrame) -> tuple[Example, ...]:
    """Records that disagree with their event, and in what."""
    rows = compared.filter(F.col("kind") == ALTERED)
    return pick(rows, _PLACE, F.concat(F.lit("another "), "difference"))


def copies(rows: DataFrame) -> tuple[Example, ...]:
    """Records that are not the first of their event or entry."""
    return pick(rows.filter("nth > 1"), _PLACE, F.concat(F.lit("copy "), F.col("nth") - 1))


def foreign(compared: DataFrame, others: DataFrame) -> tuple[Example, ...]:
    """Records of no event of this run; `others` do not name the run at all."""
    unknown = pick(compared.filter(F.col("kind") == FOREIGN), _PLACE, F.lit("names this run, and no event of it"))
    owner = F.when(F.col("seq").isNotNull(), F.concat(F.lit("of the run "), "run_id"))
    detail = F.coalesce(owner, F.lit("names no run"))
    return (unknown + pick(others.filter("problem is null"), _PLACE, detail))[:MOST]


def malformed(records: DataFrame) -> tuple[Example, ...]:
    """Records that cannot be read, and why."""
    return pick(records.filter("problem is not null"), _PLACE, F.col("problem"))


def inversions(rows: DataFrame) -> tuple[Example, ...]:
    """Records behind later ones of their key, the deepest first."""
    found = rows.filter("depth is not null").withColumn("above", -F.col("depth"))
    return pick(found, ("above", *_PLACE), F.concat(F.lit("depth "), "depth"))


def early(itself: DataFrame) -> tuple[Example, ...]:
    """Records whose sequencers disagree with the order of positions."""
    return pick(itself.filter("is_early"), _PLACE)


def scattered(keys: DataFrame) -> tuple[Example, ...]:
    """Keys that lie in several partitions."""
    rows = keys.filter("least_partition < most_partition")
    detail = F.concat(F.lit("partitions "), "least_partition", F.lit(" to "), "most_partition")
    return pick(rows, ("bucket", "key"), detail)


def divided(keys: DataFrame) -> tuple[Example, ...]:
    """Keys that lie in several shards of one topic."""
    detail = F.concat(F.lit("shards "), F.array_join("shards", ", "))
    return pick(keys.filter(is_in_several_shards()), ("bucket", "key"), detail)


def misplaced(keys: DataFrame) -> tuple[Example, ...]:
    """Keys that lie in another partition than their own."""
    rows = keys.filter(is_misplaced()).withColumn("partition", F.col("least_partition"))
    return pick(rows, ("bucket", "key"), F.concat(F.lit("its own partition is "), "own_partition"))


def unfinished(keys: DataFrame) -> tuple[Example, ...]:
    """Keys that do not end with their last acknowledged event."""
    last = F.concat(F.lit("ends with number "), F.col("last").cast("string"), F.lit(" of its key"))
    rows = keys.filter(is_unfinished()).withColumn("kseq", F.col("last_acked"))
    return pick(rows, ("bucket", "key"), F.coalesce(last, F.lit("nothing of it is there")))


def is_unfinished() -> Column:
    """A row of frames.of_keys whose last event in the log comes before the last one that was acknowledged.

    A key in several partitions has no last event.
    """
    is_behind = F.col("last_acked") > F.coalesce("last", F.lit(-1))
    return is_behind & (F.col("least_partition").isNull() | (F.col("least_partition") == F.col("most_partition")))


def unnumbered(gaps: DataFrame) -> tuple[Example, ...]:
    """Gaps in the numbers, those without an explanation first: the record behind each."""
    filled = "dead letters have the numbers before it"
    why = F.when(F.col("explained"), filled).otherwise("numbers before it are missing")
    detail = F.concat(F.lit("number "), F.col("place").cast("string"), F.lit(" of "), "topic_id", F.lit(": "), why)
    return pick(gaps.withColumnRenamed("shard", "topic_id"), ("explained", "place"), detail)


def misnumbered(entries: DataFrame, what: str) -> tuple[Example, ...]:
    """Entries, or numbers, of numbers.entries or numbers.repeated, and what is wrong with them."""
    detail = F.concat(F.lit("number "), F.col("number").cast("string"), F.lit(f" {what}"))
    return pick(entries, ("number", *_PLACE), detail)


def broken(gaps: DataFrame) -> tuple[Example, ...]:
    """Gaps in the chain, those without an explanation first: the record behind each."""
    position = F.concat("incarnation", F.lit(":"), "turn", F.lit("/"), "place")
    torn = "copies of this entry name different next ones"
    detail = (
        F.when(F.col("is_torn"), torn)
        .when(F.col("explained"), "dead letters fill the gap before it")
        .otherwise("nothing leads to it")
    )
    rows = gaps.withColumn("position", position)
    return pick(rows, ("explained", "shard", "incarnation", "turn", "place"), detail)
