"""Events that two daemons take in over HTTP and keep in RADOS, one of which is killed in the midst of it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.queues import Queues, calm
from devkit.processes.daemon import Daemon, running_daemon
from devkit.readers.consumer import check, read_until
from devkit.waits import PATIENT_S
from remora.model.exits import Exit
from support.ingest import ndjson, record

pytestmark = pytest.mark.ceph

REQUESTS, EVENTS, SENDERS = 48, 25, 4


def body(request: int) -> bytes:
    """Events for a few keys, whose ids say which request they are of and where in it."""
    return ndjson(*(record(f"k{i % 7}", eventId=f"{request:03}-{i:03}") for i in range(EVENTS)))


async def publish(daemon: Daemon, topic: str, request: int) -> bool:
    """Whether the daemon took a request."""
    connector = aiohttp.UnixConnector(daemon.ingest.removeprefix("unix:"))
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": str(request)}
    url = f"http://remora/v1/topics/{topic}/events"
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session,
            session.post(url, data=body(request), headers=headers) as answer,
        ):
            return answer.status == 200 and json.loads(await answer.read())["stored"] == EVENTS
    except (aiohttp.ClientError, OSError):
        return False


@pytest.mark.full("its sqlite twin and the store's contract are at the gate")
async def test_each_event_is_stored_once_though_a_daemon_is_killed(
    queues: Queues, kafka: Kafka, tmp_path: Path
) -> None:
    """Requests that a killed daemon left unanswered are made again elsewhere: each event is stored once, in order."""
    topic = await create_topic(kafka.address, f"in-{uuid.uuid4().hex[:10]}")
    sections: dict[str, Any] = calm(
        queues, rados={"op_timeout": "10s"}, ownership={"lease": "30s", "renew_interval": "10s"}
    )
    sections["supervisor"]["watchdog"] = "20s"
    del sections["ingest"]
    async with running_daemon(tmp_path, sections) as first, running_daemon(tmp_path, sections) as second:
        made = await first.command("topic", "create", topic, "--endpoint", f"kafka://{kafka.address}", "--shards", "5")
        assert made.code == Exit.OK, made.err
        half_way, of_second = asyncio.Event(), 0

        async def send(requests: Sequence[int]) -> list[int]:
            """Those that were not answered, though they may be stored. Half of them are the second daemon's."""
            nonlocal of_second
            left = []
            for request in requests:
                if not await publish((first, second)[request % 2], topic, request):
                    left.append(request)
                of_second += request % 2
                if of_second == REQUESTS // 4:
                    half_way.set()
            return left

        async def surely(request: int) -> None:
            """Publish a request, again and again with the same key, until the first daemon has taken it."""
            async with asyncio.timeout(3 * PATIENT_S):
                while not await publish(first, topic, request):  # noqa: ASYNC110 - each one asks
                    await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as tasks:
            sending = [tasks.create_task(send(range(i, REQUESTS, SENDERS))) for i in range(SENDERS)]
            await half_way.wait()
            await second.kill_all()
        left = [request for each in sending for request in each.result()]
        for request in range(REQUESTS):
            await surely(request)
        ids = [f"{request:03}-{i:03}" for request in range(REQUESTS) for i in range(EVENTS)]
        found = await read_until(
            kafka.address, topic, lambda found: {each.event_id for each in found} == set(ids), timeout_s=180
        )

    assert left
    verdict = replace(check(found, ids, lambda each: each.event_id), duplicated=[])  # delivered again, not stored
    assert verdict.is_clean, verdict
    for shard in {each.shard for each in found}:
        mine = sorted({(each.place.order, each.event_id) for each in found if each.shard == shard})
        for request in range(REQUESTS):
            of_request = [event_id for _, event_id in mine if event_id.startswith(f"{request:03}-")]
            assert of_request == sorted(of_request)
