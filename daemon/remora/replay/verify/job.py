"""The job of `remora replay verify`: freeze, read, compare, judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from remora.replay import layout
from remora.replay.errors import ReplayRefused
from remora.replay.layout import PreparedDirectory, Run, RunDirectory
from remora.replay.paths import pattern
from remora.replay.prepared import read_events
from remora.replay.results import Example, Mark, Series, Verdict
from remora.replay.run.journal import is_written, journals
from remora.replay.shape import ACKED, JOURNAL, PUT
from remora.replay.verify import alone, chain, counting, examples, frames, kafka, numbers, series
from remora.replay.verify.caveats import caveats
from remora.replay.verify.deletes import with_deletes
from remora.replay.verify.examples import is_unfinished
from remora.replay.verify.frames import THERE
from remora.replay.verify.judgement import Rules, judge
from remora.replay.verify.kafka import Frozen, Offsets, Patience, Source
from remora.replay.verify.records import NOT_BEHIND, records
from remora.replay.verify.sent import with_digests
from remora.replay.verify.series import Axis, Measured

ROWS_A_TASK = 300_000
"""The records that one task sorts at a time; more spill to disk."""


@dataclass(frozen=True)
class Window:
    """What of a topic is judged, by Kafka's time stamps; None is without a bound. Records within `edge_us` before and
    behind it are read as well, for what they tell of their neighbours."""

    from_us: int | None
    to_us: int | None
    edge_us: int

    def holds(self) -> Column:
        """Whether a record is judged."""
        since = F.lit(True) if self.from_us is None else F.col("log_us") >= self.from_us
        return since if self.to_us is None else since & (F.col("log_us") < self.to_us)


@dataclass(frozen=True)
class Question:
    """The question of a verification. `recalled` are the offsets of an earlier verdict, else they are frozen now.
    `draws` says whether the series is wanted too. `tell` is given the name of each step as it begins."""

    source: Source
    window: Window
    patience: Patience
    recalled: Offsets | None
    letters: str | None
    rules: Rules
    draws: bool = True
    tell: Callable[[str], None] = lambda step: None


@dataclass(frozen=True)
class Findings:
    """The verdict, what the report draws where that was wanted, and whether records came while the ends were fixed."""

    verdict: Verdict
    series: Series | None
    is_quiet: bool


def verify_run(spark: SparkSession, directory: RunDirectory, question: Question) -> Findings:
    """The verdict on a replay. Raises ReplayError; nothing is written."""
    run = layout.read(directory.run, Run)
    if question.window.from_us is None:
        question = replace(question, window=replace(question.window, from_us=run.started_us))
    with _sized(spark, run.trace.events), ExitStack() as kept:
        question.tell("reading the journals")
        journal = _journal(spark, directory)
        outcomes = _kept(kept, frames.outcomes(journal))
        begun = outcomes.agg(
            F.count(F.when(F.col("outcome") == ACKED, True)).alias("acked"), F.min("t0_us").alias("t0_us")
        ).head()
        assert begun is not None
        topic = _opened(spark, question, begun.acked, kept)
        expected = with_digests(frames.expected(_events(spark, run), outcomes), run)
        named, others = _named(topic.records, expected, run, question.window.holds())
        compared = _kept(kept, frames.compared(expected, named))
        waits = counting.row(counting.count_waits(journal)).asDict()
        return _judged_run(spark, run, topic, compared, others, _Told(begun.t0_us or run.started_us, waits))


def verify_topic(spark: SparkSession, question: Question) -> Findings:
    """The verdict on a topic alone. Raises ReplayError."""
    with ExitStack() as kept:
        topic = _opened(spark, question, 0, kept)
        with _sized(spark, topic.size):
            itself = _kept(kept, alone.itself(topic.records))
            return _judged_alone(topic, itself)


# ------------------------------------------------------------------------------------------------ what is read


@dataclass(frozen=True)
class _Topic:
    question: Question
    frozen: Frozen
    records: DataFrame
    letters: DataFrame | None
    size: int


def _opened(spark: SparkSession, question: Question, enough: int, kept: ExitStack) -> _Topic:
    """The records between offsets that are fixed now. What came last in a topic that is alive is not judged."""
    source, window = question.source, question.window
    question.tell(f"waiting until all has come to {source.topic}")
    if question.recalled is not None:
        frozen = kafka.recall(source, question.recalled)
    else:
        first = None if window.from_us is None else window.from_us - window.edge_us
        last = None if window.to_us is None else window.to_us + window.edge_us
        frozen = kafka.freeze(source, first, last, replace(question.patience, enough=enough))
    if not frozen.is_quiet and not enough:
        question = replace(question, window=replace(window, to_us=int(time.time() * 1e6) - window.edge_us))
    found = _kept(kept, records(kafka.read(spark, source, frozen.offsets)))
    size = sum(end - first for first, end in frozen.offsets.values())
    letters = _letters(spark, question)
    question.tell(f"reading {size:,} records of {source.topic}")
    return _Topic(question, frozen, found, letters, size)


def _letters(spark: SparkSession, question: Question) -> DataFrame | None:
    """The dead letters of a file, or else of a topic on the same brokers."""
    if question.letters is None:
        return None
    if (path := Path(question.letters)).is_file():
        letters = chain.letters_of_file(spark, path)
        if letters.filter(" or ".join(f"{name} is null" for name in chain.PLACES)).head() is not None:
            raise ReplayRefused(f"{path}: is not what `remora dlq list --json` writes")
        return letters
    source = replace(question.source, topic=question.letters)
    offsets = kafka.freeze(source, None, None, Patience(0, 0, 0)).offsets
    return chain.letters_of_topic(kafka.read(spark, source, offsets))


def _events(spark: SparkSession, run: Run) -> DataFrame:
    prepared = PreparedDirectory(Path(run.prepared))
    if layout.read(prepared.trace, layout.Trace) != run.trace:
        raise ReplayRefused(f"{prepared.path}: is not what was replayed: it was prepared anew")
    events = read_events(spark, prepared)
    cap = run.options.get("size_cap")
    if run.target != "s3" or not isinstance(cap, int):
        return events
    # What was sent to a gateway is cut to a size, and other operations than a plain write may bring another one.
    sent = F.when(F.col("op") == PUT, F.least("size", F.lit(cap)))
    return events.select(*[sent.alias(name) if name == "size" else F.col(name) for name in events.columns])


def _journal(spark: SparkSession, directory: RunDirectory) -> DataFrame:
    """All journals as one table. A line that was cut off at the end of a file proves nothing, and is passed over."""
    found = journals(directory)
    if not found:
        raise ReplayRefused(f"{directory.journal}: there are no journals")
    for path in found:
        if is_written(path):
            raise ReplayRefused(f"{path}: is still written: wait until the replay has ended")
    schema = StructType([*JOURNAL.fields, StructField("broken", StringType())])
    reader = (
        spark.read.schema(schema).option("columnNameOfCorruptRecord", "broken").option("recursiveFileLookup", "true")
    )
    journal = reader.json([pattern(path) for path in found]).select("*", F.col("_metadata.file_path").alias("file"))
    broken = journal.filter("broken is not null").groupBy("file").agg(F.count("kind"), F.count("broken").alias("lines"))
    for row in broken.collect():
        path = Path(unquote(urlsplit(row.file).path))
        if row.lines > 1 or path.read_bytes()[-1:] == b"\n":
            raise ReplayRefused(f"{path}: has a line that is none of a journal's")
    return journal


def _named(found: DataFrame, expected: DataFrame, run: Run, is_judged: Column) -> tuple[DataFrame, DataFrame]:
    """The records that name an event of the run, and the others."""
    if run.target == "s3":
        found = with_deletes(found, expected, run.run_id, is_judged)
    is_named = F.col("problem").isNull() & (F.col("run_id") == run.run_id) & F.col("seq").isNotNull()
    is_id = F.lit(True)
    if run.target == "ingest":
        is_id = F.col("event_id").eqNullSafe(F.concat(F.lit(f"{run.run_id}/"), F.col("seq").cast("string")))
    is_named = F.coalesce(is_named, F.lit(False))
    named = found.filter(is_named).select(
        "seq", "kseq", "partition", "offset", "log_us", "bucket", "key", "event_name", "size", "shard", "incarnation",
        "turn", "place", is_id.alias("is_id"), "is_keyed", "event_us", "digest",
    )  # fmt: skip
    return named, found.filter(~is_named)


# ------------------------------------------------------------------------------------------------ what is found


@dataclass(frozen=True, slots=True)
class _Told:
    """What the journals say of the whole run: when it began, and how it waited for rate limits."""

    origin_us: int
    waits: dict[str, int]


def _judged_run(
    spark: SparkSession, run: Run, topic: _Topic, compared: DataFrame, others: DataFrame, told: _Told
) -> Findings:
    origin_us = told.origin_us
    is_judged, tell = topic.question.window.holds(), topic.question.tell
    judged = others.filter(is_judged)
    log = counting.log(topic.records)
    tell("comparing them with the journals")
    events = counting.row(counting.count_events(compared))
    elsewhere, outside = None, 0
    if events.missing:
        tell(f"looking for {events.missing:,} events outside the window")
        elsewhere = _elsewhere(spark, topic)
        compared = frames.with_outside(compared, _outside(elsewhere, run, compared))
        outside = compared.filter(frames.is_missing() & F.col("is_outside")).count()
    tell("counting the order of keys and the chain of positions")
    of_others = counting.row(counting.count_others(others, is_judged))
    keys = frames.of_keys(compared, len(topic.frozen.offsets))
    gaps, numbered = _gaps(topic, elsewhere), _numbers(topic, log.numbered, elsewhere)
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
        "lost": events.missing - outside,
        "out_of_window": outside,
        "ghosts": events.ghosts,
        "altered": events.altered,
        "foreign": events.foreign + of_others.foreign,
        "malformed": of_others.malformed,
        **counting.row(counting.count_keys(keys, final_state_wrong=is_unfinished())).asDict(),
        **counting.row(counting.count_gaps(gaps)).asDict(),
        "unchained": of_others.unchained + events.unchained,
        **numbered.counts,
    }
    tell("measuring latencies")
    axis = Axis.over(origin_us, max(events.last_us or origin_us, origin_us))
    clocks = series.SCHEDULED if run.speed > 0 else series.UNSCHEDULED
    stamp = counting.stamp(log)
    drawing = series.Drawing(
        axis,
        series.moments_of_run(compared, axis),
        lambda: _marks(compared.filter(F.col("kind") == THERE), axis, counts),
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
        "ghosts": lambda: examples.ghosts(compared),
        "altered": lambda: examples.altered(compared),
        "foreign": lambda: examples.foreign(compared, judged),
        "malformed": lambda: examples.malformed(judged),
        "duplicates": lambda: examples.copies(compared.filter(F.col("kind") == THERE)),
        "inversions": lambda: examples.inversions(compared),
        "keys_in_several_partitions": lambda: examples.scattered(keys),
        "keys_misplaced": lambda: examples.misplaced(keys),
        "final_state_wrong": lambda: examples.unfinished(keys),
        "chain_gaps": lambda: examples.broken(gaps),
        **numbered.shown,
    }
    return _findings(topic, _Seen(log, counts, shown, measured), run, gap_us)


def _elsewhere(spark: SparkSession, topic: _Topic) -> DataFrame:
    """The records outside of what was read, which Kafka's time stamps chose."""
    question = topic.question
    spans = kafka.around(question.source, topic.frozen.offsets, behind=question.window.to_us is not None)
    rows = topic.records.limit(0)
    for span in spans:
        rows = rows.union(records(kafka.read(spark, question.source, span)))
    return rows


