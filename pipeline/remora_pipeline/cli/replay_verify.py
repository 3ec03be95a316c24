"""`remora replay verify`: what of a replay, or of a topic, has arrived in Kafka."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from remora.cli.options import (
    FILE,
    FOLDER,
    NEW_FOLDER,
    gathered_into,
    instant,
    json_option,
    kafka_config_option,
    master_option,
    memory_option,
    seconds,
)
from remora.cli.output import print_json, print_line, print_table
from remora.cli.steps import SILENT_S, told
from remora.model.exits import Exit
from remora.model.words import several
from remora_pipeline.replay import layout, properties
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.kafka_source import COMMITTED, UNCOMMITTED, KafkaSource
from remora_pipeline.replay.layout import ReplayRun, RunDirectory
from remora_pipeline.replay.loop import ReplayLoop
from remora_pipeline.replay.results import FAIL, INVALID, TopicVerdict
from remora_pipeline.replay.session import session
from remora_pipeline.replay.spark_stages import running_stage
from remora_pipeline.replay.verify.first_look import see_files, see_topics
from remora_pipeline.replay.verify.job import verify_run, verify_topic
from remora_pipeline.replay.verify.judgement import VerdictRules
from remora_pipeline.replay.verify.kafka import FreezeWait, Frozen
from remora_pipeline.replay.verify.question import Findings, JudgedWindow, Question
from remora_pipeline.replay.verify.record_frames import SMALL, frozen_now

_CODES = {FAIL: 3, INVALID: 4}

_COUNTED_FIRST = (
    "in_trace", "offered", "sent", "acked", "rejected", "unknown", "dropped", "in_kafka", "outside", "distinct",
)  # fmt: skip


def _duration(name: str, default: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    variable = name.removeprefix("--").replace("-", "_") + "_s"
    return click.option(
        name, variable, metavar="DURATION", default=default, show_default=True, callback=seconds, help=text
    )


@dataclass(frozen=True, slots=True)
class _VerifyOptions:
    """The options of `remora replay verify`."""

    bootstrap: str
    topic: str | None
    from_us: int | None
    to_us: int | None
    since_s: float | None
    isolation: str | None
    duplicates: Literal["fail", "count"] | None
    foreign: Literal["fail", "count"]
    letters: str | None
    ended: Path | None
    earlier: Path | None
    settle_s: float
    wait_s: float
    edge_s: float
    max_lateness_s: float
    max_lateness_share: float
    out: Path | None
    kafka_config: Path | None
    master: str | None
    memory: str
    draws: bool
    is_dry: bool
    as_json: bool


@click.command()
@click.argument("run", required=False, type=FOLDER)
@click.option("--bootstrap", metavar="HOST:PORT,...", required=True, help="Kafka's brokers.")
@click.option("--topic", help="The topic in Kafka.  [default: where the daemon delivers the events of RUN]")
@click.option(
    "--from",
    "from_us",
    metavar="TIME",
    callback=instant,
    help="Judge records from this time on, by Kafka's stamps; UTC without a zone.  [default: when RUN began, or all]",
)
@click.option("--to", "to_us", metavar="TIME", callback=instant, help="Judge records before this time.  [default: all]")
@click.option(
    "--since", "since_s", metavar="DURATION", callback=seconds, help="The same as --from, this long before now: 24h."
)
@click.option(
    "--isolation",
    type=click.Choice([COMMITTED, UNCOMMITTED]),
    help="Isolation level of the consumer; read_uncommitted includes records of aborted transactions."
    "  [default: read_committed]",
)
@click.option(
    "--duplicates",
    type=click.Choice(["fail", "count"]),
    help="What copies do.  [default: fail where --isolation read_committed is given, else count]",
)
@click.option(
    "--foreign",
    type=click.Choice(["fail", "count"]),
    default="fail",
    show_default=True,
    help="What records of other origin do; count, where others write to the topic too.",
)
@click.option(
    "--dead-letters",
    "letters",
    metavar="FILE|TOPIC",
    help="What `remora dlq list --json` wrote, or remora's dead-letter topic: they explain gaps in the chain.",
)
@click.option(
    "--ended",
    type=FILE,
    help="What `remora topic show TOPIC --json` wrote: where shards ended, for records that name a generation only.",
)
@click.option("--offsets", "earlier", type=FILE, help="An earlier verdict.json: judge the same offsets again.")
@_duration("--settle", "5s", "Fix the ends of the partitions after this long without a new record.")
@_duration("--wait", "60s", "Wait at most this long for acknowledged events, and as long for the topic to settle.")
@_duration("--edge", "60s", "Read this much before and behind the judged records, to know their neighbours.")
@_duration("--max-lateness", "5ms", "A generator that was later, at p99, makes the run invalid.")
@click.option(
    "--max-lateness-share",
    type=click.FloatRange(min=0),
    default=0.1,
    show_default=True,
    help="The same as a share of the mean gap between events, where that is 20 ms or more.",
)
@click.option(
    "--out",
    type=NEW_FOLDER,
    help="Where verify/verdict.json and verify/series.json go.  [default: RUN]",
)
@kafka_config_option
@master_option
@memory_option
@click.option(
    "--no-series",
    "draws",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Leave out what only the report needs: faster.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would be read, and judge nothing.")
@json_option
@gathered_into(_VerifyOptions)
def verify(run: Path | None, asked: _VerifyOptions) -> None:
    """Read Kafka back and say what of RUN arrived: PASS, FAIL or INVALID.

    It counts acknowledged events that are missing (lost); records that occur twice (duplicates), disagree with their
    event (altered), belong to none (foreign), or stand behind later ones of their key (inversions); keys in several
    partitions, in another than their own, or with another final state; and gaps in the chain of positions that
    remora's records carry. Without RUN, a topic alone: its chain, order and
    copies. Nothing is changed.

    The ends of the partitions are fixed once, when all acknowledged events have arrived and nothing else comes. With
    --offsets the command judges the same ones again, and the verdict is the same byte for byte.

    Exit code 0 is PASS, 3 FAIL, 4 INVALID (the generator was late or cut short, or nothing is proven).

    \b
    Examples:
      remora replay verify run-1 --bootstrap broker:9092
      remora replay verify run-1 --bootstrap broker:9092 --isolation read_committed
      remora replay verify --topic photos --since 24h --bootstrap broker:9092 --dead-letters file.json
    """
    if run is None and asked.topic is None:
        raise click.UsageError("say which: RUN, the directory of a replay, or --topic for a topic alone")
    window, recalled = _window(asked)
    question = Question(
        source=KafkaSource(
            bootstrap=asked.bootstrap,
            topic=asked.topic or (_kafka_topic(RunDirectory(run)) if run else ""),
            isolation=asked.isolation or COMMITTED,
            security=properties.read(asked.kafka_config) if asked.kafka_config else {},
        ),
        window=window,
        patience=FreezeWait(0, asked.settle_s, asked.wait_s),
        recalled=recalled,
        letters=asked.letters,
        rules=VerdictRules(
            duplicates=asked.duplicates or ("fail" if asked.isolation == COMMITTED else "count"),
            foreign=asked.foreign,
            lateness_us=int(asked.max_lateness_s * 1_000_000),
            lateness_share=asked.max_lateness_share,
        ),
        ended=asked.ended,
        draws=asked.draws,
    )
    see_files(question, RunDirectory(run) if run else None)
    if asked.is_dry:
        _say_what_would_be_read(question, run)
        return
    with told(far=running_stage) as tell:
        tell(f"looking for topic {question.source.topic} at {question.source.bootstrap}")
        with _quiet("aiokafka"):
            # Spark takes long to start, and nothing can be judged without the topic.
            light = see_topics(question) <= SMALL
        if (directory := asked.out or run) is not None:
            layout.see_folder(RunDirectory(directory).verdict.parent)
        tell("starting Spark")
        question = replace(question, tell=tell)
        with (
            _quiet("aiokafka"),
            session("replay verify", master=asked.master, kafka=True, light=light, memory=asked.memory) as spark,
        ):
            found = verify_run(spark, RunDirectory(run), question) if run else verify_topic(spark, question)
    if directory is not None:
        files = RunDirectory(directory)
        if found.series is not None:
            layout.write(files.series, found.series)
        layout.write(files.verdict, found.verdict)
    _show(found, as_json=asked.as_json)
    sys.exit(_CODES.get(found.verdict.verdict, Exit.OK))


def _kafka_topic(run: RunDirectory) -> str:
    """Where the events of a run went in Kafka; remora's own topic is called so, too, where the run does not know."""
    told_of = layout.read(run.run, ReplayRun)
    return told_of.kafka_topic or told_of.topic


