"""The verdict on a topic alone."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from remora_pipeline.replay.results import Example
from remora_pipeline.replay.verify import aggregates, alone, examples, series
from remora_pipeline.replay.verify.findings import Observations, ends_untold, findings, gaps_of, marks, numbers_of
from remora_pipeline.replay.verify.question import Findings
from remora_pipeline.replay.verify.record_frames import FrozenTopic
from remora_pipeline.replay.verify.series import Axis
from remora_pipeline.replay.verify.topics import counted_keys


def judged_alone(topic: FrozenTopic, itself: DataFrame) -> Findings:
    """The verdict on a topic whose records, compared with each other, are `itself`."""
    is_judged, tell = topic.question.window.holds(), topic.question.tell
    judged, bad = itself.filter(is_judged), topic.records.filter(F.col("problem").isNotNull() & is_judged)
    keys, of_keys = counted_keys(topic, topic.keep(alone.of_keys(judged, len(topic.frozen.offsets))))
    gaps = gaps_of(topic)
    log, all_ = aggregates.log(topic.records), aggregates.row(aggregates.count_others(topic.records, is_judged))
    numbered = numbers_of(topic, log.numbered)
    tell("counting copies, the order of keys and the chain of positions")
    found = aggregates.row(aggregates.count_alone(judged))
    counts = {
        "in_kafka": all_.judged,
        "outside": all_.outside,
        "distinct": found.distinct,
        "duplicates": found.duplicates,
        "resent": 0,
        "foreign": 0,
        "malformed": all_.malformed,
        "undecided": 0 if topic.undecided is None else topic.undecided.filter(is_judged).count(),
        **of_keys.asDict(),
        "sequencer_inversions": found.early,
        **aggregates.row(aggregates.count_gaps(gaps)).asDict(),
        "unchained": all_.unchained,
        "ends_untold": ends_untold(topic, log),
        **numbered.counts,
    }
    tell("measuring latencies")
    axis = Axis.over(found.first_us or 0, found.last_us or 0)
    drawing = series.Drawing(
        axis,
        series.moments_alone(judged, axis),
        lambda: marks(judged, axis, counts),
        log.partitions,
        keys,
        of_keys=series.AGE,
    )
    measured = series.measure(
        series.samples_alone(judged, axis),
        {metric: text.format(stamp=aggregates.stamp(log)) for metric, text in series.ALONE.items()},
        drawing if topic.question.draws else None,
    )
    shown: dict[str, Callable[[], tuple[Example, ...]]] = {
        "malformed": lambda: examples.malformed(bad),
        "duplicates": lambda: examples.copies(judged),
        "inversions": lambda: examples.inversions(judged),
        "keys_in_several_partitions": lambda: examples.scattered(keys),
        "keys_in_several_shards": lambda: examples.divided(keys),
        "keys_misplaced": lambda: examples.misplaced(keys),
        "sequencer_inversions": lambda: examples.early(judged),
        "chain_gaps": lambda: examples.broken(gaps),
        **numbered.shown,
    }
    return findings(topic, Observations(log, counts, shown, measured))
