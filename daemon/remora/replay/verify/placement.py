"""The partition that a key belongs to: Kafka's murmur2 of it, as Spark's own expressions compute it.

All clients that follow the Java one place a key so. Numbers are kept in 64 bits, of which the lower 32 are meant.
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

    A topic's shards are `t`, `t.1`, `t.2` and so on, and bucket and object choose one of them.
    """
    every = F.sort_array(F.collect_set(name))
    topic = F.transform(every, lambda each: F.regexp_replace(each, r"\.[0-9]+\z", ""))
    of_topic = F.zip_with(topic, every, lambda t, each: F.struct(t.alias("topic"), each.alias("shard")))
    several = F.filter(of_topic, lambda one: F.size(F.filter(topic, lambda t: t == one["topic"])) > 1)
    return F.transform(several, lambda one: one["shard"])


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
