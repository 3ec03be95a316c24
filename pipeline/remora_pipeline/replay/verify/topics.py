"""Which shards are of one topic, where names alone leave it open.

A radosgw may have a topic that is called as a shard of a topic of remora's own (`logs.1`, beside `logs`), and both may
deliver to one topic of Kafka. Of a bucket each notification goes to one topic, and its records name it
(`configurationId`): so shards are of one topic where events of one notification of a bucket lie in both, or in both and
a third one.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from remora_pipeline.replay.verify import aggregates
from remora_pipeline.replay.verify.placement import topic_of
from remora_pipeline.replay.verify.record_frames import FrozenTopic
from remora_pipeline.replay.verify.seams import lineages


def counted_keys(topic: FrozenTopic, keys: DataFrame, **more: Column) -> tuple[DataFrame, Row]:
    """The keys with what lies in several shards of one topic alone in `shards`, and their counts.

    All records are asked only where names say that a key lies in several.
    """
    counts = aggregates.row(aggregates.count_keys(keys, **more))
    if not counts.keys_in_several_shards:
        return keys, counts
    apart = topic.keep(told_apart(keys, topic.records))
    return apart, aggregates.row(aggregates.count_keys(apart, **more))


def told_apart(keys: DataFrame, records: DataFrame) -> DataFrame:
    """Keys with those of their `shards` alone that are of one topic by the notifications of the records, too."""
    families = [item for shard, family in _families(records).items() for item in (F.lit(shard), F.lit(family))]
    if not families:
        return keys.withColumn("shards", F.array().cast("array<string>"))
    family = F.create_map(*families)

    def is_of_one(shard: Column) -> Column:
        alike = F.filter("shards", lambda other: F.try_element_at(family, other) == F.try_element_at(family, shard))
        return F.size(alike) > 1

    return keys.withColumn("shards", F.filter("shards", is_of_one))


def _families(records: DataFrame) -> dict[str, str]:
    """The shards that notifications join to others of the same name, each with a name that these share."""
    named = records.filter(F.col("shard").isNotNull() & F.col("problem").isNull())
    of_notification = named.groupBy(topic_of(F.col("shard")).alias("topic"), "bucket", "notification").agg(
        F.sort_array(F.collect_set("shard")).alias("shards")
    )
    several = of_notification.filter(F.size("shards") > 1)
    first = F.get("shards", F.lit(0))
    joined = several.select(first.alias("first"), F.explode("shards").alias("shard")).distinct().collect()
    links = [((row.shard, ""), [(row.first, "")]) for row in joined]
    return {shard: family for (shard, _), family in lineages(links).items()}
