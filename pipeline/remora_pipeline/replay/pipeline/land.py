"""The job of `remora pipeline land`: Kafka to Parquet, each event once."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import FrameType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from remora.model.errors import RemoraError
from remora_pipeline.replay.errors import ReplayError, ReplayRefused, named_by_path
from remora_pipeline.replay.kafka_source import KafkaSource, Offsets, beginnings, first_far, read
from remora_pipeline.replay.paths import location
from remora_pipeline.replay.patience import patiently
from remora_pipeline.replay.pipeline.checkpoint import named, offsets_of, reached, refuse_gone
from remora_pipeline.replay.pipeline.columns import PARSED
from remora_pipeline.replay.pipeline.directory import Commit, LandedDirectory, Staged
from remora_pipeline.replay.pipeline.frames import kept_aside, landed, notifications
from remora_pipeline.replay.pipeline.spark import rows, writing
from remora_pipeline.replay.session import reason, session
from remora_pipeline.replay.topic_identity import identify

LOOK_S = 1
"""How soon a stop is heard of."""

PATIENCE_S = 60.0
"""How long brokers may be away while a batch is made, which is what Kafka's own clients allow."""


@dataclass(frozen=True)
class LandingPlan:
    """What lands where. `interval` is Spark's, None to land what is there and end; `batch` counts Kafka's records."""

    source: KafkaSource
    out: Path
    checkpoint: Path
    interval: str | None = None
    batch: int = 500_000
    skip_lost: bool = False


def land(
    plan: LandingPlan,
    *,
    master: str | None = None,
    told: Callable[[Commit], None] = lambda _: None,
    noted: Callable[[str], None] = lambda _: None,
    stop: Event | None = None,
) -> Commit:
    """Land what is there, or go on until `stop` is set; gives what has landed in all. `told` is called with each batch,
    and `noted` with what of the topic can no longer land.

    With `stop` given, SIGINT and SIGTERM set it while Spark runs, which needs the main thread.

    Raises ReplayRefused where folder, checkpoint and topic do not belong together or records are gone that were not
    landed, and ReplayError for what fails on the way. However it ends, it can be run again.
    """
    directory = LandedDirectory(plan.out)
    identity = asyncio.run(identify(plan.source))
    with named_by_path(plan.out):
        directory.refuse_others()
        with directory.locked():
            directory.bind(plan.checkpoint, plan.source.topic, identity.topic_id, identity.cluster)
            if directory.commit().batch < 0:
                for number, first in sorted(beginnings(plan.source).items()):
                    if first:
                        where = f"topic {plan.source.topic}: partition {number} begins with offset {first}"
                        noted(f"{where}: what Kafka had before is gone")
            directory.recover()
            _see_what_is_left(plan, directory)
            with session("pipeline land", master=master, kafka=True) as spark, writing(spark):
                _stream(spark, plan, _Sink(plan, directory, told), stop)
        return directory.commit()


def _see_what_is_left(plan: LandingPlan, directory: LandedDirectory) -> None:
    """Raise ReplayRefused where Kafka no longer has what lands next."""
    batch = directory.commit().batch
    if batch < 0 or plan.skip_lost:
        return
    try:
        landed = reached(plan.checkpoint, plan.source.topic, batch)
    except ReplayError:  # an older checkpoint, which Spark goes on with and `has` then refuses
        return
    refuse_gone(plan.source.topic, landed, beginnings(plan.source))


def _stream(spark: SparkSession, plan: LandingPlan, sink: _Sink, stop: Event | None) -> None:
    writer = (
        _source(spark, plan)
        .writeStream.queryName("remora-land")
        .option("checkpointLocation", location(plan.checkpoint))
        .foreachBatch(sink.land)
    )
    trigger = writer.trigger(processingTime=plan.interval) if plan.interval else writer.trigger(availableNow=True)
    try:
        query = trigger.start()
        try:
            with hearing_signals(stop):
                while not query.awaitTermination(LOOK_S) and not (stop and stop.is_set()):
                    pass
        finally:
            _stop(query)
    except StreamingQueryException as exc:
        raise sink.failure or sink.explained(exc) or exc from exc


@contextmanager
def hearing_signals(stop: Event | None) -> Iterator[None]:
    """Signals set the event while the block runs: raised out of a call to the JVM, they would break its connection."""
    if stop is None:
        yield
        return

    def hear(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(query: StreamingQuery) -> None:
    try:
        query.stop()
    except (Py4JError, ConnectionError):  # the JVM has gone first; nothing of the query is left
        return


def _source(spark: SparkSession, plan: LandingPlan) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": plan.source.bootstrap,
        "subscribe": plan.source.topic,
        "startingOffsets": "earliest",
        "kafka.isolation.level": plan.source.isolation,
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(plan.batch),
        "failOnDataLoss": str(not plan.skip_lost).lower(),
    }
    secured = {f"kafka.{key}": value for key, value in plan.source.security.items()}
    return spark.readStream.format("kafka").options(**options, **secured).load()


