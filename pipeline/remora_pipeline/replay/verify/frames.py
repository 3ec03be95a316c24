"""What a journal says of each event, beside what the topic has of it."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from remora_pipeline.replay.shape import ACKED, DELETE, DROPPED, EVENT_NAMES, REJECTED, UNKNOWN
from remora_pipeline.replay.verify.placement import shards, with_own

THERE, ALTERED, FOREIGN, MISSING = "there", "altered", "foreign", "missing"

_RANKS = {DROPPED: 0, REJECTED: 1, UNKNOWN: 2, ACKED: 3}
"""Of several attempts' outcomes the greatest counts: what was acked once is, and what may be stored may be."""


def outcomes(journal: DataFrame) -> DataFrame:
    """What came of each event that had its turn: seq, outcome, tries, t0_us, ts0_us, speed, sent_us, done_us, held_us.

    `journal` is shape.JOURNAL with a `file`. `tries` counts requests, 0 for an event that was never sent.
    """
    lines = journal.filter(F.col("kind").isNotNull())
    starts = (
        lines.filter(F.col("kind") == "start")
        .groupBy("file")
        .agg(*[F.max(name).alias(name) for name in ("t0_us", "ts0_us", "speed")])
    )
    told = lines.filter(F.col("kind") != "start").select(
        "file", "outcome", "sent_us", "done_us", "tries", "held_us", F.posexplode("seqs").alias("place", "seq")
    )
    of_attempts = (
        told.repartition("seq")
        .groupBy("seq", "file")
        .agg(
            F.coalesce(F.max(_rank(F.col("outcome"))), F.lit(_RANKS[UNKNOWN])).alias("rank"),
            F.min("sent_us").alias("sent_us"),
            F.max("done_us").alias("done_us"),
            F.coalesce(F.max(F.when(F.col("sent_us").isNotNull(), F.col("tries"))), F.lit(0)).alias("tries"),
            F.coalesce(F.max(F.get("held_us", F.col("place"))), F.lit(0)).alias("held_us"),
        )
    )
    best = of_attempts.groupBy("seq").agg(
        F.max(F.struct("rank", "file", "sent_us", "done_us", "held_us")).alias("best"), F.sum("tries").alias("tries")
    )
    names = F.array(*[F.lit(name) for name in sorted(_RANKS, key=_RANKS.__getitem__)])
    flat = best.select("seq", "tries", "best.*")
    return flat.join(F.broadcast(starts), on="file", how="left").select(
        "seq",
        F.get(names, F.col("rank")).alias("outcome"),
        "tries",
        "t0_us",
        "ts0_us",
        "speed",
        "sent_us",
        "done_us",
        "held_us",
    )


def _rank(outcome: Column) -> Column:
    return reduce(lambda found, name: found.when(outcome == name, _RANKS[name]), _RANKS, F.when(F.lit(False), -1))


def expected(events: DataFrame, outcomes: DataFrame) -> DataFrame:
    """Every event of the trace with what came of it; `outcome` is null where it never had its turn.

    With a schedule an event is due at its time; with speed 0 when it is sent. `said_us` is the time that a generator
    which makes the records itself writes into them: when the event is due, at speed 0 too.
    """
    due = F.col("t0_us") + ((F.col("ts_us") - F.col("ts0_us")) / F.col("speed")).try_cast("bigint")
    joined = events.join(outcomes, on="seq", how="left")
    return joined.select(
        "seq",
        "bucket",
        "key",
        "kseq",
        "op",
        "size",
        "outcome",
        F.coalesce("tries", F.lit(0)).alias("tries"),
        F.when(F.col("speed") > 0, due).otherwise(F.col("sent_us")).alias("due_us"),
        F.when(F.col("speed") > 0, due).otherwise(F.col("t0_us")).alias("said_us"),
        "sent_us",
        F.coalesce("held_us", F.lit(0)).alias("held_us"),
        F.when(F.col("outcome") == ACKED, F.col("done_us")).alias("acked_us"),
    )


