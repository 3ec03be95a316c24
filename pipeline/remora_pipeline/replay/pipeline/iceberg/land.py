"""The job of `remora pipeline land --table iceberg`: Kafka to a journal, each event once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event

import msgspec
from py4j.protocol import Py4JError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.kafka_source import UNCOMMITTED, KafkaSource, Offsets, read, spans
from remora_pipeline.replay.patience import patiently
from remora_pipeline.replay.pipeline.checkpoint import named, refuse_cut, refuse_gone
from remora_pipeline.replay.pipeline.columns import BAD
from remora_pipeline.replay.pipeline.frames import kept_aside, landed, notifications
from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress, made, told_as
from remora_pipeline.replay.pipeline.iceberg.commits import LandedOffsets, append, landed_in
from remora_pipeline.replay.pipeline.iceberg.files import write
from remora_pipeline.replay.pipeline.iceberg.offsets import next_offsets
from remora_pipeline.replay.pipeline.iceberg.tables import ASIDE, EVENTS, FORMS, journal_rows, lake_rows
from remora_pipeline.replay.pipeline.land import PATIENCE_S, hearing_signals
from remora_pipeline.replay.pipeline.spark import writing
from remora_pipeline.replay.session import reason, session
from remora_pipeline.replay.topic_identity import TopicIdentity, identify

_TOPIC, _TOPIC_ID, _CLUSTER = "remora.topic", "remora.topic-id", "remora.cluster"


@dataclass(frozen=True)
class LakePlan:
    """What lands where. `interval_s` is None to land what is there and end; `batch` counts Kafka's records."""

    source: KafkaSource
    lake: LakeAddress
    interval_s: float | None = None
    batch: int = 500_000
    skip_lost: bool = False


@dataclass(frozen=True)
class _Tables:
    """The tables of a landing."""

    events: Table
    aside: Table


@dataclass(frozen=True)
class _Batch:
    """What lands next. `is_aside_there` where a run that was killed has committed what was kept aside of it."""

    offsets: Offsets
    before: LandedOffsets
    is_aside_there: bool = False


def land_in_lake(
    plan: LakePlan,
    *,
    master: str | None = None,
    told: Callable[[LandedOffsets], None] = lambda _: None,
    stop: Event | None = None,
) -> tuple[LandedOffsets, LandedOffsets]:
    """Land what is there, or go on until `stop` is set; gives what had landed before, and what has by now.

    `told` is called with each batch. Raises ReplayRefused where tables and topic do not belong together, where records
    are gone that were not landed, and where another process lands into the same tables; ReplayError for what fails on
    the way. However it ends, it can be run again.
    """
    identity = asyncio.run(identify(plan.source))
    catalog = plan.lake.connected()
    own = {_TOPIC: plan.source.topic, _TOPIC_ID: identity.topic_id or "", _CLUSTER: identity.cluster or ""}
    tables = _Tables(*(made(catalog, plan.lake, name, FORMS[name], own) for name in (EVENTS, ASIDE)))
    for name, table in ((EVENTS, tables.events), (ASIDE, tables.aside)):
        _refuse_another(plan, table, name, identity)
    before = landed_in(tables.events)
    last = None if plan.interval_s is not None else _ends(spans(plan.source))
    with told_as(plan.lake.uri):
        if _next(plan, tables, last) is None and plan.interval_s is None:
            return before, before  # and Spark takes long to start
    with (
        session("pipeline land", master=master, kafka=True) as spark,
        writing(spark),
        hearing_signals(stop),
        told_as(plan.lake.uri),
    ):
        while not (stop and stop.is_set()):
            if (batch := _next(plan, tables, last)) is not None:
                told(_land(spark, plan, tables, batch))
            elif plan.interval_s is None:
                break
            if plan.interval_s is not None:
                (stop or Event()).wait(plan.interval_s)
    return before, landed_in(tables.events)


