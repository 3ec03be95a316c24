"""The job of `remora replay verify`: freeze, read, compare, judge."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from remora_pipeline.replay import layout
from remora_pipeline.replay.layout import ReplayRun, RunDirectory
from remora_pipeline.replay.shape import ACKED
from remora_pipeline.replay.verify import aggregates, alone, frames, seams
from remora_pipeline.replay.verify.of_run import JournalTotals, judged_run
from remora_pipeline.replay.verify.of_topic import judged_alone
from remora_pipeline.replay.verify.question import Findings, Question
from remora_pipeline.replay.verify.record_frames import (
    events_of,
    journal_of,
    kept_on_disk,
    named_and_others,
    opened,
    sized,
)
from remora_pipeline.replay.verify.sent import with_digests


def verify_run(spark: SparkSession, directory: RunDirectory, question: Question) -> Findings:
    """The verdict on a replay. Raises ReplayError; nothing is written."""
    run = layout.read(directory.run, ReplayRun)
    question = replace(question, window=question.window.opened_by(run.started_us))
    with sized(spark, run.trace.events), ExitStack() as kept:
        question.tell("reading the journals")
        journal = journal_of(spark, directory)
        outcomes = kept_on_disk(kept, frames.outcomes(journal))
        begun = outcomes.agg(
            F.count(F.when(F.col("outcome") == ACKED, True)).alias("acked"), F.min("t0_us").alias("t0_us")
        ).head()
        assert begun is not None
        topic = opened(spark, question, begun.acked, kept)
        expected = with_digests(frames.expected(events_of(spark, run), outcomes), run)
        named, others = named_and_others(topic.records, expected, run, question.window.holds())
        compared = kept_on_disk(kept, frames.compared(expected, named))
        waits = aggregates.row(aggregates.count_waits(journal)).asDict()
        return judged_run(spark, run, topic, compared, others, JournalTotals(begun.t0_us or run.started_us, waits))


def verify_topic(spark: SparkSession, question: Question) -> Findings:
    """The verdict on a topic alone. Raises ReplayError."""
    with ExitStack() as kept:
        topic = opened(spark, question, 0, kept)
        lineages = seams.lineages_of(topic.records, topic.ended)
        return judged_alone(topic, kept_on_disk(kept, alone.itself(topic.records, lineages)))
