"""The most that the endpoint takes on this machine: Kafka's own ProducerPerformance, alone or beside a reader."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.bench.clusters import BenchError, Clusters
from devkit.bench.delivered import kafka_topics
from devkit.bench.load import bodies
from remora.model.shard import LockToken, Shard
from remora.storage.rados import RadosStore

BODIES = 100_000
"""In the file, from which ProducerPerformance draws."""

LIST_ENTRIES = 1024
LOOK_S = 0.05
LEASE_S = 600


def write_bodies(file: Path, entries: Iterable[bytes]) -> Path:
    """What is delivered of these entries, one a line."""
    file.write_bytes(b"".join([body + b"\n" for body in bodies(list(entries))]))
    return file


async def producer_performance(
    clusters: Clusters, file: Path, records: int, partitions: int, read: tuple[RadosStore, Sequence[str]] | None = None
) -> float:
    """Records in a second, with these bodies, into a Kafka topic of its own.

    With `read` the queues of that store are listed meanwhile, as many entries as records have been sent, and nothing
    is removed from them.
    """
    address, topic = clusters.kafka["bootstrap"], f"bench-{uuid.uuid4().hex[:8]}"
    async with kafka_topics(address, [topic], partitions):
        reader = asyncio.create_task(_read_along(*read, address, topic, partitions)) if read else None
        try:
            return await asyncio.to_thread(clusters.producer_performance, topic, records, "--payload-file", str(file))
        finally:
            if reader is not None:
                reader.cancel()
                with suppress(asyncio.CancelledError):
                    await reader


async def _read_along(store: RadosStore, queues: Sequence[str], address: str, topic: str, partitions: int) -> None:
    """List the queues side by side, from their fronts on and then again, and keep up with what is in the topic."""
    tokens: list[LockToken] = []
    places = [TopicPartition(topic, number) for number in range(partitions)]
    try:
        for queue in queues:
            token = await store.locks.acquire(Shard(queue), "bench/reader", LEASE_S)
            if not isinstance(token, LockToken):
                raise BenchError(f"{queue} is locked by {token.cookie}")
            tokens.append(token)
        starts, listed = [b""] * len(tokens), 0
        async with AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False) as consumer:
            while True:
                sent = sum((await consumer.end_offsets(places)).values())
                while listed < sent:
                    reads = [
                        store.queue.read(token, start, LIST_ENTRIES)
                        for token, start in zip(tokens, starts, strict=True)
                    ]
                    pages = await asyncio.gather(*reads)
                    starts = [each.positions[-1] if each.truncated else b"" for each in pages]
                    listed += sum(len(each.entries) for each in pages)
                await asyncio.sleep(LOOK_S)
    finally:
        for token in tokens:
            await store.locks.release(token)