def _say_what_would_be_read(question: Question, run: Path | None) -> None:
    source, window = question.source, question.window
    since_us = layout.read(RunDirectory(run).run, ReplayRun).started_us if run else None
    with told(after_s=SILENT_S) as tell, _quiet("aiokafka"):
        tell(f"looking for topic {source.topic} at {source.bootstrap}")
        offsets = (question.recalled or frozen_now(source, window.opened_by(since_us))).offsets
    count = sum(end - first for first, end in offsets.values())
    print_line(f"{source.topic}: would read {several(count, 'record')}")
    for number, (first, end) in sorted(offsets.items()):
        if first < end:
            print_line(f"  partition {number}: offsets {first} to {end - 1}")


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Keep back what a library logs while the block runs: what it says of an error is in the error too."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _window(asked: _VerifyOptions) -> tuple[JudgedWindow, Frozen | None]:
    """The times that are judged, and the offsets of an earlier verdict where --offsets names one."""
    from_us, recalled = asked.from_us, None
    if asked.since_s is not None:
        if from_us is not None:
            raise click.UsageError("--since and --from say the same: give one of them")
        from_us = int((time.time() - asked.since_s) * 1_000_000)
    window = JudgedWindow(from_us, asked.to_us, int(asked.edge_s * 1_000_000))
    if asked.earlier is not None:
        if from_us is not None or asked.to_us is not None:
            raise click.UsageError("--offsets brings the times that are judged: leave --from, --to and --since out")
        recalled, window = _recalled(asked.earlier, asked.topic)
    if window.from_us is not None and window.to_us is not None and window.from_us >= window.to_us:
        raise click.UsageError("--to must be later than --from")
    return window, recalled


