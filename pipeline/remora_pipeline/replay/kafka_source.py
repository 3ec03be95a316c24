"""A topic's records as Spark reads them, and the consumer on the driver that finds out from where to where.

Spark's own connector reads them. It has stamps in microseconds, and raises for a record whose own is too large for
that: from the first such record of a partition on, tasks read with a client of their own (far_stamps).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from pyspark.sql import DataFrame, SparkSession

from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.far_stamps import FIRST_FAR_MS, RECORDS, SPANS, reading
from remora_pipeline.replay.patience import patiently
from remora_pipeline.replay.properties import client_options

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"

Offsets = Mapping[int, tuple[int, int]]
"""For each partition the first offset and the one behind the last."""

_STALL_MS = "60000"


@dataclass(frozen=True)
class KafkaSource:
    """A topic, and how it is read. `security` has the settings of Kafka's own clients, for TLS and logins."""

    bootstrap: str
    topic: str
    isolation: str = COMMITTED
    security: Mapping[str, str] = field(default_factory=dict)


def read(spark: SparkSession, source: KafkaSource, offsets: Offsets, *, may_be_gone: bool = False) -> DataFrame:
    """The records between these offsets, as Spark's connector gives them; a read that falls short raises.

    With `may_be_gone` records that Kafka has removed are left out instead. Stamps that Spark cannot have become the
    latest one that it can.
    """
    near, far = _parted(offsets, first_far(source))
    frames = [_connected(spark, source, near, may_be_gone=may_be_gone)] if near or not far else []
    if far:
        spans = spark.createDataFrame([(number, *span) for number, span in sorted(far.items())], SPANS)
        read_far = reading(source.bootstrap, source.topic, source.isolation, dict(source.security), may_be_gone)
        frames.append(spans.repartition(len(far), "partition").mapInArrow(read_far, RECORDS))
    return frames[0] if len(frames) == 1 else frames[0].select(*RECORDS.names).union(frames[1])


def _parted(offsets: Offsets, firsts: Mapping[int, int]) -> tuple[Offsets, Offsets]:
    """The spans before and from the first far stamp of each partition."""
    near, far = {}, {}
    for number, (begin, end) in offsets.items():
        first = min(max(firsts.get(number, end), begin), end)
        if begin < first or first == end:
            near[number] = begin, first
        if first < end:
            far[number] = first, end
    return near, far


def _connected(spark: SparkSession, source: KafkaSource, offsets: Offsets, *, may_be_gone: bool) -> DataFrame:
    reader = spark.read.format("kafka")
    options = {
        "kafka.bootstrap.servers": source.bootstrap,
        "assign": json.dumps({source.topic: sorted(offsets)}),
        "startingOffsets": _as_json(source.topic, {number: first for number, (first, _) in offsets.items()}),
        "endingOffsets": _as_json(source.topic, {number: end for number, (_, end) in offsets.items()}),
        "includeHeaders": "true",
        "failOnDataLoss": str(not may_be_gone).lower(),
        "kafkaConsumer.pollTimeoutMs": _STALL_MS,
        "kafka.isolation.level": source.isolation,
    }
    for key, value in (options | {f"kafka.{key}": value for key, value in source.security.items()}).items():
        reader = reader.option(key, value)
    return reader.load()


def _as_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(number): offset for number, offset in sorted(offsets.items())}})


# ------------------------------------------------------------------------------------------- on the driver


def first_far(source: KafkaSource, patience_s: float = 0.0) -> dict[int, int]:
    """The first record of each partition whose stamp Spark's connector cannot have; of those that have one.

    Raises ReplayError when no broker answers for this long.
    """

    async def ask() -> dict[int, int]:
        # Transactions do not matter: the connector reads the records of aborted ones, too, before it leaves them out.
        async with consumer(source, isolation=UNCOMMITTED) as (client, places):
            found = await client.offsets_for_times(dict.fromkeys(places, FIRST_FAR_MS))
        return {place.partition: each.offset for place, each in found.items() if each is not None}

    return patiently(ask, patience_s)


def beginnings(source: KafkaSource, patience_s: float = 0.0) -> dict[int, int]:
    """The first offset that each partition still has. Raises ReplayError when no broker answers for this long."""

    async def ask() -> dict[int, int]:
        async with consumer(source) as (client, places):
            return {place.partition: offset for place, offset in (await client.beginning_offsets(places)).items()}

    return patiently(ask, patience_s)


def extent(source: KafkaSource) -> int:
    """How many records there may be in the topic. Raises ReplayError."""
    return sum(end - first for first, end in spans(source).values())


def spans(source: KafkaSource, patience_s: float = 0.0) -> Offsets:
    """The first offset that each partition has, and the one behind the last record that the source's isolation shows.

    Raises ReplayError when no broker answers for this long.
    """

    async def ask() -> Offsets:
        async with consumer(source) as (client, places):
            ends, firsts = await client.end_offsets(places), await client.beginning_offsets(places)
        return {place.partition: (firsts[place], ends[place]) for place in places}

    return patiently(ask, patience_s)


@asynccontextmanager
async def consumer(
    source: KafkaSource, *, isolation: str | None = None
) -> AsyncIterator[tuple[AIOKafkaConsumer, list[Any]]]:
    """A consumer of no group, by default of the source's isolation, and the partitions.

    Never makes the topic. Raises ReplayError.
    """
    options = {"bootstrap_servers": source.bootstrap} | client_options(source.security)
    try:
        places = await _places(source, options)
        client = AIOKafkaConsumer(**options, enable_auto_commit=False, isolation_level=isolation or source.isolation)
        await client.start()
        try:
            client.assign(places)
            yield client, places
        finally:
            await client.stop()
    except (KafkaError, OSError, ValueError) as exc:
        raise ReplayError(f"Kafka at {source.bootstrap}: {exc}") from exc


async def _places(source: KafkaSource, options: dict[str, Any]) -> list[Any]:
    admin = AIOKafkaAdminClient(**options)
    await admin.start()
    try:
        if source.topic not in await admin.list_topics():  # asked by its name, a topic can be made by that
            raise ReplayRefused(f"topic {source.topic}: there is none of this name at {source.bootstrap}")
        (topic,) = await admin.describe_topics([source.topic])
    finally:
        await admin.close()
    return [
        TopicPartition(source.topic, number) for number in sorted(each["partition"] for each in topic["partitions"])
    ]
