"""What a topic says of itself, without a journal: copies, and the order of each key."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from remora_pipeline.replay.verify.placement import at_one_time, shards, with_own


def itself(records: DataFrame, lineages: DataFrame | None) -> DataFrame:
    """The records without problems, each with `nth`, `depth` and `is_early`.

    Two records are copies of one entry when they have one position in one queue, or, where they tell none, one event
    id; `nth` counts them from 1 by partition and offset. Among the first of each, `depth` is how many records of its
    key one comes behind that should come after it, by their positions in their queue, else by their sequencers; null
    where it is in order. Records of a queue that took over from others come after theirs: `lineages` (seams) say so.
    `is_early` tells where sequencers disagree with the order of positions: that is the gateways' clocks, or their order
    of commits, and nothing that a queue could mend.
    """
    position = F.struct("shard", "incarnation", "turn", "place")
    # A record that tells neither is a copy of none.
    name = F.when(F.col("turn").isNull(), F.coalesce("event_id", F.concat_ws("/", "partition", "offset")))
    counted = records.filter(F.col("problem").isNull()).select(
        "partition",
        "offset",
        "log_us",
        "bucket",
        "key",
        "event_us",
        "order",
        "shard",
        "incarnation",
        "turn",
        "place",
        F.row_number().over(Window.partitionBy(position, name).orderBy("partition", "offset")).alias("nth"),
    )
    if lineages is None:
        lineage = [F.lit(None).cast(kind).alias(name) for name, kind in (("lineage", "string"), ("generation", "int"))]
        placed = counted.select("*", *lineage)
    else:
        placed = counted.join(F.broadcast(lineages), on=["shard", "incarnation"], how="left")
    is_alone = F.col("lineage").isNull()
    queue = [F.col("bucket"), F.col("key"), F.col("lineage")]
    queue += [F.when(is_alone, F.col(name)) for name in ("shard", "incarnation")]
    first = F.col("nth") == 1
    is_placed = first & F.coalesce(F.col("turn").cast("string"), F.col("order")).isNotNull()
    so_far = (
        Window.partitionBy(*queue)
        .orderBy("generation", "turn", "place", "order")
        .rowsBetween(Window.unboundedPreceding, 0)
    )
    ranked = placed.repartition("bucket", "key").select(
        "*", F.when(is_placed, F.sum(is_placed.cast("long")).over(so_far)).alias("rank")
    )
    stream = Window.partitionBy(*queue, "partition").orderBy("offset")
    before = stream.rowsBetween(Window.unboundedPreceding, -1)
    newest = F.max(F.when(first, F.col("order"))).over(before)
    seen = ranked.select("*", F.max("rank").over(before).alias("seen"), newest.alias("newest"))
    return seen.select(
        *counted.columns,
        F.when(F.col("rank") < F.col("seen"), F.col("seen") - F.col("rank")).alias("depth"),
        (first & F.col("turn").isNotNull() & (F.col("order") < F.col("newest"))).alias("is_early"),
    )


def of_keys(itself: DataFrame, partitions: int) -> DataFrame:
    """A row for each key: bucket, key, inversions, max_depth, least_partition, most_partition, own_partition, shards
    (placement.at_one_time), events; the own one of keys of which a record tells its position."""
    found = itself.groupBy("bucket", "key").agg(
        F.count("depth").alias("inversions"),
        F.max("depth").alias("max_depth"),
        F.min("partition").alias("least_partition"),
        F.max("partition").alias("most_partition"),
        shards("shard").alias("shards"),
        F.count(F.when(F.col("nth") == 1, True)).alias("events"),
        F.count("turn").alias("placed"),
        F.collect_set(F.struct("partition", "shard", "incarnation")).alias("places"),
    )
    return with_own(at_one_time(found, itself), F.col("placed") > 0, partitions).drop("placed")