def _refuse_another(plan: LakePlan, table: Table, name: str, identity: TopicIdentity) -> None:
    whose, found = plan.lake.named(name), table.properties
    if found.get(_TOPIC) != plan.source.topic:
        raise ReplayRefused(f"{whose}: holds the events of topic {found.get(_TOPIC)}, not of {plan.source.topic}")
    if (cluster := found.get(_CLUSTER)) and identity.cluster and cluster != identity.cluster:
        raise ReplayRefused(f"{whose}: holds the events of {plan.source.topic} of another Kafka cluster ({cluster})")
    if (topic_id := found.get(_TOPIC_ID)) and identity.topic_id and topic_id != identity.topic_id:
        raise ReplayRefused(
            f"{whose}: topic {plan.source.topic} was removed and made again since; choose another --namespace for it"
        )


def _next(plan: LakePlan, tables: _Tables, last: Mapping[int, int] | None) -> _Batch | None:
    """The next batch; None where all has landed. Raises ReplayRefused where records are gone."""
    tables.events.refresh()
    tables.aside.refresh()
    before, aside = landed_in(tables.events), landed_in(tables.aside)
    there = spans(plan.source, PATIENCE_S)
    first = {number: begin for number, (begin, _) in there.items()}
    if not plan.skip_lost:
        refuse_gone(plan.source.topic, before.ends, first)
        if any(end < before.ends.get(number, 0) for number, (_, end) in there.items()):
            # Not behind an open transaction, where other readers end.
            whole = replace(plan.source, isolation=UNCOMMITTED)
            refuse_cut(plan.source.topic, before.ends, _ends(spans(whole, PATIENCE_S)))
    # Killed between its two commits: the same records once more. Of a journal that was rolled back there may be none.
    if aside.batch > before.batch and (again := next_offsets(before.ends, first, aside.ends, sys.maxsize)):
        return _Batch(again, before, is_aside_there=True)
    offsets = next_offsets(before.ends, first, last or _ends(there), plan.batch)
    return _Batch(offsets, before) if offsets else None


def _ends(offsets: Offsets) -> dict[int, int]:
    return {number: end for number, (_, end) in offsets.items()}


def _land(spark: SparkSession, plan: LakePlan, tables: _Tables, batch: _Batch) -> LandedOffsets:
    """Land a batch: what is kept aside first, by which a run that goes on behind a kill knows the batch again."""
    number, aside_before = batch.before.batch + 1, landed_in(tables.aside)
    events, aside = _written(spark, plan, tables, batch)
    _see_the_topic(plan, tables)
    after = LandedOffsets(
        number,
        {**batch.before.ends, **_ends(batch.offsets)},
        batch.before.events + sum(file.record_count for file in events),
        batch.before.bad + sum(file.record_count for file in aside),
    )
    if batch.is_aside_there:
        after = msgspec.structs.replace(after, bad=aside_before.bad)
    elif aside:
        append(tables.aside, aside, aside_before, after)
    append(tables.events, events, batch.before, after)
    return after


def _written(
    spark: SparkSession, plan: LakePlan, tables: _Tables, batch: _Batch
) -> tuple[list[DataFile], list[DataFile]]:
    """The files of a batch, of events and of what is kept aside; they belong to no table yet."""
    number = batch.before.batch + 1
    parsed = notifications(read(spark, plan.source, batch.offsets, may_be_gone=plan.skip_lost)).persist()
    try:
        events = write(journal_rows(landed(parsed, number)), tables.events)
        return events, [] if batch.is_aside_there else write(lake_rows(kept_aside(parsed, number), BAD), tables.aside)
    except (PySparkException, Py4JError, OSError) as exc:
        _see_the_topic(plan, tables)  # one that was made again fails in many ways, and none says so
        raise ReplayError(f"topic {plan.source.topic}, batch {number} ({named(batch.offsets)}): {reason(exc)}") from exc
    finally:
        with suppress(Py4JError, ConnectionError):  # the Java may have gone
            parsed.unpersist()


def _see_the_topic(plan: LakePlan, tables: _Tables) -> None:
    """Raise ReplayRefused where another topic has the name by now, which gives its own records for these offsets."""
    identity = patiently(lambda: identify(plan.source), PATIENCE_S)
    _refuse_another(plan, tables.events, EVENTS, identity)
