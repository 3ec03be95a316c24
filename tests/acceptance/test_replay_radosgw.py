"""A trace through a real radosgw: it makes the notifications, remora delivers them, and the verification finds each."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from devkit.clusters.kafka import Kafka, create_topic
from devkit.clusters.s3 import Zone, fresh
from devkit.processes.daemon import running_daemon
from remora.cli import group
from remora_pipeline.replay import layout, results

pytestmark = [pytest.mark.ceph, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(900)]

KEYS = ("plain", "deep/er/key.csv", "with space", "a+b%20c", "ünïcödé-日本語")
EVENTS = 120
NEVER = ("lost", "ghosts", "foreign", "altered", "malformed", "duplicates", "inversions", "keys_in_several_partitions",
         "final_state_wrong", "chain_gaps")  # fmt: skip


async def remora(*arguments: str | Path) -> Result:
    """A command, within this process and its Spark session."""
    return await asyncio.to_thread(CliRunner().invoke, group, list(map(str, arguments)))


def write_trace(file: Path, bucket: str) -> dict[str, int]:
    """Writes of every kind and deletes of few keys, 10 ms apart; how many of each operation."""
    chance, there, counts = random.Random(1), set[str](), dict[str, int]()
    lines = ["seq,ts_us,op,bucket,key,size"]
    for seq in range(EVENTS):
        key = chance.choice(KEYS)
        op = chance.choice(["PUT", "PUT", "COPY", "MPU_COMPLETE", "DELETE"]) if key in there else "PUT"
        (there.discard if op == "DELETE" else there.add)(key)
        counts[op] = counts.get(op, 0) + 1
        lines.append(f"{seq},{1766300000000000 + 10_000 * seq},{op},{bucket},{key},{'' if op == 'DELETE' else seq}")
    file.write_text("\n".join(lines) + "\n")
    return counts


async def is_empty(zone: Zone, topic: str) -> bool:
    return await asyncio.to_thread(zone.is_empty, zone.queue(topic))


async def test_a_trace_through_radosgw(
    zone16: Zone, kafka: Kafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write and delete of a trace, done through S3, is in Kafka once, in order per key, and known by its event."""
    topic, bucket, run = fresh("replayed"), fresh("replayed"), tmp_path / "run"
    operations = write_trace(tmp_path / "trace.csv", bucket)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", zone16.env["s3"]["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", zone16.env["s3"]["secret_key"])
    await create_topic(kafka.address, topic)
    done = await remora("replay", "prepare", tmp_path / "trace.csv", "--out", tmp_path / "trace")
    assert done.exit_code == 0, done.output
    async with zone16.user() as user, running_daemon(tmp_path, zone16.sections) as daemon:
        arn = await user.topic(topic, f"kafka://{kafka.address}")
        await daemon.own(zone16.queue(topic))
        await user.bucket(bucket, arn)

        replay = ("replay", "run", tmp_path / "trace", "--out", run, "--topic", topic, "--speed", "0")
        done = await remora(*replay, "--s3", zone16.env["s3"]["endpoint"], "--create-buckets")
        assert done.exit_code == 0, done.output
        await daemon.until(lambda: is_empty(zone16, topic), "an empty queue")
        done = await remora("replay", "verify", run, "--bootstrap", kafka.address, "--no-series")

    assert done.exit_code == 0, done.output
    verdict = layout.read(layout.RunDirectory(run).verdict, results.TopicVerdict)
    assert verdict.verdict == results.PASS
    assert {name: verdict.counts[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
    assert verdict.counts["acked"] == verdict.counts["distinct"] == verdict.counts["in_kafka"] == EVENTS
    assert set(operations) == {"PUT", "COPY", "MPU_COMPLETE", "DELETE"}