def _outside(elsewhere: DataFrame, run: Run, compared: DataFrame) -> DataFrame:
    """The missing events (`seq`) that are elsewhere. Of the records there no more is asked than whose they are."""
    named = elsewhere.filter(F.col("problem").isNull() & (F.col("run_id") == run.run_id)).select("seq", "kseq")
    missing = compared.filter(frames.is_missing()).select("seq", "kseq")
    return missing.join(named, on=["seq", "kseq"], how="left_semi").select("seq")


def _judged_alone(topic: _Topic, itself: DataFrame) -> Findings:
    is_judged, tell = topic.question.window.holds(), topic.question.tell
    judged, bad = itself.filter(is_judged), topic.records.filter(F.col("problem").isNotNull() & is_judged)
    keys = alone.of_keys(judged, len(topic.frozen.offsets))
    gaps = _gaps(topic)
    log, all_ = counting.log(topic.records), counting.row(counting.count_others(topic.records, is_judged))
    numbered = _numbers(topic, log.numbered)
    tell("counting copies, the order of keys and the chain of positions")
    found = counting.row(counting.count_alone(judged))
    counts = {
        "in_kafka": all_.judged,
        "outside": all_.outside,
        "distinct": found.distinct,
        "duplicates": found.duplicates,
        "resent": 0,
        "foreign": 0,
        "malformed": all_.malformed,
        **counting.row(counting.count_keys(keys)).asDict(),
        "sequencer_inversions": found.early,
        **counting.row(counting.count_gaps(gaps)).asDict(),
        "unchained": all_.unchained,
        **numbered.counts,
    }
    tell("measuring latencies")
    axis = Axis.over(found.first_us or 0, found.last_us or 0)
    drawing = series.Drawing(
        axis,
        series.moments_alone(judged, axis),
        lambda: _marks(judged, axis, counts),
        log.partitions,
        keys,
        of_keys=series.AGE,
    )
    measured = series.measure(
        series.samples_alone(judged, axis),
        {metric: text.format(stamp=counting.stamp(log)) for metric, text in series.ALONE.items()},
        drawing if topic.question.draws else None,
    )
    shown: dict[str, Callable[[], tuple[Example, ...]]] = {
        "malformed": lambda: examples.malformed(bad),
        "duplicates": lambda: examples.copies(judged),
        "inversions": lambda: examples.inversions(judged),
        "keys_in_several_partitions": lambda: examples.scattered(keys),
        "keys_misplaced": lambda: examples.misplaced(keys),
        "sequencer_inversions": lambda: examples.early(judged),
        "chain_gaps": lambda: examples.broken(gaps),
        **numbered.shown,
    }
    return _findings(topic, _Seen(log, counts, shown, measured))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a topic's records show: their log, counts and measurements, and for each count what picks its examples."""

    log: counting.Log
    counts: dict[str, int]
    shown: Mapping[str, Callable[[], tuple[Example, ...]]]
    measured: Measured