def compared(expected: DataFrame, named: DataFrame) -> DataFrame:
    """A row for each record that names an event of the run, and for each event without a record.

    `kind` is THERE for a record that agrees with its event, ALTERED for one that does not, FOREIGN where the trace has
    no such event, and MISSING for an event without a record. The rows of an event are counted by `nth` from 1, those
    that are THERE first, by partition and offset: an event has arrived where its first row is THERE. `resent` is true
    of a record whose entry is another one than that of the first, where the event was sent more than once.

    `depth` is how many events of its key a record comes behind that should come after it; null where it is in order.
    A record whose event is unknown is not late: the server may have taken it later than the next one.

    `is_before` is true of the first record of an event that comes behind one of its queue with a later position, in one
    partition: a lane sends the entries of a queue in their order.

    `expected` has a `digest` too (sent.with_digests). `is_outside` and `is_undecided` are false here: see `found_in`.
    """
    kinds = _paired(expected, named).select("*", _kind().alias("kind"))
    place = (F.col("kind") != THERE, F.col("k_partition"), F.col("k_offset"))
    entry = F.struct("k_shard", "k_incarnation", "k_turn", "k_place")
    of_event = Window.partitionBy("seq").orderBy(*place)
    counted = kinds.select(
        "seq",
        F.coalesce("bucket", "k_bucket").alias("bucket"),
        F.coalesce("key", "k_key").alias("key"),
        F.coalesce("kseq", "k_kseq").alias("kseq"),
        "op",
        "outcome",
        "tries",
        "due_us",
        "sent_us",
        "held_us",
        "acked_us",
        F.col("k_partition").alias("partition"),
        F.col("k_offset").alias("offset"),
        F.col("k_log_us").alias("log_us"),
        F.col("k_turn").isNotNull().alias("chained"),
        "k_shard",
        "k_incarnation",
        F.struct("k_turn", "k_place").alias("position"),
        "k_has_id",
        F.col("k_number").isNotNull().alias("k_has_number"),
        "kind",
        _difference().alias("difference"),
        F.row_number().over(of_event).alias("nth"),
        F.lit(False).alias("is_outside"),
        F.lit(False).alias("is_undecided"),
        ((F.col("tries") > 1) & (F.first(entry).over(of_event) != entry)).alias("resent"),
    )
    first = (F.col("kind") == THERE) & (F.col("nth") == 1)
    # Order means something within a partition only; a key that lies in several is reported by itself.
    stream = Window.partitionBy("bucket", "key", "partition").orderBy("offset")
    seen = F.max(F.when(first, F.col("kseq"))).over(stream.rowsBetween(Window.unboundedPreceding, -1))
    late = first & (F.col("kseq") < F.col("seen")) & (F.col("outcome") != UNKNOWN)
    # What tells no position is of no queue, and would be sorted by one task.
    nobody = F.when(~F.col("chained"), F.col("seq"))
    queue = Window.partitionBy("k_shard", "k_incarnation", "partition", nobody).orderBy("offset")
    reached = F.max(F.when(first, F.col("position"))).over(queue.rowsBetween(Window.unboundedPreceding, -1))
    is_before = first & F.col("chained") & (F.col("position") < F.col("reached"))
    placed = counted.select("*", reached.alias("reached"))
    ordered = placed.repartition("bucket", "key").select("*", seen.alias("seen"))
    return ordered.select(
        *[name for name in counted.columns if name != "position"],
        F.when(late, F.col("seen") - F.col("kseq")).alias("depth"),
        F.coalesce(is_before, F.lit(False)).alias("is_before"),
    )


def _paired(expected: DataFrame, named: DataFrame) -> DataFrame:
    """Each record (`k_` and its columns) with the event that it names, and each event that no record names.

    It is their full join by `seq`. Of such a join Spark does not know where its rows lie, and would send all of them
    round once more for what follows.
    """
    of_event = [F.col(name) for name in expected.columns if name != "seq"]
    of_record = [F.col(name).alias(f"k_{name}") for name in named.columns if name != "seq"]
    events = expected.select("seq", F.struct(*of_event).alias("event"))
    records = named.repartition("seq").select("seq", F.struct(*of_record).alias("record"))
    no_event = F.lit(None).cast(events.schema["event"].dataType)
    no_record = F.lit(None).cast(records.schema["record"].dataType)
    rows = events.select("seq", "event", no_record.alias("record")).union(
        records.select("seq", no_event.alias("event"), "record")
    )
    of_seq = Window.partitionBy("seq")
    paired = rows.select(
        "seq",
        F.first("event", ignorenulls=True).over(of_seq).alias("event"),
        "record",
        F.count("record").over(of_seq).alias("records"),
    )
    is_whole = F.col("record").isNotNull() | (F.col("records") == 0)
    return paired.filter(is_whole).select("seq", "event.*", "record.*")


