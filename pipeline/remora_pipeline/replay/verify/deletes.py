"""Which event a record of a removal is of, where the gateway tells nothing: a DELETE has no metadata of its own.

What stands in the record of a removal is the metadata of what was removed: the mark of an earlier event, if any.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from remora_pipeline.replay.shape import ACKED, DELETE, UNKNOWN

_KEY = ("bucket", "key")
_BEFORE_ALL = -1


def with_deletes(found: DataFrame, expected: DataFrame, run_id: str, is_judged: Column) -> DataFrame:
    """The records, those of removals with the number of their event.

    A removal is of the n-th DELETE of its key behind the last event whose record was found before it; what was refused
    or never sent is not counted. Copies of one entry are of one event.
    """
    is_removal = F.coalesce(F.col("event_name").startswith("ObjectRemoved:"), F.lit(False))
    own = {name: F.when(~is_removal, F.col(name)).alias(name) for name in ("run_id", "seq", "kseq")}
    found = found.select(*[own.get(name, F.col(name)) for name in found.columns])
    is_named = F.coalesce((F.col("run_id") == run_id) & F.col("seq").isNotNull(), F.lit(False))
    is_bare = F.col("seq").isNull() & F.col("event_name").startswith("ObjectRemoved:") & is_judged
    rows = found.filter(F.col("problem").isNull() & (is_named | is_bare)).select(
        *_KEY, "partition", "offset", _entry().alias("entry"), F.when(is_named, F.col("kseq")).alias("named")
    )
    matched = _removals(rows).join(_deletes(expected, rows), on=[*_KEY, "anchor", "nth"], how="inner")
    events = matched.select("entry", F.col("event.seq").alias("d_seq"), F.col("event.kseq").alias("d_kseq"))
    joined = found.withColumn("entry", _entry()).join(events, on="entry", how="left")
    is_matched = F.col("d_seq").isNotNull()
    filled = {
        "run_id": F.when(is_matched, F.lit(run_id)).otherwise(F.col("run_id")),
        "seq": F.coalesce("d_seq", "seq"),
        "kseq": F.coalesce("d_kseq", "kseq"),
    }
    return joined.select(*[filled[name].alias(name) if name in filled else F.col(name) for name in found.columns])


def _entry() -> Column:
    """What copies of one entry have in common; a record without a position stands for itself."""
    position = F.concat_ws("\n", "shard", "incarnation", "turn", "place")
    return F.when(F.col("turn").isNotNull(), position).otherwise(F.concat_ws("/", "partition", "offset"))


def _removals(rows: DataFrame) -> DataFrame:
    """First records of removals: bucket, key, entry, the event found before (anchor), and how many there are since."""
    of_entry = Window.partitionBy("entry").orderBy("partition", "offset")
    firsts = rows.select("*", F.row_number().over(of_entry).alias("copy")).filter("copy = 1")
    so_far = Window.partitionBy(*_KEY).orderBy("partition", "offset").rowsBetween(Window.unboundedPreceding, 0)
    anchored = firsts.select(
        "*", F.coalesce(F.last("named", ignorenulls=True).over(so_far), F.lit(_BEFORE_ALL)).alias("anchor")
    )
    since = Window.partitionBy(*_KEY, "anchor").orderBy("partition", "offset")
    bare = anchored.filter(F.col("named").isNull())
    return bare.select(*_KEY, "entry", "anchor", F.row_number().over(since).alias("nth"))


def _deletes(expected: DataFrame, rows: DataFrame) -> DataFrame:
    """The removals that may be there: bucket, key, anchor, nth, and the event."""
    there = rows.filter(F.col("named").isNotNull()).select(
        *_KEY, F.col("named").alias("kseq"), F.lit(True).alias("there")
    )
    joined = expected.join(there.distinct(), on=[*_KEY, "kseq"], how="left")
    before = Window.partitionBy(*_KEY).orderBy("kseq").rowsBetween(Window.unboundedPreceding, -1)
    anchor = F.coalesce(F.max(F.when(F.col("there"), F.col("kseq"))).over(before), F.lit(_BEFORE_ALL))
    deletes = joined.select(*_KEY, "op", "outcome", "seq", "kseq", "there", anchor.alias("anchor")).filter(
        (F.col("op") == DELETE) & F.col("outcome").isin(ACKED, UNKNOWN) & F.col("there").isNull()
    )
    # Where one of two may be missing it is the one without an answer.
    since = Window.partitionBy(*_KEY, "anchor").orderBy(F.col("outcome") != ACKED, "kseq")
    return deletes.select(
        *_KEY, "anchor", F.row_number().over(since).alias("nth"), F.struct("seq", "kseq").alias("event")
    )
