"""What the report draws, counted by intervals and classes: a few thousand points, however many records there were."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from remora_pipeline.replay.results import Interval, KeyLatency, Percentiles, Series, TimelineMark
from remora_pipeline.replay.verify import distributions
from remora_pipeline.replay.verify.distributions import CLASSES, by_interval, by_metric, classes
from remora_pipeline.replay.verify.frames import THERE

LATENESS, SERVICE, RESPONSE, TO_LOG, AGE = "lateness", "service", "response", "to_log", "age"

SCHEDULED = {
    LATENESS: "sent - due, by the generator's clock, without waits for limits",
    SERVICE: "answered - first sent, by the generator's clock",
    RESPONSE: "answered - due, by the generator's clock",
    TO_LOG: "{stamp} - due, between Kafka's clock in milliseconds and the generator's",
}
UNSCHEDULED = {
    SERVICE: SCHEDULED[SERVICE],
    RESPONSE: "answered - first sent (speed 0: nothing is due at a time), by the generator's clock",
    TO_LOG: "{stamp} - first sent (speed 0), between Kafka's clock in milliseconds and the generator's",
}
ALONE = {AGE: "{stamp} - eventTime, between Kafka's clock in milliseconds and the gateway's"}

MOST_MARKS = 1000
HOTTEST = 20
_DENSITY = 20
_MOST_INTERVALS = 300
_SHARES = (0.5, 0.9, 0.99, 0.999, 1.0)


@dataclass(frozen=True)
class Axis:
    """Intervals that begin at the origin."""

    origin_us: int
    interval_us: int

    @classmethod
    def over(cls, origin_us: int, last_us: int) -> Axis:
        """Returns the shortest round interval that makes no more than the most intervals."""
        span = max(1, last_us - origin_us)
        steps = (digit * 10**power for power in itertools.count(5) for digit in (1, 2, 5))
        return cls(origin_us, next(step for step in steps if span < step * _MOST_INTERVALS))

    def of(self, at_us: Column) -> Column:
        """The interval of a time; what was before the origin, by another clock, is in the first one."""
        return F.greatest(F.lit(0), F.floor((at_us - self.origin_us) / self.interval_us)).cast("int")


@dataclass(frozen=True)
class Measured:
    """What is known of the times: exact percentiles, and what the pictures need where they are wanted."""

    latencies: dict[str, Percentiles]
    series: Series | None


@dataclass(frozen=True)
class Drawing:
    """What is drawn beside latencies: moments of events, marks, records by partition, and the events of each key.

    `of_keys` is the metric that the density is of, and whose p99 the hottest keys get.
    """

    axis: Axis
    moments: DataFrame
    marks: Callable[[], Sequence[TimelineMark]]
    partitions: Mapping[str, int]
    keys: DataFrame
    of_keys: str


def samples_of_run(compared: DataFrame, axis: Axis, metrics: Iterable[str]) -> DataFrame:
    """The latencies of each event, by the interval in which it was due."""
    there = F.col("kind") == THERE
    values = {
        LATENESS: F.col("sent_us") - F.col("due_us") - F.col("held_us"),
        SERVICE: F.col("acked_us") - F.col("sent_us"),
        RESPONSE: F.col("acked_us") - F.col("due_us"),
        TO_LOG: F.when(there, F.col("log_us") - F.col("due_us")),
    }
    rows = compared.filter((F.col("nth") == 1) & F.col("due_us").isNotNull())
    return _samples(rows, axis.of(F.col("due_us")), {metric: values[metric] for metric in metrics})


def samples_alone(itself: DataFrame, axis: Axis) -> DataFrame:
    """The age of each record that is no copy, by the interval in which it was logged."""
    rows = itself.filter(F.col("nth") == 1)
    return _samples(rows, axis.of(F.col("log_us")), {AGE: F.col("log_us") - F.col("event_us")})


def _samples(rows: DataFrame, interval: Column, values: Mapping[str, Column]) -> DataFrame:
    each = F.array(*[F.struct(F.lit(metric).alias("metric"), value.alias("value")) for metric, value in values.items()])
    found = rows.select("bucket", "key", interval.alias("interval"), F.explode(each).alias("sample"))
    return found.select("bucket", "key", "interval", "sample.metric", "sample.value").filter(F.col("value").isNotNull())


def moments_of_run(compared: DataFrame, axis: Axis) -> DataFrame:
    """How many events were due, were acked and came into the log in each interval: kind, interval, events."""
    there = F.col("kind") == THERE
    times = {"due": F.col("due_us"), "acked": F.col("acked_us"), "in_log": F.when(there, F.col("log_us"))}
    return _moments(compared.filter(F.col("nth") == 1), axis, times)


def moments_alone(itself: DataFrame, axis: Axis) -> DataFrame:
    """How many first records came into the log in each interval: kind, interval, events."""
    return _moments(itself.filter(F.col("nth") == 1), axis, {"in_log": F.col("log_us")})


def _moments(rows: DataFrame, axis: Axis, times: Mapping[str, Column]) -> DataFrame:
    each = F.array(*[F.struct(F.lit(kind).alias("kind"), at.alias("at")) for kind, at in times.items()])
    found = rows.select(F.explode(each).alias("moment")).select("moment.kind", "moment.at")
    return (
        found.filter(F.col("at").isNotNull())
        .groupBy("kind", axis.of(F.col("at")).alias("interval"))
        .agg(F.count(F.lit(1)).alias("events"))
    )


def measure(samples: DataFrame, clocks: Mapping[str, str], draw: Drawing | None) -> Measured:
    """The latencies of `clocks`; and the series, where it is wanted."""
    with ExitStack() as kept:
        counted = classes(samples)
        if draw is not None:
            counted = counted.persist(StorageLevel.DISK_ONLY)
            kept.callback(counted.unpersist)
        found = by_metric(counted)
        exact = distributions.percentiles(samples, found, _SHARES)
        latencies = {
            metric: Percentiles(clock, sum(each.samples for each in found[metric]), *exact[metric])
            for metric, clock in clocks.items()
            if metric in found
        }
        if draw is None:
            return Measured(latencies, None)
        series = Series(
            origin_us=draw.axis.origin_us,
            interval_us=draw.axis.interval_us,
            intervals=_intervals(draw.axis, counted, draw.moments),
            tail={metric: distributions.tail(found[metric]) for metric in latencies},
            density=_density(counted, draw.of_keys),
            marks=tuple(draw.marks()),
            partitions=dict(draw.partitions),
            hottest=_hottest(draw.keys, samples.filter(F.col("metric") == draw.of_keys)),
        )
        return Measured(latencies, series)


def _intervals(axis: Axis, counted: DataFrame, moments: DataFrame) -> tuple[Interval, ...]:
    events = {(kind, number): count for kind, number, count in moments.collect()}
    stats = {(row.metric, row.interval): (row.p50, row.p99, row.largest) for row in by_interval(counted).collect()}
    if not events:
        return ()
    intervals, due, acked, in_log = [], 0, 0, 0
    is_run = any(kind == "due" for kind, _ in events)
    for number in range(1 + max(number for _, number in events)):
        here = {kind: events.get((kind, number), 0) for kind in ("due", "acked", "in_log")}
        due, acked, in_log = due + here["due"], acked + here["acked"], in_log + here["in_log"]
        intervals.append(
            Interval(
                t_us=number * axis.interval_us,
                **here,
                backlog_acked=due - acked if is_run else 0,
                backlog_in_log=due - in_log if is_run else 0,
                response=stats.get((RESPONSE, number)),
                to_log=stats.get((TO_LOG, number)),
                lateness=stats.get((LATENESS, number)),
            )
        )
    return tuple(intervals)


def _density(counted: DataFrame, metric: str) -> tuple[tuple[int, int, int], ...]:
    number = F.greatest(F.lit(0), F.floor(F.col("class") / (CLASSES // _DENSITY))).cast("int")
    rows = (
        counted.filter(F.col("metric") == metric)
        .groupBy("interval", number.alias("density"))
        .agg(F.sum("samples").alias("events"))
        .orderBy("interval", "density")
        .collect()
    )
    return tuple((row.interval, row.density, row.events) for row in rows)


def _hottest(keys: DataFrame, samples: DataFrame) -> tuple[KeyLatency, ...]:
    """Returns keys with many events. Leaves out keys without an arrived event: they have no latency."""
    hot = keys.filter(F.col("events") > 0).orderBy(F.desc("events"), "bucket", "key").limit(HOTTEST)
    of_key = Window.partitionBy("bucket", "key")
    theirs = samples.join(F.broadcast(hot.select("bucket", "key", "events")), on=["bucket", "key"], how="inner").select(
        "bucket",
        "key",
        "events",
        "value",
        F.row_number().over(of_key.orderBy("value")).alias("nth"),
        F.count(F.lit(1)).over(of_key).alias("of"),
    )
    found = (
        theirs.filter(F.col("nth") == F.ceil(F.col("of") * 0.99)).orderBy(F.desc("events"), "bucket", "key").collect()
    )
    return tuple(KeyLatency(row.bucket, row.key, row.events, row.value) for row in found)