def _recalled(file: Path, topic: str | None) -> tuple[Frozen, JudgedWindow]:
    """The offsets of an earlier verdict, and what of them it judged."""
    verdict = layout.read(file, TopicVerdict)
    if topic is not None and verdict.topic != topic:
        raise ReplayRefused(f"{file}: is of the topic {verdict.topic}, and not of {topic}")
    try:
        times = msgspec.convert(verdict.options, type=_VerifyTimes)
        offsets, undecided = (
            {int(number): span for number, span in spans.items()} for spans in (verdict.offsets, verdict.undecided)
        )
    except (ValueError, msgspec.ValidationError) as exc:
        raise ReplayRefused(f"{file}: does not say what was judged: {exc}") from exc
    return Frozen(offsets, True, undecided), JudgedWindow(times.from_us, times.to_us, times.edge_us)


class _VerifyTimes(msgspec.Struct):
    from_us: int | None
    to_us: int | None
    edge_us: int


def _show(found: Findings, *, as_json: bool) -> None:
    verdict = found.verdict
    if not found.is_quiet:
        late = "is not judged" if verdict.run_id is None else "is missing below"
        print_line(f"remora: records still came when the ends were fixed, and what came later {late}", err=True)
    if as_json:
        print_json(msgspec.to_builtins(verdict))
        return
    print_line(f"{verdict.verdict}: {_headline(verdict)}")
    for reason in verdict.reasons:
        print_line(f"  {reason}")
    if verdict.loop is not None:
        print_line(f"  (loop: {ReplayLoop(verdict.loop, verdict.requests)})")
    for caveat in verdict.caveats:
        print_line(f"  (not known: {caveat})")
    print_line()
    names = [name for name in _COUNTED_FIRST if name in verdict.counts]
    names += [name for name in verdict.counts if name not in names]
    print_table(("COUNT", "NUMBER"), [(name.replace("_", " "), f"{verdict.counts[name]:,}") for name in names])
    print_line()
    if verdict.latencies:
        print_table(
            ("LATENCY", "SAMPLES", "P50", "P90", "P99", "P99.9", "MAX", "CLOCK"),
            [
                (name.replace("_", " "), f"{each.samples:,}", *(f"{us / 1000:,.3f}ms" for us in times), each.clock)
                for name, each in verdict.latencies.items()
                for times in (msgspec.structs.astuple(each)[2:],)
            ],
        )
        print_line()
    for name, examples in verdict.examples.items():
        print_line(f"{name.replace('_', ' ')}:")
        for example in examples:
            known = {key: value for key, value in msgspec.to_builtins(example).items() if value is not None}
            print_line(
                "  "
                + ", ".join(
                    f"{key} {ascii(value)[1:-1] if isinstance(value, str) and not value.isprintable() else value}"
                    for key, value in known.items()
                )
            )


def _headline(verdict: TopicVerdict) -> str:
    counts = verdict.counts
    of = several(counts["in_kafka"], "record")
    if "acked" in counts:
        of = several(counts["acked"], "acknowledged event")
    wrong = [("lost", "lost"), ("duplicates", "copies"), ("inversions", "out of order"), ("chain_gaps", "gaps")]
    found = ", ".join(f"{counts[name]:,} {text}" for name, text in wrong if name in counts)
    return f"{of} in {verdict.topic}: {found}"
