"""The job: check everything, write down what is meant to happen, have all parts sent, and say what came of it."""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # the usual name

from remora import __version__
from remora_pipeline.replay import layout
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import PreparedDirectory, RunDirectory, Trace
from remora_pipeline.replay.paths import location, pattern
from remora_pipeline.replay.prepared import read_events
from remora_pipeline.replay.run import frames
from remora_pipeline.replay.run.journal import is_written, journals
from remora_pipeline.replay.run.lateness import merged, percentile_us
from remora_pipeline.replay.run.plan import ReplayPlan
from remora_pipeline.replay.run.task import SUMMARY, sending
from remora_pipeline.replay.session import in_one_line, refuse_retries
from remora_pipeline.replay.shape import JOURNAL

_ROWS = 2000
"""Rows of an Arrow batch: one of them is read ahead while another one is sent."""

_MUST_AGREE = ("trace", "target", "topic", "speed")
"""What a resumption has in common with what it resumes, beside the run id and the number of parts."""


@dataclass(frozen=True, slots=True)
class Punctuality:
    """How late first attempts were, in microseconds to three digits; None without any."""

    events: int
    p50_us: int | None
    p99_us: int | None


def refuse_used(run: RunDirectory) -> None:
    """Raise ReplayRefused for a directory in which something was run before."""
    if run.run.exists() or journals(run):
        raise ReplayRefused(f"{run.path}: something was replayed into it before; take another --out, or --resume")


def resumed(plan: ReplayPlan, run: RunDirectory, trace: Trace, parts: int | None) -> tuple[ReplayPlan, int]:
    """The plan and the number of parts with which to go on. Raises ReplayRefused where it would be another replay."""
    if not run.run.exists():
        raise ReplayRefused(f"{run.path}: there is nothing to resume: it has no {run.run.name}")
    earlier = layout.read(run.run, layout.ReplayRun)
    now = {"trace": trace, "target": plan.target, "topic": plan.topic, "speed": plan.speed}
    closed_loop = earlier.options.get("closed_loop")
    if closed_loop != plan.closed_loop:
        raise ReplayRefused(
            f"{run.run}: --closed-loop was {closed_loop or 'none'}: a replay is resumed with what it was begun with"
        )
    for name in _MUST_AGREE:
        if now[name] != getattr(earlier, name):
            what = "the trace" if name == "trace" else f"--{name}"
            raise ReplayRefused(f"{run.run}: {what} was another one: a replay is resumed with what it was begun with")
    if parts not in (None, earlier.parts):
        raise ReplayRefused(f"{run.run}: --parts was {earlier.parts}: a replay is resumed with what it was begun with")
    for path in journals(run):
        if is_written(path):
            raise ReplayRefused(f"{path}: is still being written: the replay that is to be resumed has not ended")
    return replace(plan, run_id=earlier.run_id, started_us=earlier.started_us), earlier.parts


def default_parts(spark: SparkSession) -> int:
    """As many as Spark runs tasks side by side."""
    if local := re.fullmatch(r"local\[(\d+)\]", spark.conf.get("spark.master", "") or ""):
        return int(local[1])
    return spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()


def begin(
    prepared: PreparedDirectory, run: RunDirectory, trace: Trace, plan: ReplayPlan, parts: int, options: layout.Options
) -> None:
    """Write down what is going to be replayed."""
    layout.write(
        run.run,
        layout.ReplayRun(
            run_id=plan.run_id,
            trace=trace,
            prepared=str(prepared.path.absolute()),
            target=plan.target,
            address=plan.address,
            topic=plan.topic,
            speed=plan.speed,
            parts=parts,
            overload=plan.limits.overload,
            started_us=plan.started_us,
            options=options,
            host=platform.node(),
            cores=os.cpu_count() or 1,
            versions={"remora": __version__, "python": platform.python_version(), "pyspark": pyspark.__version__},
            is_numbered=plan.is_numbered,
            kafka_topic=plan.kafka_topic,
        ),
    )


def replay(
    spark: SparkSession, prepared: PreparedDirectory, plan: ReplayPlan, parts: int, *, resume: bool
) -> Punctuality:
    """Send all events, or with `resume` those that no journal tells of; returns when all are answered for."""
    refuse_retries(spark)
    run = RunDirectory(Path(plan.run))
    events = frames.with_lanes(read_events(spark, prepared))
    hot = {row.lane: row.events for row in frames.hottest(events).collect()}
    parted = frames.with_parts(spark, events, frames.spread(hot, parts), parts)
    if resume:
        parted = frames.not_attempted(parted, read_journals(spark, run))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _ROWS)
    folder = run.tasks / str(time.time_ns())
    sent = frames.ordered(parted, parts).mapInArrow(sending(plan, parts), SUMMARY, barrier=True)
    with in_one_line():
        sent.write.parquet(location(folder))
    rows = pq.read_table(folder, columns=["lateness"]).to_pylist()
    counts = merged(dict(row["lateness"]) for row in rows)
    return Punctuality(sum(counts.values()), percentile_us(counts, 0.5), percentile_us(counts, 0.99))


def read_journals(spark: SparkSession, run: RunDirectory) -> DataFrame:
    """All lines of all journals, without one that is cut off."""
    # The part is in the folder's name and in the first line; Spark is not to make a column of the former.
    lines = spark.read.schema(JOURNAL).option("recursiveFileLookup", "true").json(pattern(run.journal))
    return lines.where(F.col("kind").isNotNull()).select(*JOURNAL.fieldNames())
