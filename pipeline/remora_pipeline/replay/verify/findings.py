"""What the verdicts on a run and on a topic alone have in common: chains, numbers, marks, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from remora_pipeline.replay.layout import ReplayRun
from remora_pipeline.replay.loop import loop_of
from remora_pipeline.replay.results import Example, TimelineMark, TopicVerdict
from remora_pipeline.replay.verify import aggregates, chain, examples, numbers, seams, series
from remora_pipeline.replay.verify.caveats import caveats
from remora_pipeline.replay.verify.judgement import judge
from remora_pipeline.replay.verify.question import Findings
from remora_pipeline.replay.verify.record_frames import FrozenTopic
from remora_pipeline.replay.verify.records import NOT_BEHIND
from remora_pipeline.replay.verify.series import Axis, Measured


@dataclass(frozen=True, slots=True)
class Observations:
    """What a topic's records show: their log, counts and measurements, and for each count what picks its examples."""

    log: aggregates.KafkaLog
    counts: dict[str, int]
    shown: Mapping[str, Callable[[], tuple[Example, ...]]]
    measured: Measured


def findings(
    topic: FrozenTopic, seen: Observations, run: ReplayRun | None = None, mean_gap_us: float = 0.0
) -> Findings:
    """The verdict on what was seen. `mean_gap_us` is the mean time between two events of the run."""
    question, counts, measured = topic.question, seen.counts, seen.measured
    question.tell("picking examples")
    found = judge(counts, measured.latencies.get(series.LATENESS), mean_gap_us, question.rules)
    window, rules = question.window, question.rules
    loop = loop_of(run) if run else None
    verdict = TopicVerdict(
        verdict=found.verdict,
        reasons=found.reasons,
        topic=question.source.topic,
        run_id=run.run_id if run else None,
        isolation=question.source.isolation,
        timestamp_type=seen.log.timestamp_type,
        offsets={str(number): span for number, span in sorted(topic.frozen.offsets.items())},
        options={
            "from_us": window.from_us,
            "to_us": window.to_us,
            "edge_us": window.edge_us,
            "dead_letters": question.letters,
            "ended": str(question.ended) if question.ended else None,
            "duplicates": rules.duplicates,
            "foreign": rules.foreign,
            "max_lateness_us": rules.lateness_us,
            "max_lateness_share": rules.lateness_share,
        },
        counts=counts,
        examples={name: pick() for name, pick in seen.shown.items() if counts.get(name)},
        latencies=measured.latencies,
        caveats=caveats(run.target if run else None, counts),
        undecided={str(number): span for number, span in sorted(topic.frozen.undecided.items())},
        loop=loop.kind if loop else None,
        requests=loop.requests if loop else None,
    )
    return Findings(verdict, measured.series, topic.frozen.is_quiet)


def gaps_of(topic: FrozenTopic, elsewhere: DataFrame | None = None) -> DataFrame:
    """Where the chain of positions breaks; `elsewhere` are records beside those that were read."""
    breaks = topic.keep(chain.breaks(_placed(topic, elsewhere), topic.letters, topic.ended))
    return topic.keep(chain.gaps(breaks).filter(topic.question.window.holds()))


def ends_untold(topic: FrozenTopic, log: aggregates.KafkaLog) -> int:
    """How many judged records leave it open where the shards before theirs ended."""
    if not log.of_generations:
        return 0
    return seams.untold(topic.records.filter(topic.question.window.holds()), topic.ended).count()


def _placed(topic: FrozenTopic, elsewhere: DataFrame | None) -> DataFrame:
    """The records that tell where their entries and the next ones are; those behind open transactions, too."""
    found = topic.records
    for more in (elsewhere, topic.undecided):
        found = found if more is None else found.union(more)
    placed = F.col("shard").isNotNull() & F.col("turn").isNotNull() & F.col("next_turn").isNotNull()
    placed &= ~F.col("problem").eqNullSafe(NOT_BEHIND)  # which would lead to itself
    return found.filter(placed)


@dataclass(frozen=True)
class Numbers:
    """What is wrong with the numbers of a topic: counts, and what picks the examples of each."""

    counts: dict[str, int]
    shown: Mapping[str, Callable[[], tuple[Example, ...]]]


def numbers_of(topic: FrozenTopic, numbered: int, elsewhere: DataFrame | None = None) -> Numbers:
    """Judges the numbers of a topic; `numbered` records have one."""
    names = ("number_gaps", "number_gaps_explained", "numbers_repeated", "numbers_torn", "numbers_inverted")
    if not numbered:
        return Numbers({"numbered": 0, **dict.fromkeys(names, 0)}, {})
    topic.question.tell("looking for gaps in the numbers")
    placed, holds = _placed(topic, elsewhere), topic.question.window.holds()
    every = topic.keep(numbers.entries(placed, topic.letters))
    judged, repeated = every.filter(holds), numbers.repeated(every).filter(holds)
    gaps = topic.keep(chain.gaps(topic.keep(numbers.breaks(placed, topic.letters))).filter(holds))
    wrong, missing = aggregates.row(aggregates.count_numbers(judged)), aggregates.row(aggregates.count_gaps(gaps))
    explained = missing.chain_gaps_explained
    if unexplained := missing.chain_gaps - explained:
        explained += min(unexplained, numbers.without_number(topic.letters, every))
    found = (missing.chain_gaps, explained, repeated.count(), wrong.torn, wrong.early)
    shown: dict[str, Callable[[], tuple[Example, ...]]] = {
        "number_gaps": lambda: examples.unnumbered(gaps),
        "numbers_repeated": lambda: examples.misnumbered(repeated, "is of several entries"),
        "numbers_torn": lambda: examples.misnumbered(judged.filter("is_torn"), "is not in all copies"),
        "numbers_inverted": lambda: examples.misnumbered(judged.filter("is_early"), "is not above the one before it"),
    }
    return Numbers({"numbered": numbered, **dict(zip(names, found, strict=True))}, shown)


def marks(rows: DataFrame, axis: Axis, counts: Mapping[str, int]) -> list[TimelineMark]:
    """The first inversions and copies, by the time of their records."""
    found: list[TimelineMark] = []
    for kind, chosen, depth in (
        ("inversion", rows.filter("depth is not null"), F.col("depth")),
        ("duplicate", rows.filter("nth > 1"), F.lit(0)),
    ):
        if not counts[f"{kind}s"]:
            continue
        at = (F.col("log_us") - axis.origin_us).alias("t_us")
        first = (
            chosen.orderBy("log_us", "partition", "offset").limit(series.MOST_MARKS).select(at, depth.alias("depth"))
        )
        found += [TimelineMark(row.t_us, kind, row.depth) for row in first.collect()]  # type: ignore[arg-type]  # of the two
    return found
