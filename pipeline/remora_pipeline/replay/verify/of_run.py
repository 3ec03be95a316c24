"""The verdict on a run: what came to Kafka beside what was sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from remora_pipeline.replay.kafka_source import read
from remora_pipeline.replay.layout import ReplayRun
from remora_pipeline.replay.results import Example
from remora_pipeline.replay.verify import aggregates, examples, frames, kafka, series
from remora_pipeline.replay.verify.examples import is_unfinished
from remora_pipeline.replay.verify.findings import Observations, ends_untold, findings, gaps_of, marks, numbers_of
from remora_pipeline.replay.verify.frames import THERE
from remora_pipeline.replay.verify.question import Findings
from remora_pipeline.replay.verify.record_frames import FrozenTopic
from remora_pipeline.replay.verify.records import records
from remora_pipeline.replay.verify.series import Axis
from remora_pipeline.replay.verify.topics import counted_keys


@dataclass(frozen=True, slots=True)
class JournalTotals:
    """What the journals say of the whole run: when it began, and how it waited for rate limits."""

    origin_us: int
    waits: dict[str, int]


def judged_run(
    spark: SparkSession, run: ReplayRun, topic: FrozenTopic, compared: DataFrame, others: DataFrame, told: JournalTotals
) -> Findings:
    """The verdict on the `compared` events and records of a run, and the `others` of its topic.

    `run` is the replay, and `told` what its journals say as a whole.
    """
    origin_us = told.origin_us
    is_judged, tell = topic.question.window.holds(), topic.question.tell
    judged = others.filter(is_judged)
    log = aggregates.log(topic.records)
    tell("comparing them with the journals")
    events = aggregates.row(aggregates.count_events(compared, run.topic))
    elsewhere, outside, undecided = None, 0, 0
    if events.missing and topic.undecided is not None:
        compared = frames.found_in(compared, "is_undecided", _named(topic.undecided, run, compared))
        undecided = compared.filter(frames.is_missing() & F.col("is_undecided")).count()
    if events.missing > undecided:
        tell(f"looking for {events.missing:,} events outside the window")
        elsewhere = _elsewhere(spark, topic)
        compared = frames.found_in(compared, "is_outside", _named(elsewhere, run, compared))
        outside = compared.filter(frames.is_missing() & F.col("is_outside") & ~F.col("is_undecided")).count()
    tell("counting the order of keys and the chain of positions")
    of_others = aggregates.row(aggregates.count_others(others, is_judged))
    keys = topic.keep(frames.of_keys(compared, len(topic.frozen.offsets)))
    keys, of_keys = counted_keys(topic, keys, final_state_wrong=is_unfinished())
    gaps, numbered = gaps_of(topic, elsewhere), numbers_of(topic, log.numbered, elsewhere)
    counts = {
        "in_trace": events.in_trace,
        "offered": events.offered,
        "sent": events.sent,
        "acked": events.acked,
        "rejected": events.rejected,
        "unknown": events.unknown,
        "dropped": events.dropped,
        **told.waits,
        "in_kafka": events.named + of_others.judged,
        "outside": of_others.outside,
        "distinct": events.distinct,
        "duplicates": events.duplicates,
        "resent": events.resent,
        "lost": events.missing - outside - undecided,
        "undecided": undecided,
        "out_of_window": outside,
        "ghosts": events.ghosts,
        "altered": events.altered,
        "foreign": events.foreign + of_others.foreign,
        "malformed": of_others.malformed,
        **of_keys.asDict(),
        "positions_inverted": events.before,
        **_without(events, run),
        **aggregates.row(aggregates.count_gaps(gaps)).asDict(),
        "unchained": of_others.unchained + events.unchained,
        "ends_untold": ends_untold(topic, log),
        **numbered.counts,
    }
    tell("measuring latencies")
    axis = Axis.over(origin_us, max(events.last_us or origin_us, origin_us))
    clocks = series.SCHEDULED if run.speed > 0 else series.UNSCHEDULED
    stamp = aggregates.stamp(log)
    drawing = series.Drawing(
        axis,
        series.moments_of_run(compared, axis),
        lambda: marks(compared.filter(F.col("kind") == THERE), axis, counts),
        log.partitions,
        keys,
        of_keys=series.TO_LOG,
    )
    measured = series.measure(
        series.samples_of_run(compared, axis, clocks),
        {metric: text.format(stamp=stamp) for metric, text in clocks.items()},
        drawing if topic.question.draws else None,
    )
    gap_us = (events.last_due_us - events.first_due_us) / max(1, events.offered - 1) if events.offered else 0.0
    shown: dict[str, Callable[[], tuple[Example, ...]]] = {
        "lost": lambda: examples.lost(compared),
        "out_of_window": lambda: examples.outside(compared),
        "undecided": lambda: examples.undecided(compared),
        "ghosts": lambda: examples.ghosts(compared),
        "altered": lambda: examples.altered(compared),
        "foreign": lambda: examples.foreign(compared, judged),
        "malformed": lambda: examples.malformed(judged),
        "duplicates": lambda: examples.copies(compared.filter(F.col("kind") == THERE)),
        "inversions": lambda: examples.inversions(compared),
        "keys_in_several_partitions": lambda: examples.scattered(keys),
        "keys_in_several_shards": lambda: examples.divided(keys),
        "positions_inverted": lambda: examples.before(compared),
        "without_position": lambda: examples.without(compared, "chained", "remora-shard, remora-pos and remora-next"),
        "without_event_id": lambda: examples.without(compared, "k_has_id", "remora-event-id"),
        "without_number": lambda: examples.without(compared, "k_has_number", "remora-seq"),
        "of_other_topics": lambda: examples.strayed(compared, run.topic),
        "keys_misplaced": lambda: examples.misplaced(keys),
        "final_state_wrong": lambda: examples.unfinished(keys),
        "chain_gaps": lambda: examples.broken(gaps),
        **numbered.shown,
    }
    return findings(topic, Observations(log, counts, shown, measured), run, gap_us)


def _elsewhere(spark: SparkSession, topic: FrozenTopic) -> DataFrame:
    """The records outside of what was read, which Kafka's time stamps chose."""
    question = topic.question
    spans = kafka.around(question.source, topic.frozen.offsets, behind=question.window.to_us is not None)
    rows = topic.records.limit(0)
    for span in spans:
        rows = rows.union(records(read(spark, question.source, span)))
    return rows


def _without(events: Row, run: ReplayRun) -> dict[str, int]:
    """How many records lack what each of a run through the ingest API has, or name a shard of another topic; nothing
    is known of other runs.

    Where the run does not say whether its topic numbers its events, one number says so.
    """
    if run.target != "ingest":
        return {}
    is_numbered = events.without_number < events.named if run.is_numbered is None else run.is_numbered
    return {
        "without_position": events.unchained,
        "without_event_id": events.without_event_id,
        "without_number": events.without_number if is_numbered else 0,
        "of_other_topics": events.strayed,
    }


def _named(there: DataFrame, run: ReplayRun, compared: DataFrame) -> DataFrame:
    """Returns the missing events (`seq`) that are there. Checks only whose records they are."""
    named = there.filter(F.col("problem").isNull() & (F.col("run_id") == run.run_id)).select("seq", "kseq")
    missing = compared.filter(frames.is_missing()).select("seq", "kseq")
    return missing.join(named, on=["seq", "kseq"], how="left_semi").select("seq")
