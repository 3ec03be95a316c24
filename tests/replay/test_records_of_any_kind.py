"""Records of any kind: values, keys, headers and stamps that nobody foresaw, through landing, inventory and verdict."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer
from pyspark.sql import SparkSession

from devkit.clusters.kafka import Kafka, create_topic
from remora_pipeline.replay.kafka_source import KafkaSource, first_far
from remora_pipeline.replay.pipeline import inventory
from remora_pipeline.replay.pipeline.land import LandingPlan, land
from remora_pipeline.replay.results import FAIL
from remora_pipeline.replay.verify.job import verify_topic
from support.asked import question

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1800)]

COUNT = 240
PARTITIONS = 3
FAR = (COUNT // 2, COUNT - 3)
"""The records whose stamps are in nanoseconds, of one partition; others come before, between and behind them."""

TIMES: tuple[Any, ...] = (
    "2026-11-21T02:14:07.482913Z", "5.abc", "5.", ".5", "86400.5", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00",
    "1582-10-10T00:00:00Z", "1899-12-31T23:59:59Z", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-01:00",
    "1e9", "\u0665.5", "", 5, None, "2026-11-21T24:00:00Z", "2026-W47-6T00:00:00Z", "x" * 5000,
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "photos", "",
    "a/b=c \u00fc+%\n*[x]", "\u0000", "\ufffd", "\U0001f600", "..", "007", "%ff", "k" * 3000, 7, None, [], {},
)  # fmt: skip
SIZES: tuple[Any, ...] = (0, 5, -1, 2**63 - 1, 2**63, 1.5, "5", None, 1e400)
SEQUENCERS: tuple[Any, ...] = ("2201016B00000000", "0055AED6DCD90281E5", "", "zz", "f" * 500, "\u00fc", 5, None)
HEADERS: tuple[bytes, ...] = (
    b"s.0", b"i:0/5", b"i:0/6", b"", b"\xff", b"x" * 5000, b"t:1", b"t:99999999999999999999", b"i:0/5\n", b"\x00",
    b":::", b"i:-1/-1", b"/",
)  # fmt: skip
NAMES = ("remora-shard", "remora-pos", "remora-next", "remora-seq", "remora-event-id", "other", "")


def value(draw: random.Random) -> bytes | None:
    """A notification, or something like one, or no such thing."""
    kind = draw.random()
    if kind < 0.05:
        return None
    if kind < 0.15:
        return draw.randbytes(draw.randrange(40))
    made = json.dumps({"Records": [record(draw) for _ in range(draw.choice((1, 1, 1, 0, 2, 40)))]}).encode()
    if kind < 0.25:
        place = draw.randrange(len(made))
        return made[:place] + draw.randbytes(1) + made[place + draw.randrange(3) :]
    return made


def record(draw: random.Random) -> dict[str, Any]:
    """Members of the right names, of which now and then one is odd."""
    is_odd = draw.random() < 0.5

    def one(kinds: tuple[Any, ...]) -> Any:
        return draw.choice(kinds) if is_odd and draw.random() < 0.3 else kinds[0]

    mark = {"key": "x-amz-meta-replay", "val": draw.choice(("r/1/1", "/", ""))}
    metadata = [{"key": one(TEXTS), "val": one(TEXTS)}, mark]
    return {
        "eventSource": draw.choice(("ceph:s3", "aws:s3")),
        "eventTime": one(TIMES),
        "eventName": draw.choice(("ObjectCreated:Put", "s3:ObjectRemoved:Delete", one(TEXTS))),
        "s3": {
            "bucket": {"name": one(TEXTS), "arn": one(TEXTS)},
            "object": {"key": one(TEXTS), "size": one(SIZES), "sequencer": one(SEQUENCERS), "versionId": one(TEXTS),
                       "metadata": metadata, "tags": one(({"a": "b"}, [{"key": "a"}], 5))},
        },
        "eventId": one(TEXTS),
        "opaqueData": one(TEXTS),
    }  # fmt: skip


def headers(draw: random.Random) -> list[tuple[str, bytes]]:
    """remora's own, some of them odd, doubled or missing."""
    if draw.random() < 0.4:
        return [("remora-shard", b"s.0"), ("remora-pos", b"i:0/5"), ("remora-next", b"i:0/6")]
    return [(draw.choice(NAMES), draw.choice(HEADERS)) for _ in range(draw.randrange(6))]


async def fill(kafka: Kafka, draw: random.Random) -> str:
    """A topic with such records."""
    topic = await create_topic(
        kafka.address, partitions=PARTITIONS, retention_ms=-1, message_timestamp_after_max_ms=(1 << 63) - 1
    )
    keys = (b"photos/photos", None, b"", b"\xff\x00", b"k" * 5000)
    last_ms = 253_402_300_799_999  # of the year 9999
    stamps = (1_795_227_938_000, 0, last_ms, last_ms + 1, 1_795_227_938_000_000, 9_223_372_036_854_775)
    producer = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await producer.start()
    try:
        for number in range(COUNT):
            stamp = draw.choice((1_795_227_938_000_000_000, 2**63 - 1)) if number in FAR else draw.choice(stamps)
            lane = 1 if number in FAR else number % PARTITIONS
            text, key = value(draw), draw.choice(keys)
            key = b"k" if text is None and key is None else key  # this client sends no record without either
            await producer.send(topic, text, key, partition=lane, headers=headers(draw), timestamp_ms=stamp)
        await producer.flush()
    finally:
        await producer.stop()
    return topic


@pytest.mark.parametrize("seed", [1])
async def test_no_record_ends_a_job(kafka: Kafka, spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Whatever records hold, each lands or lies aside with its cause, any reader reads the tables, an inventory is made
    of them, and a verdict counts all."""
    topic = await fill(kafka, random.Random(seed))
    asked, out = question(kafka, topic), tmp_path / "landed"
    assert set(await asyncio.to_thread(first_far, asked.source)) == {1}

    commit = await asyncio.to_thread(
        land, LandingPlan(KafkaSource(kafka.address, topic), out, out / "_checkpoint", batch=100)
    )
    made, _ = await asyncio.to_thread(inventory.take, inventory.InventoryPlan(out, tmp_path / "inventory"))
    verdict = (await asyncio.to_thread(verify_topic, spark, asked)).verdict

    events, bad = (
        [row for file in sorted((out / table).rglob("*.parquet")) for row in pq.ParquetFile(file).read().to_pylist()]
        for table in ("events", "bad")
    )
    there = {(row["partition"], row["offset"]) for row in events}
    aside = [(row["partition"], row["offset"]) for row in bad]
    assert (len(events), len(bad)) == (commit.events, commit.bad)
    assert not there.intersection(aside)
    assert len(there) + len(set(aside)) == COUNT
    assert len(aside) == len(set(aside))
    assert all(row["cause"] for row in bad)
    assert sum("time stamp lies outside" in row["cause"] for row in bad) >= len(FAR)
    assert made.objects > 0
    assert verdict.verdict == FAIL
    assert verdict.counts["in_kafka"] == COUNT
    assert verdict.counts["malformed"] >= len(aside)
