"""Moves leaders: a broker loses its replicas, and with them what it leads, and gets them back.

Kafka's own tool for elections takes a JVM, and a broker that is stopped politely under load can take a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import AlterPartitionReassignmentsRequest

from devkit.chaos.clusters import ChaosError

PATIENCE_S = 30.0
Led = Mapping[str, Mapping[int, Sequence[int]]]
"""The replicas of some partitions, by topic."""


async def move(bootstrap: str, topics: Sequence[str], broker: int, pause_s: float) -> int:
    """Take away from a broker what it leads, and give it back as a follower; how many partitions that were."""
    async with admin(bootstrap) as client:
        led = await _replicas(client, topics, led_by=broker)
        without = {
            topic: {number: [each for each in replicas if each != broker] for number, replicas in partitions.items()}
            for topic, partitions in led.items()
        }
        await _reassign(client, without)
        await _until_settled(client, without)
        await asyncio.sleep(pause_s)
        back = {
            topic: {number: [*replicas, broker] for number, replicas in partitions.items()}
            for topic, partitions in without.items()
        }
        await _reassign(client, back)
        await _until_settled(client, back)
        return sum(map(len, led.values()))


@asynccontextmanager
async def admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client for as long as it is needed."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def _replicas(client: AIOKafkaAdminClient, topics: Sequence[str], led_by: int | None = None) -> Led:
    """The replicas of each partition, of all or of those that a broker leads."""
    return {
        topic["topic"]: {
            each["partition"]: each["replicas"]
            for each in topic["partitions"]
            if led_by is None or each["leader"] == led_by
        }
        for topic in await client.describe_topics(list(topics))
    }


async def _reassign(client: AIOKafkaAdminClient, to: Led) -> None:
    wanted: list[tuple[str, list[tuple[int, list[int], dict[int, bytes]]], dict[int, bytes]]] = [
        (topic, [(number, list(replicas), {}) for number, replicas in partitions.items()], {})
        for topic, partitions in to.items()
        if partitions
    ]
    if not wanted:
        return
    answer = await client._send_request(AlterPartitionReassignmentsRequest(10_000, wanted, {}))  # noqa: SLF001
    if answer.error_code or any(each[1] for _, partitions, *_ in answer.responses for each in partitions):
        raise ChaosError(f"partitions were not reassigned: {answer}")


async def _until_settled(client: AIOKafkaAdminClient, to: Led) -> None:
    """Wait until the replicas are these."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        now = await _replicas(client, list(to))
        if all(
            sorted(now[topic][number]) == sorted(replicas)
            for topic, partitions in to.items()
            for number, replicas in partitions.items()
        ):
            return
        if time.monotonic() > deadline:
            raise ChaosError(f"replicas are not {to}")
        await asyncio.sleep(0.2)