class _Sink:
    """Lands one batch after the other; `failure` is what went wrong in it, which Spark tells as a text only."""

    def __init__(self, plan: LandingPlan, directory: LandedDirectory, told: Callable[[Commit], None]) -> None:
        self._plan, self._directory, self._told = plan, directory, told
        self.failure: RemoraError | None = None

    def land(self, frame: DataFrame, batch: int) -> None:
        """What Spark calls for each batch, again with the same number where it did not come to its end."""
        try:
            if not self._directory.has(batch):
                staged = self._staged(self._readable(frame, batch), batch)
                # A topic that was made again gives its own records for these offsets.
                self._see_the_topic(patience_s=PATIENCE_S)
                self._told(self._directory.land(batch, staged))
        except RemoraError as exc:
            self.failure = exc
            raise
        except (PySparkException, Py4JError, OSError) as exc:
            self.failure = self.explained(exc) or ReplayError(f"{self._where(batch)}: {reason(exc)}")
            raise

    def explained(self, exc: Exception) -> ReplayError | None:
        """What is to be mended, where Spark's failure is one that operators meet.

        A topic that was made again fails in many ways, and none of them says so.
        """
        try:
            self._see_the_topic()
        except ReplayRefused as other:
            return other
        except ReplayError:  # the brokers are away, which the failure itself says better
            pass
        return explained(exc, self._plan)

    def _see_the_topic(self, patience_s: float = 0.0) -> None:
        """Raise ReplayRefused where the name stands for another topic than the one that lands here."""
        plan = self._plan
        identity = patiently(lambda: identify(plan.source), patience_s)
        self._directory.see(plan.source.topic, identity.topic_id, identity.cluster)

    def _readable(self, frame: DataFrame, batch: int) -> DataFrame:
        """The batch; read anew where it has a record that Spark's connector cannot read."""
        plan = self._plan
        if not (far := first_far(plan.source, PATIENCE_S)):
            return frame
        offsets = self._offsets(batch, PATIENCE_S)
        if not any(number in far and far[number] < end for number, (_, end) in offsets.items()):
            return frame
        return read(frame.sparkSession, plan.source, offsets, may_be_gone=plan.skip_lost)

    def _offsets(self, batch: int, patience_s: float = 0.0) -> Offsets:
        return offsets_of(
            self._plan.checkpoint, self._plan.source.topic, batch, beginnings(self._plan.source, patience_s)
        )

    def _where(self, batch: int) -> str:
        try:
            told = named(self._offsets(batch))
        except RemoraError:
            told = "its offsets are not known"
        return f"topic {self._plan.source.topic}, batch {batch} ({told})"

    def _staged(self, frame: DataFrame, batch: int) -> Staged:
        staging = self._directory.staging()
        parsed = notifications(frame).select(*PARSED.names).persist()
        try:
            for table, folders, part in (
                ("events", ["day", "bucket_dir"], landed(parsed, batch)),
                ("bad", ["day"], kept_aside(parsed, batch)),
            ):
                with writing(frame.sparkSession):
                    part.write.partitionBy(*folders).parquet(location(staging / table))
        finally:
            with suppress(Py4JError, ConnectionError):  # the JVM may have gone
                parsed.unpersist()
        return Staged(staging, rows(staging / "events"), rows(staging / "bad"))


_GONE = re.compile(
    r"KAFKA_DATA_LOSS|data may have been (missed|lost)|Some data may have been lost|failOnDataLoss|OffsetOutOfRange"
)
_NO_TOPIC = re.compile(r"UnknownTopicOrPartitionException|UNKNOWN_TOPIC_OR_PARTITION|does not host this topic")
_NO_BROKER = re.compile(r"TimeoutException|bootstrap\.servers|DisconnectException|Timed out waiting")


def explained(exc: Exception, plan: LandingPlan) -> ReplayError | None:
    """What is to be mended, where Spark's failure is one that operators meet."""
    text = str(exc)
    if _GONE.search(text):
        return ReplayRefused(
            f"topic {plan.source.topic}: records that have not landed are gone; what is left lands with --skip-lost:"
            f" {_line(text, _GONE)}"
        )
    if _NO_TOPIC.search(text):
        return ReplayRefused(f"topic {plan.source.topic}: there is none at {plan.source.bootstrap}")
    if _NO_BROKER.search(text):
        return ReplayError(f"{plan.source.bootstrap}: the brokers do not answer")
    return None


def _line(text: str, pattern: re.Pattern[str]) -> str:
    return next((line.strip()[:300] for line in text.splitlines() if pattern.search(line)), "")