def _findings(topic: _Topic, seen: _Seen, run: Run | None = None, mean_gap_us: float = 0.0) -> Findings:
    """The verdict on what was seen. `mean_gap_us` is the mean time between two events of the run."""
    question, counts, measured = topic.question, seen.counts, seen.measured
    question.tell("picking examples")
    found = judge(counts, measured.latencies.get(series.LATENESS), mean_gap_us, question.rules)
    window, rules = question.window, question.rules
    verdict = Verdict(
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
            "duplicates": rules.duplicates,
            "foreign": rules.foreign,
            "max_lateness_us": rules.lateness_us,
            "max_lateness_share": rules.lateness_share,
        },
        counts=counts,
        examples={name: pick() for name, pick in seen.shown.items() if counts[name]},
        latencies=measured.latencies,
        caveats=caveats(run.target if run else None, counts),
    )
    return Findings(verdict, measured.series, topic.frozen.is_quiet)


def _gaps(topic: _Topic, elsewhere: DataFrame | None = None) -> DataFrame:
    links = chain.links(_placed(topic, elsewhere), topic.letters)
    return chain.gaps(links).filter(topic.question.window.holds())


def _placed(topic: _Topic, elsewhere: DataFrame | None) -> DataFrame:
    """The records that tell where their entries and the next ones are."""
    found = topic.records if elsewhere is None else topic.records.union(elsewhere)
    placed = F.col("shard").isNotNull() & F.col("turn").isNotNull() & F.col("next_turn").isNotNull()
    placed &= ~F.col("problem").eqNullSafe(NOT_BEHIND)  # which would lead to itself
    return found.filter(placed)


