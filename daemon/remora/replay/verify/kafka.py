"""A topic between offsets that are fixed once: frozen by a consumer on the driver, read by Spark's own connector."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from pyspark.sql import DataFrame, SparkSession

from remora.replay.errors import ReplayError, ReplayRefused
from remora.replay.properties import client_options

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"

Offsets = Mapping[int, tuple[int, int]]
"""For each partition the first offset and the one behind the last."""

_LOOK_S = 0.5
_STALL_MS = "60000"


@dataclass(frozen=True)
class Source:
    """A topic, and how it is read. `security` has the settings of Kafka's own clients, for TLS and logins."""

    bootstrap: str
    topic: str
    isolation: str
    security: Mapping[str, str]


@dataclass(frozen=True)
class Patience:
    """How long to wait before the ends are frozen: for `enough` records at most `wait_s`, then until nothing has come
    for `settle_s`, which is again waited for at most `wait_s`."""

    enough: int
    settle_s: float
    wait_s: float


@dataclass(frozen=True)
class Frozen:
    """What is read. `is_quiet` says that nothing came while it was looked at."""

    offsets: Offsets
    is_quiet: bool


def freeze(source: Source, from_us: int | None, to_us: int | None, patience: Patience) -> Frozen:
    """Fix what is read: from the first record of a time to the last of another, by default all there is.

    The end for readers of committed records is before the first transaction that is open. Raises ReplayError.
    """
    return asyncio.run(_freeze(source, from_us, to_us, patience))


def recall(source: Source, offsets: Offsets) -> Frozen:
    """The same offsets once more. Raises ReplayRefused when the topic does not hold all of them any more."""
    return asyncio.run(_recall(source, offsets))


def around(source: Source, offsets: Offsets, *, behind: bool) -> list[Offsets]:
    """What else the topic holds before these offsets, and with `behind` after them. Raises ReplayError."""
    return asyncio.run(_around(source, offsets, behind=behind))


def read(spark: SparkSession, source: Source, offsets: Offsets) -> DataFrame:
    """The records between these offsets, as Spark's connector gives them; a read that falls short raises."""
    reader = spark.read.format("kafka")
    options = {
        "kafka.bootstrap.servers": source.bootstrap,
        "assign": json.dumps({source.topic: sorted(offsets)}),
        "startingOffsets": _as_json(source.topic, {number: first for number, (first, _) in offsets.items()}),
        "endingOffsets": _as_json(source.topic, {number: end for number, (_, end) in offsets.items()}),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": _STALL_MS,
        "kafka.isolation.level": source.isolation,
    }
    for key, value in (options | {f"kafka.{key}": value for key, value in source.security.items()}).items():
        reader = reader.option(key, value)
    return reader.load()


def _as_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(number): offset for number, offset in sorted(offsets.items())}})


async def _freeze(source: Source, from_us: int | None, to_us: int | None, patience: Patience) -> Frozen:
    async with _consumer(source) as (consumer, places):
        first = await consumer.beginning_offsets(places)
        if from_us is not None:
            first |= await _at(consumer, places, from_us, await consumer.end_offsets(places))
        if to_us is not None:
            last = await _at(consumer, places, to_us, await consumer.end_offsets(places))
            return _frozen(first, last, is_quiet=True)
        last, is_quiet = await _settled(consumer, places, first, patience)
        return _frozen(first, last, is_quiet=is_quiet)


def _frozen(first: Mapping[Any, int], last: Mapping[Any, int], *, is_quiet: bool) -> Frozen:
    offsets = {place.partition: (first[place], max(first[place], last[place])) for place in sorted(first)}
    return Frozen(offsets, is_quiet)


async def _at(consumer: AIOKafkaConsumer, places: list[Any], at_us: int, ends: Mapping[Any, int]) -> dict[Any, int]:
    """The first offset of a time in each partition, else its end."""
    found = await consumer.offsets_for_times({place: max(0, at_us // 1000) for place in places})
    return {place: each.offset if (each := found.get(place)) is not None else ends[place] for place in places}


async def _settled(
    consumer: AIOKafkaConsumer, places: list[Any], first: Mapping[Any, int], patience: Patience
) -> tuple[dict[Any, int], bool]:
    ends: dict[Any, int] = await consumer.end_offsets(places)
    deadline = time.monotonic() + patience.wait_s
    while sum(ends.values()) - sum(first.values()) < patience.enough and time.monotonic() < deadline:
        await asyncio.sleep(_LOOK_S)
        ends = await consumer.end_offsets(places)
    deadline = time.monotonic() + patience.wait_s
    while True:
        await asyncio.sleep(patience.settle_s)
        before, ends = ends, await consumer.end_offsets(places)
        if before == ends or time.monotonic() >= deadline:
            return ends, before == ends


async def _recall(source: Source, offsets: Offsets) -> Frozen:
    async with _consumer(source) as (consumer, places):
        first, last = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    there = {place.partition: (first[place], last[place]) for place in places}
    for number, (begin, end) in offsets.items():
        least, most = there.get(number, (0, 0))
        if begin < end and not least <= begin <= end <= most:
            now = f"has the offsets {least} to {most} now, and not {begin} to {end}"
            raise ReplayRefused(f"topic {source.topic}: partition {number} {now}")
    return Frozen({number: offsets[number] for number in sorted(offsets) if number in there}, is_quiet=True)


async def _around(source: Source, offsets: Offsets, *, behind: bool) -> list[Offsets]:
    async with _consumer(source) as (consumer, places):
        first, last = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    known = {place: offsets[place.partition] for place in places if place.partition in offsets}
    found: list[Offsets] = [{place.partition: (min(first[place], begin), begin) for place, (begin, _) in known.items()}]
    if behind:
        found.append({place.partition: (end, max(last[place], end)) for place, (_, end) in known.items()})
    return [each for each in found if any(begin < end for begin, end in each.values())]


@asynccontextmanager
async def _consumer(source: Source) -> AsyncIterator[tuple[AIOKafkaConsumer, list[Any]]]:
    """A consumer of no group, and the partitions. Never makes the topic. Raises ReplayError."""
    options = {"bootstrap_servers": source.bootstrap} | client_options(source.security)
    try:
        places = await _places(source, options)
        consumer = AIOKafkaConsumer(**options, enable_auto_commit=False, isolation_level=source.isolation)
        await consumer.start()
        try:
            consumer.assign(places)
            yield consumer, places
        finally:
            await consumer.stop()
    except (KafkaError, OSError, ValueError) as exc:
        raise ReplayError(f"Kafka at {source.bootstrap}: {exc}") from exc


async def _places(source: Source, options: dict[str, Any]) -> list[Any]:
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
