"""Kafka topics, and what stands in them in the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from devkit.bench.clusters import BenchError
from devkit.clusters.topics import TopicNotMade, make_topics


@dataclass(frozen=True)
class Delivered:
    """Records in the topics: distinct events, copies too many, and bytes of the bodies."""

    events: int
    copies: int
    body_bytes: int


@asynccontextmanager
async def kafka_topics(
    address: str, names: Sequence[str], partitions: int, configs: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """Empty topics for as long as they are needed."""
    client = AIOKafkaAdminClient(bootstrap_servers=address)
    await client.start()
    try:
        topics = [NewTopic(name, partitions, 1, topic_configs=dict(configs or {})) for name in names]
        try:
            await make_topics(client, topics)
        except TopicNotMade as exc:
            raise BenchError(str(exc)) from exc
        yield
        await client.delete_topics(list(names))
    finally:
        await client.close()


async def ends(address: str, names: Sequence[str], partitions: int) -> int:
    """How many records the topics have."""
    async with AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False) as consumer:
        places = [TopicPartition(name, number) for name in names for number in range(partitions)]
        found: dict[TopicPartition, int] = await consumer.end_offsets(places)
        return sum(found.values())


async def arrived(address: str, names: Sequence[str], partitions: int, events: int, patience_s: float) -> None:
    """Return when this many records are in the topics."""
    deadline = time.monotonic() + patience_s
    while (there := await ends(address, names, partitions)) < events:
        if time.monotonic() > deadline:
            raise BenchError(f"{there:,} of {events:,} events are delivered after {patience_s:.0f} s")
        await asyncio.sleep(0.1)


async def read_back(address: str, names: Sequence[str], partitions: int) -> Delivered:
    """Read everything that is committed in these topics and count it by the event id in the headers."""
    seen: Counter[bytes] = Counter()
    body_bytes = 0
    async for records in committed(address, names, partitions):
        seen.update([dict(record.headers)["remora-event-id"] for record in records])
        body_bytes += sum([len(record.value) for record in records])
    return Delivered(len(seen), seen.total() - len(seen), body_bytes)


async def committed(address: str, names: Sequence[str], partitions: int) -> AsyncIterator[Sequence[Any]]:
    """Everything that is committed in these topics: records of one partition at a time, each partition in order."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=4 << 20,
        fetch_max_bytes=32 << 20,
    )
    await consumer.start()
    try:
        places = [TopicPartition(name, number) for name in names for number in range(partitions)]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        left = {place for place in places if ends[place]}
        while left:
            for records in (await consumer.getmany(*left, timeout_ms=1000, max_records=10_000)).values():
                yield records
            # A partition may end in the mark of a transaction, which is passed without any record.
            left = {place for place in left if await consumer.position(place) < ends[place]}
    finally:
        await consumer.stop()
