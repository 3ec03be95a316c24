"""Exact percentiles and distributions of very many samples: classes first, then the samples of single classes.

A sample has a `metric`, the `interval` it belongs to and a `value` in microseconds. Values of one class differ by less
than 0.3 %; there are at most some ten thousand classes, however many samples there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

CLASSES = 1000
"""In each power of ten."""

POINTS = 400


@dataclass(frozen=True)
class Class:
    """Samples whose values are close together: how many, and the largest."""

    number: int
    samples: int
    largest: int


def classes(samples: DataFrame) -> DataFrame:
    """How many samples there are of each metric, interval and class, and the largest of them."""
    return samples.groupBy("metric", "interval", _class_number()).agg(
        F.count(F.lit(1)).alias("samples"), F.max("value").alias("largest")
    )


def _class_number() -> Column:
    """The class of a sample's value."""
    number = F.when(F.col("value") > 0, F.floor(F.log10(F.col("value").cast("double")) * CLASSES)).otherwise(F.lit(-1))
    return number.cast("int").alias("class")


def by_metric(classes: DataFrame) -> dict[str, tuple[Class, ...]]:
    """The distribution of each metric, in order. As large as there are classes, and no larger."""
    rows = (
        classes.groupBy("metric", "class")
        .agg(F.sum("samples").alias("samples"), F.max("largest").alias("largest"))
        .orderBy("metric", "class")
        .collect()
    )
    found: dict[str, list[Class]] = {}
    for metric, number, samples, largest in rows:
        found.setdefault(metric, []).append(Class(number, samples, largest))
    return {metric: tuple(each) for metric, each in found.items()}


def by_interval(classes: DataFrame) -> DataFrame:
    """p50 and p99 (of their class the largest) and the largest sample of each metric and interval."""
    within = Window.partitionBy("metric", "interval")
    upto = within.orderBy("class").rowsBetween(Window.unboundedPreceding, 0)
    summed = classes.select(
        "metric",
        "interval",
        "largest",
        F.sum("samples").over(upto).alias("upto"),
        F.sum("samples").over(within).alias("of"),
    )
    return summed.groupBy("metric", "interval").agg(
        *[
            F.min(F.when(F.col("upto") >= F.ceil(F.col("of") * share), F.col("largest"))).alias(name)
            for name, share in (("p50", 0.5), ("p99", 0.99))
        ],
        F.max("largest").alias("largest"),
    )


def rank(samples: int, share: float) -> int:
    """Which sample, from 1 in order, is the percentile: the least one that so large a share is not above."""
    return max(1, math.ceil(round(samples * share, 6)))


def percentiles(
    samples: DataFrame, distributions: Mapping[str, Sequence[Class]], shares: Sequence[float]
) -> dict[str, tuple[int, ...]]:
    """The exact percentiles of each metric, by nearest rank."""
    wanted = {
        (metric, share): _place(found, rank(sum(each.samples for each in found), share))
        for metric, found in distributions.items()
        for share in shares
    }
    if not wanted:
        return {}
    exact = _exact(samples, wanted)
    return {metric: tuple(exact[metric, share] for share in shares) for metric in distributions}


def _place(found: Sequence[Class], nth: int) -> tuple[Class, int]:
    """The class that holds the n-th sample, and which of its samples that is."""
    for each in found:
        if nth <= each.samples:
            return each, nth
        nth -= each.samples
    raise AssertionError("there are fewer samples than there were counted")


def _exact(samples: DataFrame, wanted: Mapping[tuple[str, float], tuple[Class, int]]) -> dict[tuple[str, float], int]:
    known = {key: each.largest for key, (each, nth) in wanted.items() if nth == each.samples}
    open_ = sorted({(metric, each.number, nth) for (metric, _), (each, nth) in wanted.items() if nth < each.samples})
    if not open_:
        return known
    classes = [
        (F.col("metric") == metric) & (F.col("class") == each) for metric, each in sorted({(m, c) for m, c, _ in open_})
    ]
    counted = (
        samples.select("metric", _class_number(), "value")
        .filter(reduce(or_, classes))
        .groupBy("metric", "class", "value")
        .agg(F.count(F.lit(1)).alias("samples"))
    )
    upto = Window.partitionBy("metric", "class").orderBy("value").rowsBetween(Window.unboundedPreceding, 0)
    summed = counted.select("metric", "class", "value", F.sum("samples").over(upto).alias("upto"))
    found = summed.agg(
        *[
            F.min(
                F.when((F.col("metric") == metric) & (F.col("class") == each) & (F.col("upto") >= nth), F.col("value"))
            ).alias(f"v{i}")
            for i, (metric, each, nth) in enumerate(open_)
        ]
    ).head()
    assert found is not None
    values = {place: int(found[i]) for i, place in enumerate(open_)}
    return known | {
        (metric, share): values[metric, each.number, nth]
        for (metric, share), (each, nth) in wanted.items()
        if nth < each.samples
    }


def tail(found: Sequence[Class]) -> tuple[tuple[int, float], ...]:
    """The share of samples above a value, at no more than POINTS values, the largest one among them."""
    whole = sum(each.samples for each in found)
    points, above = [], whole
    for each in found:
        above -= each.samples
        points.append((each.largest, above / whole))
    step = math.ceil(len(points) / POINTS)
    return tuple(points[::-1][::step][::-1])
