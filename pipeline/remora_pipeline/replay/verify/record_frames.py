"""What a verification reads: the journals and the trace of a run, and a topic between fixed offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from remora_pipeline.replay import layout
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.kafka_source import UNCOMMITTED, KafkaSource, read
from remora_pipeline.replay.layout import PreparedDirectory, ReplayRun, RunDirectory
from remora_pipeline.replay.paths import pattern
from remora_pipeline.replay.prepared import read_events
from remora_pipeline.replay.run.journal import is_cut, is_written, journals
from remora_pipeline.replay.shape import JOURNAL, PUT
from remora_pipeline.replay.verify import chain, kafka, seams
from remora_pipeline.replay.verify.deletes import with_deletes
from remora_pipeline.replay.verify.kafka import FreezeWait, Frozen
from remora_pipeline.replay.verify.question import JudgedWindow, Question
from remora_pipeline.replay.verify.records import positions_of_headers, records

ROWS_A_TASK = 300_000
"""The records that one task sorts at a time; more spill to disk."""

_LEAST_A_TASK = 20_000
"""Fewer records are not worth a task of their own on a cluster."""

SMALL = 100_000
"""Records that are worked through before the code for them would be compiled."""

_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@dataclass(frozen=True)
class FrozenTopic:
    """A topic between fixed offsets, its `size` records among them, the dead letters beside it, and where its shards
    ended (seams.ends_of_file); `undecided` are the records behind open transactions. These are None without any.
    `keep` is kept_on_disk for as long as the topic is judged."""

    question: Question
    frozen: Frozen
    records: DataFrame
    letters: DataFrame | None
    ended: DataFrame | None
    size: int
    undecided: DataFrame | None
    keep: Callable[[DataFrame], DataFrame]


def opened(spark: SparkSession, question: Question, enough: int, kept: ExitStack) -> FrozenTopic:
    """The records between offsets that are fixed now. What came last in a topic that is alive is not judged."""
    source, window = question.source, question.window
    question.tell(f"waiting until all has come to {source.topic}")
    if question.recalled is not None:
        frozen = kafka.recall(source, question.recalled)
    else:
        frozen = _frozen(source, window, replace(question.patience, enough=enough))
    if not frozen.is_quiet and not enough:
        question = replace(question, window=replace(window, to_us=int(time.time() * 1e6) - window.edge_us))
    size = sum(end - first for first, end in frozen.offsets.values())
    if not enough:  # without a run nothing was known of the size before
        kept.enter_context(sized(spark, size))
    found = kept_on_disk(kept, records(read(spark, source, frozen.offsets)))
    letters = _letters(spark, question)
    ended = None if question.ended is None else seams.ends_of_file(spark, question.ended)
    question.tell(f"reading {size:,} records of {source.topic}")
    undecided = _undecided(spark, question, frozen, kept)
    return FrozenTopic(question, frozen, found, letters, ended, size, undecided, partial(kept_on_disk, kept))


def frozen_now(source: KafkaSource, window: JudgedWindow) -> Frozen:
    """The records that a verification would read now, without waiting for more. Raises ReplayError."""
    return _frozen(source, window, FreezeWait(0, 0, 0))


def _frozen(source: KafkaSource, window: JudgedWindow, patience: FreezeWait) -> Frozen:
    first = None if window.from_us is None else window.from_us - window.edge_us
    last = None if window.to_us is None else window.to_us + window.edge_us
    return kafka.freeze(source, first, last, patience)


def _undecided(spark: SparkSession, question: Question, frozen: Frozen, kept: ExitStack) -> DataFrame | None:
    if not frozen.undecided:
        return None
    every = replace(question.source, isolation=UNCOMMITTED)
    return kept_on_disk(kept, records(read(spark, every, frozen.undecided)))


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
    offsets = kafka.freeze(source, None, None, FreezeWait(0, 0, 0)).offsets
    return positions_of_headers(read(spark, source, offsets)).select(*chain.LETTERS)


def see_trace(run: ReplayRun) -> PreparedDirectory:
    """The trace that was replayed. Raises ReplayRefused where it was prepared anew since."""
    prepared = PreparedDirectory(Path(run.prepared))
    if layout.read(prepared.trace, layout.Trace) != run.trace:
        raise ReplayRefused(f"{prepared.path}: is not what was replayed: it was prepared anew")
    return prepared


def events_of(spark: SparkSession, run: ReplayRun) -> DataFrame:
    """The events of the trace that was replayed. Raises ReplayRefused where it was prepared anew since."""
    events = read_events(spark, see_trace(run))
    cap = run.options.get("size_cap")
    if run.target != "s3" or not isinstance(cap, int):
        return events
    # What was sent to a gateway is cut to a size, and other operations than a plain write may bring another one.
    sent = F.when(F.col("op") == PUT, F.least("size", F.lit(cap)))
    return events.select(*[sent.alias(name) if name == "size" else F.col(name) for name in events.columns])


def see_journals(directory: RunDirectory) -> list[Path]:
    """The journals of a run that has ended. Raises ReplayRefused where there are none, or one is still written."""
    found = journals(directory)
    if not found:
        raise ReplayRefused(f"{directory.journal}: there are no journals")
    for path in found:
        if is_written(path):
            raise ReplayRefused(f"{path}: is still written: wait until the replay has ended")
    return found


def journal_of(spark: SparkSession, directory: RunDirectory) -> DataFrame:
    """All journals as one table. A line that was cut off at the end of a file proves nothing, and is passed over."""
    found = see_journals(directory)
    schema = StructType([*JOURNAL.fields, StructField("broken", StringType())])
    reader = (
        spark.read.schema(schema).option("columnNameOfCorruptRecord", "broken").option("recursiveFileLookup", "true")
    )
    journal = reader.json([pattern(path) for path in found]).select("*", F.col("_metadata.file_path").alias("file"))
    broken = journal.filter("broken is not null").groupBy("file").agg(F.count("kind"), F.count("broken").alias("lines"))
    for row in broken.collect():
        path = Path(unquote(urlsplit(row.file).path))
        if row.lines > 1 or not is_cut(path):
            raise ReplayRefused(f"{path}: has a line that is none of a journal's")
    return journal


def named_and_others(
    found: DataFrame, expected: DataFrame, run: ReplayRun, is_judged: Column
) -> tuple[DataFrame, DataFrame]:
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
        "turn", "place", is_id.alias("is_id"), "is_keyed", "event_us", "digest", "has_id", "number",
    )  # fmt: skip
    return named, found.filter(~is_named)


def kept_on_disk(kept: ExitStack, frame: DataFrame) -> DataFrame:
    """The same rows, computed once and kept on disk until the job is done."""
    found = frame.persist(StorageLevel.DISK_ONLY)
    kept.callback(found.unpersist)
    return found


@contextmanager
def sized(spark: SparkSession, rows: int) -> Iterator[None]:
    """Sets what suits so many rows: the tasks after each shuffle, and whether code is compiled. Times are in UTC."""
    key = "spark.sql.shuffle.partitions"
    context = spark.sparkContext
    told = context.getConf().get(key)  # Spark's own default is none that anybody chose
    number = tasks(rows, context.defaultParallelism, int(told) if told else None)
    wanted = {key: str(number), "spark.sql.session.timeZone": "UTC"}
    if rows <= SMALL:
        wanted |= _INTERPRETED
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            assert old is not None
            spark.conf.set(name, old)


def tasks(rows: int, slots: int, least: int | None) -> int:
    """Into how many tasks a shuffle divides its rows, where `slots` run at a time: enough that none has too much to
    sort, and at most as many as have something to do. `least` is what somebody set."""
    busy = min(slots, -(-rows // _LEAST_A_TASK)) if least is None else least
    return max(1, busy, -(-rows // ROWS_A_TASK))