@dataclass(frozen=True)
class _Numbers:
    """What is wrong with the numbers of a topic: counts, and what picks the examples of each."""

    counts: dict[str, int]
    shown: Mapping[str, Callable[[], tuple[Example, ...]]]


def _numbers(topic: _Topic, numbered: int, elsewhere: DataFrame | None = None) -> _Numbers:
    """Judges the numbers of a topic of which `numbered` records have one."""
    names = ("number_gaps", "number_gaps_explained", "numbers_repeated", "numbers_torn", "numbers_inverted")
    if not numbered:
        return _Numbers({"numbered": 0, **dict.fromkeys(names, 0)}, {})
    topic.question.tell("looking for gaps in the numbers")
    placed, holds = _placed(topic, elsewhere), topic.question.window.holds()
    every = numbers.entries(placed, topic.letters)
    judged, repeated = every.filter(holds), numbers.repeated(every).filter(holds)
    gaps = numbers.gaps(placed, topic.letters).filter(holds)
    wrong, missing = counting.row(counting.count_numbers(judged)), counting.row(counting.count_gaps(gaps))
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
    return _Numbers({"numbered": numbered, **dict(zip(names, found, strict=True))}, shown)


def _marks(rows: DataFrame, axis: Axis, counts: Mapping[str, int]) -> list[Mark]:
    """The first inversions and copies, by the time of their records."""
    found: list[Mark] = []
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
        found += [Mark(row.t_us, kind, row.depth) for row in first.collect()]  # type: ignore[arg-type]  # of the two
    return found


# ---------------------------------------------------------------------------------------------------------- Spark


def _kept(kept: ExitStack, frame: DataFrame) -> DataFrame:
    """The same rows, computed once and kept on disk until the job is done."""
    found = frame.persist(StorageLevel.DISK_ONLY)
    kept.callback(found.unpersist)
    return found


@contextmanager
def _sized(spark: SparkSession, rows: int) -> Iterator[None]:
    """Sets enough tasks after each shuffle that none has too much to sort. Times are written in UTC."""
    key, zone = "spark.sql.shuffle.partitions", "spark.sql.session.timeZone"
    before = {name: spark.conf.get(name) for name in (key, zone)}
    spark.conf.set(key, str(max(int(before[key] or 1), -(-rows // ROWS_A_TASK))))
    spark.conf.set(zone, "UTC")
    try:
        yield
    finally:
        for name, value in before.items():
            assert value is not None
            spark.conf.set(name, value)