def _kind() -> Column:
    return (
        F.when(F.col("k_offset").isNull(), MISSING)
        .when(F.col("bucket").isNull(), FOREIGN)
        .when(_difference().isNotNull(), ALTERED)
        .otherwise(THERE)
    )


def _difference() -> Column:
    """In what a record disagrees with its event."""
    op = F.create_map(*[F.lit(text) for pair in EVENT_NAMES.items() for text in pair])[F.col("op")]
    is_delete = F.col("op") == DELETE
    same_name = F.when(is_delete, F.col("k_event_name").startswith("ObjectRemoved:")).otherwise(
        F.col("k_event_name") == op
    )
    same_size = is_delete | F.col("size").isNull() | F.col("size").eqNullSafe(F.col("k_size"))
    return (
        F.when(F.col("bucket") != F.col("k_bucket"), "bucket")
        .when(F.col("key") != F.col("k_key"), "key")
        .when(F.col("kseq") != F.col("k_kseq"), "number within its key")
        .when(~same_name, "event name")
        .when(~same_size, "size")
        .when(~F.col("k_is_id"), "event id")
        .when(~F.col("k_is_keyed"), "Kafka key")
        .when(F.col("k_event_us") != F.when(F.col("digest").isNotNull(), F.col("said_us")), "event time")
        .when(F.col("k_digest") != F.col("digest"), "text of the value")
    )


def found_in(compared: DataFrame, name: str, there: DataFrame) -> DataFrame:
    """The rows of `compared`; the column `name` is true of those whose `seq` is `there`."""
    found = there.select("seq", F.lit(True).alias("found"))
    joined = compared.join(found, on="seq", how="left")
    is_found = F.coalesce("found", F.lit(False)).alias(name)
    return joined.select(*[is_found if each == name else each for each in compared.columns])


def is_missing() -> Column:
    """Whether a row of `compared` is an acknowledged event without a record that agrees."""
    return (F.col("outcome") == ACKED) & (F.col("nth") == 1) & (F.col("kind") != THERE)


def is_lost() -> Column:
    """A row of `compared` that is missing, and is neither outside the window nor behind an open transaction."""
    return is_missing() & ~F.col("is_outside") & ~F.col("is_undecided")


def of_keys(compared: DataFrame, partitions: int) -> DataFrame:
    """A row for each key of the trace: bucket, key, inversions, max_depth, least_partition, most_partition,
    own_partition (with_own), shards (placement.shards), last (event in the log) and last_acked, by their numbers within
    the key; null where there is none."""
    first = (F.col("kind") == THERE) & (F.col("nth") == 1)
    place = F.struct("partition", "offset")
    there = F.when(F.col("kind") == THERE, F.col("partition"))
    rows = compared.filter(F.col("op").isNotNull())
    is_expected = (F.col("outcome") == ACKED) & (F.col("nth") == 1) & ~F.col("is_outside") & ~F.col("is_undecided")
    found = rows.groupBy("bucket", "key").agg(
        F.count("depth").alias("inversions"),
        F.max("depth").alias("max_depth"),
        F.min(there).alias("least_partition"),
        F.max(there).alias("most_partition"),
        shards("k_shard").alias("shards"),
        F.max(F.when(first, F.struct(place, F.col("kseq")))).getField("kseq").alias("last"),
        F.max(F.when(is_expected, F.col("kseq"))).alias("last_acked"),
        F.count(F.when(F.col("nth") == 1, True)).alias("events"),
    )
    return with_own(found, F.lit(True), partitions)
