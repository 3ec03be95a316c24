"""The partition that a key belongs to: Kafka's murmur2 of it, as Spark's own expressions compute it.

All clients that follow the Java one place a key so. Numbers have 64 bits; only the lower 32 count.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_M, _SEED, _MASK = 0x5BD1E995, 0x9747B28C, 0xFFFFFFFF


def with_own(keys: DataFrame, is_placed: Column, partitions: int) -> DataFrame:
    """Keys that lie in partitions from `least_partition` to `most_partition`, with `own_partition` of all.

    Asked of keys in one partition only, and null where it cannot be known: of records of other origin (not
    `is_placed`) it is not known how they are placed.
    """
    name = F.concat_ws("/", "bucket", "key")
    is_known = is_placed & (F.col("least_partition") == F.col("most_partition"))
    return keys.select("*", F.when(is_known, own_partition(name.cast("binary"), partitions)).alias("own_partition"))


def is_misplaced() -> Column:
    """A key that lies in one partition, and in another than its own."""
    return F.col("own_partition").isNotNull() & (F.col("own_partition") != F.col("least_partition"))


def shards(name: str) -> Column:
    """Aggregates the shards of one key that are of a topic which has several of them, sorted: none where all is well.

    A topic's shards are `t`, `t.1`, `t.2` and so on, and bucket and object choose one of them. Names alone say so here:
    see topics.told_apart.
    """
    every = F.sort_array(F.collect_set(name))
    topic = F.transform(every, topic_of)
    of_topic = F.zip_with(topic, every, lambda t, each: F.struct(t.alias("topic"), each.alias("shard")))
    several = F.filter(of_topic, lambda one: F.size(F.filter(topic, lambda t: t == one["topic"])) > 1)
    return F.transform(several, lambda one: one["shard"])


def at_one_time(keys: DataFrame, records: DataFrame) -> DataFrame:
    """Keys with those of their `shards` alone that were delivered beside another one of them; `places` is dropped.

    A topic that is removed and made again with another number of shards puts its keys elsewhere, and nothing of it is
    delivered beside what was before. So a queue, which its incarnation tells from one of the same name, takes up the
    offsets from its first to its last in a partition, and two shards are of one topic where these overlap. `places`
    are the partitions, shards and incarnations of a key.
    """
    spans = records.filter(F.col("shard").isNotNull()).groupBy("partition", "shard", "incarnation")
    taken = spans.agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
    every = taken.agg(F.collect_list(F.struct("partition", "shard", "incarnation", "first", "last")).alias("spans"))
    own = F.filter("spans", lambda span: F.array_contains("places", _place(span)))
    beside = F.filter(own, lambda one: F.exists(own, lambda other: _overlap(one, other)))
    names = F.array_sort(F.array_distinct(F.transform(beside, lambda span: span["shard"])))
    found = keys.crossJoin(F.broadcast(every))
    return found.withColumn("shards", F.when(is_in_several_shards(), names).otherwise(F.col("shards"))).drop(
        "places", "spans"
    )


def _place(span: Column) -> Column:
    return F.struct(
        span["partition"].alias("partition"), span["shard"].alias("shard"), span["incarnation"].alias("incarnation")
    )


def _overlap(one: Column, other: Column) -> Column:
    """Whether these are spans of different shards of one topic, beside each other in a partition."""
    is_beside = (one["first"] <= other["last"]) & (other["first"] <= one["last"])
    is_of_one = (topic_of(one["shard"]) == topic_of(other["shard"])) & (one["shard"] != other["shard"])
    return (one["partition"] == other["partition"]) & is_of_one & is_beside


def topic_of(shard: Column) -> Column:
    """The topic of a shard with the generation of its layout, as its name says (model.topic).

    What cannot be a further shard of a topic of remora's own, as `logs.2026-11`, `logs.1.7` and `tenant:logs.1` cannot,
    is the only one of its topic.
    """
    return F.regexp_replace(shard, r"^([A-Za-z0-9_-]+(?:@[0-9]+)?)\.[0-9]{1,4}\z", "$1")


def is_in_several_shards() -> Column:
    """A key that lies in several shards of one topic."""
    return F.size("shards") > 1


def own_partition(key: Column, partitions: int) -> Column:
    """The partition of a key, which is bytes, among `partitions`."""
    return F.pmod(murmur2(key).bitwiseAND(0x7FFFFFFF), F.lit(partitions)).cast("int")


def murmur2(data: Column) -> Column:
    """The hash of bytes, an unsigned number of 32 bits."""
    length = F.octet_length(data).cast("bigint")
    padded = F.rpad(F.hex(data), F.ceil(length / 4).cast("int") * 8, "0")
    # Four bytes are one number, little-endian: hex digits are read from the other end.
    words = F.regexp_extract_all(F.regexp_replace(padded, "(..)(..)(..)(..)", "$4$3$2$1"), F.lit("(.{8})"), F.lit(1))

    def of(words: Column) -> Column:
        start = length.bitwiseXOR(F.lit(_SEED).cast("bigint"))
        whole = F.aggregate(
            F.slice(words, F.lit(1), F.floor(length / 4).cast("int")),
            start,
            lambda found, word: _times(found).bitwiseXOR(_mixed(_number(word))),
        )
        rest = _number(F.element_at(words, F.lit(-1)))
        return F.when(length % 4 > 0, _times(whole.bitwiseXOR(rest))).otherwise(whole)

    return _let(_let(_let(words, of), lambda h: _times(_shifted(h, 13))), lambda h: _shifted(h, 15))


def _mixed(word: Column) -> Column:
    return _let(_times(word), lambda k: _times(_shifted(k, 24)))


def _number(digits: Column) -> Column:
    return F.conv(digits, 16, 10).cast("bigint")


def _times(number: Column) -> Column:
    # Below 2^63: nothing overflows.
    return (number * F.lit(_M).cast("bigint")).bitwiseAND(F.lit(_MASK).cast("bigint"))


def _shifted(number: Column, bits: int) -> Column:
    return number.bitwiseXOR(F.shiftrightunsigned(number, bits))


def _let(value: Column, then: Callable[[Column], Column]) -> Column:
    """What follows from a value that is named more than once, and computed once."""
    return F.get(F.transform(F.array(value), then), F.lit(0))
