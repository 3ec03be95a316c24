"""More queues than radosgw's own delivery looks at."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import rados

from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.entries import raw_entry
from devkit.entries.queues import Queues, assert_clean, calm, metadata_object, numbered
from devkit.processes.daemon import running_daemon
from remora.model.exits import Exit

pytestmark = [pytest.mark.ceph, pytest.mark.kafka]

QUEUES = 1_100
IDLE_S = 5.0


def make_many(queues: Queues, uri: str, names: list[str], topic: str) -> None:
    """Empty queues that are all copies of one and deliver to one Kafka topic; a radosgw would take minutes."""
    queues.gateway.make_queue(names[0])
    ioctx = queues.gateway.ioctx
    head = ioctx.read(names[0], 1 << 16)
    made = [ioctx.aio_write_full(name, head) for name in names[1:]]
    made += [ioctx.aio_write_full(f"topic.{name}", metadata_object(name, uri, topic)) for name in names]
    for each in made:
        each.wait_for_complete()
        assert each.get_return_value() == 0
    queues.gateway.register(*names)


@pytest.mark.full("many queues of the embedded store are at the gate")
async def test_many_queues(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """Every one of 1,100 queues is held, the last one's first entry arrives in seconds, and idling costs little."""
    uri = f"kafka://{kafka.address}"
    topic = await create_topic(kafka.address)
    names = [f"many-{i:04}" for i in range(QUEUES)]
    make_many(queues, uri, names, topic)
    options = calm(queues, ownership={"discovery_interval": "2s"})
    async with running_daemon(tmp_path, options) as daemon:

        async def at_rest() -> bool:
            """None of them is on its way from one worker to the other, nor waits for anything."""
            status = await daemon.status()
            return len(status["shards"]) == QUEUES and not (
                status["left"] or any(each["reason"] for each in status["shards"])
            )

        await daemon.counted(QUEUES, "remora_owned_shards")
        assert await daemon.metric("remora_eligible_shards") == QUEUES
        await daemon.until(at_rest, "all queues to be at rest")
        await queues.commit(names[-1], raw_entry("k", 0, uri=uri, topic=topic))
        assert_clean(await numbered(kafka.address, topic, 1))
        await daemon.counted(1, "remora_delivered_entries_total")

        started, before = time.monotonic(), await daemon.metric("process_cpu_seconds_total")

        async def was_idle() -> bool:
            return time.monotonic() - started >= IDLE_S

        await daemon.until(was_idle, "some idle seconds")
        spent = await daemon.metric("process_cpu_seconds_total") - before
        assert spent < time.monotonic() - started, "less than one core, the looks of this test included"

        stopping = time.monotonic()
        assert await daemon.stop() == Exit.OK
        assert time.monotonic() - stopping < 120
    assert not [name for name in (names[0], names[-1]) if _is_locked(queues, name)]


def _is_locked(queues: Queues, name: str) -> bool:
    try:
        return bool(queues.gateway.lockers(name))
    except rados.NoData:
        return False
