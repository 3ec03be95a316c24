"""Records as Kafka's clients for Python hand them over, to a consumer that drops copies and finds gaps."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from devkit.clusters.kafka import Kafka, create_topic
from devkit.readers.consumer import raw_records
from devkit.waits import PATIENT_S
from remora.client import Deduplicator, GapFound
from unit.test_client import serving
from unit.test_commit_order import telling

pytestmark = pytest.mark.kafka

PLACES = (0, 10, 20, 10, 20, 30, 50)
"""Where entries of a shard begin, as they are sent: two come again, and one is missing."""

NEW = [0, 10, 20, 30]


async def sent(kafka: Kafka) -> str:
    """A topic with a record for each place, and one of somebody else in front."""
    topic = await create_topic(kafka.address, partitions=1)
    async with AIOKafkaProducer(bootstrap_servers=kafka.address) as producer:
        await producer.send_and_wait(topic, b"somebody else's")
        for at in PLACES:
            headers = [
                ("remora-shard", b"t.0"),
                ("remora-pos", b"a1:0/%d" % at),
                ("remora-next", b"a1:0/%d" % (at + 10)),
            ]
            await producer.send_and_wait(topic, b"{}", headers=headers)
    return topic


def place(headers: Sequence[tuple[str, bytes]]) -> int:
    return int(dict(headers)["remora-pos"].rpartition(b"/")[2])


async def test_records_of_aiokafka(kafka: Kafka) -> None:
    """Those of a real consumer are told apart as they are, up to the gap."""
    records = await raw_records(kafka.address, await sent(kafka))
    dedupe = Deduplicator(ahead=0)
    new: list[Any] = []

    with pytest.raises(GapFound, match="from 0/40 up to 0/50"):
        new.extend(dedupe.fresh(records))

    assert [place(record.headers) for record in new[1:]] == NEW
    assert (dedupe.copies, dedupe.unmarked) == (2, 1)


async def test_messages_of_confluent_kafka(kafka: Kafka) -> None:
    """Those of librdkafka's consumer are told apart in the same way; one without headers is new."""
    confluent = pytest.importorskip("confluent_kafka")
    topic = await sent(kafka)
    consumer = confluent.Consumer(
        {"bootstrap.servers": kafka.address, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    messages: list[Any] = []
    try:
        consumer.assign([confluent.TopicPartition(topic, 0, 0)])
        while len(messages) < 1 + len(PLACES):
            found = consumer.poll(PATIENT_S)
            assert found, "no message comes"
            messages.append(found)
    finally:
        consumer.close()
    dedupe = Deduplicator(ahead=0)
    new: list[Any] = []

    with pytest.raises(GapFound, match="from 0/40 up to 0/50"):
        new.extend(dedupe.fresh_messages(messages))

    assert [place(message.headers()) for message in new[1:]] == NEW
    assert (dedupe.copies, dedupe.unmarked) == (2, 1)


EXAMPLE = Path(__file__).parents[2] / "docs/consume.md"

Numbered = tuple[int, int, int, int]
"""Partition, shard, where the entry begins in it, and its number."""


async def send_numbered(kafka: Kafka, topic: str, *entries: Numbered) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.address) as producer:
        for partition, shard, at, number in entries:
            headers = [
                ("remora-shard", b"t.%d" % shard),
                ("remora-pos", b"a%d:0/%d" % (shard, at)),
                ("remora-next", b"a%d:0/%d" % (shard, at + 10)),
                ("remora-seq", b"t1:%d" % number),
            ]
            await producer.send_and_wait(topic, b"%d" % number, partition=partition, headers=headers)


async def test_the_example_reads_each_event_once(kafka: Kafka, tmp_path: Path) -> None:
    """The one in docs/consume.md, run twice: every event once and in the order of commits, whatever came twice or over
    several partitions, and the entry that never came is told."""
    script = tmp_path / "consume.py"
    script.write_text(re.findall(r"```python\n(.*?)```", EXAMPLE.read_text(), re.DOTALL)[-1])
    topic = await create_topic(kafka.address, partitions=2)
    state = tmp_path / "state.db"

    async with serving(tmp_path, *telling(("t1", 2), ("t1", 99))) as server:

        async def run() -> None:
            process = await asyncio.create_subprocess_exec(
                sys.executable, script, kafka.address, topic, server.address, state
            )
            assert await process.wait() == 0

        await send_numbered(kafka, topic, (0, 0, 0, 1), (1, 0, 20, 4), (1, 1, 0, 2), (1, 0, 20, 4))
        await run()
        first = [number for (number,) in sqlite3.connect(state).execute("select number from events")]
        await send_numbered(kafka, topic, (0, 0, 10, 3), (0, 0, 40, 7), (0, 0, 10, 3), (1, 1, 10, 5), (1, 0, 50, 8))
        await run()

    db = sqlite3.connect(state)
    assert first == [1, 2]
    assert [number for (number,) in db.execute("select number from events")] == [1, 2, 3, 4, 5, 7, 8]
    assert [what for (what,) in db.execute("select what from missing")] == [
        "t.0: entries are missing from 0/30 up to 0/40 (incarnation a0)"
    ]
