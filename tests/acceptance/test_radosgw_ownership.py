"""remora and a running radosgw share their queues: one owner at a time, and moved by hand either way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.consumer import check, read_all, read_until
from support.daemon import running_daemon
from support.kafka import Kafka, until
from support.kafka import create_topic as create_kafka_topic
from support.s3 import Zone, fresh

pytestmark = [pytest.mark.ceph, pytest.mark.kafka]

RADOSGW_LOOKS_S = 45.0
"""radosgw looks for free queues every 30 s."""


@contextlib.asynccontextmanager
async def watched(zone: Zone, queue: str) -> AsyncIterator[list[str]]:
    """Whose a queue was, in order: the cookie of a radosgw, or `remora`. Fails where there are two at once."""
    seen: list[str] = []

    async def watch() -> None:
        while True:
            owners = await asyncio.to_thread(zone.owners, queue)
            assert len(owners) <= 1, owners
            kinds = ["remora" if each.startswith("remora/") else each for each in owners]
            if kinds and seen[-1:] != kinds:
                seen.extend(kinds)
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch())
        yield seen
        task.cancel()


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_a_queue_is_taken_from_radosgw_and_given_back(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """A queue that radosgw owns is left alone until it is claimed, is delivered then, and goes back when released."""
    topic = fresh("shared")
    queue = zone.queue(topic)
    await create_kafka_topic(kafka.address, topic)
    async with zone.user() as user:
        arn = await user.topic(topic, f"kafka://{kafka.address}")
        await user.put(await user.bucket(topic, arn), "a", "b", "a")
        async with watched(zone, queue) as owners:
            await until(lambda: len(owners) == 1, "radosgw as owner", RADOSGW_LOOKS_S)
            async with running_daemon(tmp_path, zone.sections) as daemon:
                left = await daemon.until(lambda: daemon.left(queue), "an owner")
                (listed,) = [e for e in (await daemon.command("shard", "list", "--json")).json if e["queue"] == queue]
                before = await read_all(kafka.address, topic)

                claimed = await daemon.command("shard", "claim", queue)
                held = await daemon.shard(queue)
                delivered = await read_until(kafka.address, topic, 3)
                await user.put(topic, "b")
                delivered = await read_until(kafka.address, topic, 4)

                released = await daemon.command("shard", "release", queue)
                await until(lambda: len(owners) == 3, "radosgw as owner again", RADOSGW_LOOKS_S)
                away = await daemon.shard(queue)

    assert "held by another owner" in left["reason"]
    assert owners[0] in left["owner"]
    assert listed["owner"]["cookie"] == owners[0]
    assert not listed["owner"]["is_remora"]
    assert before == []
    assert claimed.code == 0, claimed.err
    assert held is not None
    verdict = check(delivered, [("ObjectCreated:Put", key) for key in "abab"])
    assert verdict.is_clean, verdict
    assert released.code == 0, released.err
    assert away is None
    assert owners == [owners[0], "remora", owners[0]]
