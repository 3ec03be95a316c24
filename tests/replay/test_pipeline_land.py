"""Kafka to Parquet, through a real broker: what lands, what is refused, and a landing that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from pyspark.sql import SparkSession

from devkit.clusters.kafka import Kafka, admin, create_topic, delete_topic, grow_topic, read_topic, settled
from devkit.clusters.spark import of_a_small_job
from devkit.clusters.topics import TopicNotMade
from devkit.waits import until
from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.kafka_source import KafkaSource
from remora_pipeline.replay.pipeline.directory import Commit, LandedDirectory
from remora_pipeline.replay.pipeline.land import LandingPlan, land
from remora_pipeline.replay.topic_identity import identify

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1800)]


def notification(number: int, bucket: str = "photos", key: str = "k", day: int = 21) -> bytes:
    """What radosgw would write."""
    record = {
        "eventSource": "ceph:s3",
        "eventTime": f"2026-11-{day}T23:59:59.{number:06}Z",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": bucket}, "object": {"key": key, "size": number, "eTag": "e"}},
        "eventId": f"id-{number}",
    }
    return json.dumps({"Records": [record]}).encode()


def headers(number: int) -> list[tuple[str, bytes]]:
    """remora's own."""
    return [
        ("remora-shard", b"s.0"),
        ("remora-pos", b"i:0/%d" % number),
        ("remora-next", b"i:0/%d" % (number + 1)),
    ]


@contextlib.asynccontextmanager
async def producer(kafka: Kafka, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    made = AIOKafkaProducer(bootstrap_servers=kafka.address, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def fill(kafka: Kafka, topic: str, numbers: range, partition: int | None = None) -> None:
    """Notifications with these numbers."""
    async with producer(kafka) as sender:
        for number in numbers:
            where = {"partition": partition if partition is not None else number % 2}
            await sender.send(topic, notification(number), headers=headers(number), **where)
        await sender.flush()


def rows(folder: Path) -> list[dict[str, Any]]:
    """A table as a reader sees it that knows nothing of Spark: all files, and no logs."""
    if not folder.exists():
        return []
    return [row for file in sorted(folder.rglob("*.parquet")) for row in pq.ParquetFile(file).read().to_pylist()]


def places(table: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in table)


def plan(kafka: Kafka, topic: str, out: Path, **changes: Any) -> LandingPlan:
    return LandingPlan(KafkaSource(kafka.address, topic), out, out / "_checkpoint", **changes)


async def test_everything_committed_lands_once(kafka: Kafka, spark: SparkSession, tmp_path: Path) -> None:
    """Committed records land once, by day and bucket, or are kept aside with their cause; a run with nothing new makes
    no files, and partitions that are added are picked up."""
    topic, out = await create_topic(kafka.address, partitions=2), tmp_path / "landed [1] ü"
    odd = "a/b=c ü+%\n*[x]"
    async with producer(kafka) as sender:
        await sender.send(topic, notification(0, odd, "k ü+%\n\x01"), partition=0, headers=headers(0))
        await sender.send(topic, notification(1, "007", day=20), partition=0, headers=headers(1))
        await sender.send(topic, b"{", partition=1, headers=headers(2))
        await sender.send(topic, None, key=b"k", partition=1)
        await sender.send(topic, notification(4), partition=1)
        await sender.flush()
    async with producer(kafka, transactional_id=f"{topic}-t") as sender:
        for is_kept in (False, True):
            await sender.begin_transaction()
            await sender.send(topic, notification(5 + is_kept), partition=0, headers=headers(5))
            await (sender.commit_transaction() if is_kept else sender.abort_transaction())

    assert await settled(kafka.address, topic)
    commit = await asyncio.to_thread(land, plan(kafka, topic, out, batch=3))

    events, bad = rows(out / "events"), rows(out / "bad")
    assert (commit.events, commit.bad) == (len(events), len(bad)) == (4, 2)
    assert {row["event_id"] for row in events} == {"id-0", "id-1", "id-4", "id-6"}
    first = next(row for row in events if row["event_id"] == "id-0")
    assert (first["bucket"], first["key"], first["topic"], first["partition"]) == (odd, "k ü+%\n\x01", topic, 0)
    assert (first["shard"], first["position"], first["next_position"]) == ("s.0", "i:0/0", "i:0/1")
    assert {(row["value"], row["partition"], row["offset"], row["position"]) for row in bad} == {
        (b"{", 1, 0, "i:0/2"),
        (None, 1, 1, None),
    }
    assert all(row["cause"] and row["timestamp"] for row in bad)
    assert {str(file.parent.relative_to(out / "events")) for file in out.glob("events/*/*/*")} == {
        "day=2026-11-21/bucket_dir=a~2Fb~3Dc~20~C3~BC~2B~25~0A~2A~5Bx~5D",
        "day=2026-11-20/bucket_dir=007~",
        "day=2026-11-21/bucket_dir=photos",
    }

    files = {file: file.stat().st_mtime_ns for file in out.rglob("*.parquet")}
    assert await asyncio.to_thread(land, plan(kafka, topic, out)) == commit
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*.parquet")} == files

    await grow_topic(kafka.address, topic, 3)
    await until_grown(kafka, topic, 3)
    await fill(kafka, topic, range(10, 13), partition=2)
    commit = await asyncio.to_thread(land, plan(kafka, topic, out))
    assert (commit.events, commit.bad) == (7, 2)
    assert [place for place in places(rows(out / "events")) if place[0] == 2] == [(2, 0), (2, 1), (2, 2)]


async def until_grown(kafka: Kafka, topic: str, partitions: int) -> None:
    """Return when the brokers tell of all partitions."""
    async with admin(kafka.address) as client:
        for _ in range(6000):
            told = (await client.describe_topics([topic]))[0]
            if len(told["partitions"]) == partitions:
                return
            await asyncio.sleep(0.01)
    raise AssertionError(f"{topic} does not grow")


async def test_what_cannot_be_landed_is_refused(kafka: Kafka, spark: SparkSession, tmp_path: Path) -> None:
    """A topic that is not there, was made again or has lost records, and a disk that fails, are told in one line; when
    that is mended, the landing goes on."""
    topic, out = await create_topic(kafka.address, partitions=1), tmp_path / "landed"
    with pytest.raises(ReplayRefused, match=f"topic no-{topic}: there is none at"):
        await asyncio.to_thread(land, plan(kafka, f"no-{topic}", out))
    assert not list(out.glob("[!_]*"))

    assert (await asyncio.to_thread(land, plan(kafka, topic, out))).events == 0
    assert list(out.rglob("*.parquet")) == []

    await fill(kafka, topic, range(3), partition=0)
    full = OSError(errno.ENOSPC, "No space left on device", str(out / "x"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LandedDirectory, "land", raising(full))
        named = rf"topic {topic}, batch \d+ \(partition 0 offsets 0 to 2\): .*/x: No space left on device"
        with pytest.raises(ReplayError, match=named) as told:
            await asyncio.to_thread(land, plan(kafka, topic, out))
    assert "\n" not in str(told.value)
    assert (await asyncio.to_thread(land, plan(kafka, topic, out))).events == 3

    await fill(kafka, topic, range(3, 8), partition=0)
    async with admin(kafka.address) as client:
        await forget(client, topic, 6)
    with pytest.raises(ReplayRefused, match="--skip-lost") as told:
        await asyncio.to_thread(land, plan(kafka, topic, out))
    assert "\n" not in str(told.value)
    assert (await asyncio.to_thread(land, plan(kafka, topic, out, skip_lost=True))).events == 5
    assert places(rows(out / "events")) == [(0, 0), (0, 1), (0, 2), (0, 6), (0, 7)]

    await make_anew(kafka, topic)
    await fill(kafka, topic, range(20), partition=0)
    with pytest.raises(ReplayRefused, match="removed and made again"):
        await asyncio.to_thread(land, plan(kafka, topic, out))
    assert len(rows(out / "events")) == 5


@pytest.mark.parametrize("again", [10, 2], ids=["with more records", "with fewer records"])
async def test_a_topic_made_again_while_it_lands_is_refused(
    kafka: Kafka, spark: SparkSession, tmp_path: Path, again: int
) -> None:
    """Nothing of a topic that was made again between two batches lands, and no advice is given that cannot help; where
    offsets began is said once, before anything has landed."""
    topic, out = await create_topic(kafka.address, partitions=1), tmp_path / "landed"
    await fill(kafka, topic, range(8), partition=0)
    async with admin(kafka.address) as client:
        await forget(client, topic, 2)
    noted: list[str] = []

    def told(commit: Commit) -> None:
        if commit.batch == 0:
            asyncio.run(make_anew(kafka, topic))
            asyncio.run(fill(kafka, topic, range(100, 100 + again), partition=0))

    with pytest.raises(ReplayRefused, match="removed and made again since; land it into a new folder") as refused:
        await asyncio.to_thread(land, plan(kafka, topic, out, batch=3), told=told, noted=noted.append)

    assert "--skip-lost" not in str(refused.value)
    assert places(rows(out / "events")) == [(0, 2), (0, 3), (0, 4)]
    assert [text.partition(": what")[0] for text in noted] == [f"topic {topic}: partition 0 begins with offset 2"]
    with pytest.raises(ReplayRefused, match="removed and made again"):
        await asyncio.to_thread(land, plan(kafka, topic, out, skip_lost=True), noted=noted.append)
    assert len(noted) == 1
    assert (await asyncio.to_thread(land, plan(kafka, topic, tmp_path / "new"))).events == again


def raising(exc: Exception) -> Any:
    def call(*_: object) -> None:
        raise exc

    return call


async def forget(client: AIOKafkaAdminClient, topic: str, before: int) -> None:
    """Let Kafka remove the records before an offset, as retention does."""
    await client.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=before)})


async def make_anew(kafka: Kafka, topic: str) -> None:
    """Remove a topic and make another of its name, and wait until the broker tells of the other one."""
    before = (await identify(KafkaSource(kafka.address, topic))).topic_id
    await delete_topic(kafka.address, topic)
    is_made = False
    for _ in range(6000):
        with contextlib.suppress(TopicNotMade, ReplayRefused):
            if not is_made:
                await create_topic(kafka.address, topic, partitions=1)
                is_made = True
            if (await identify(KafkaSource(kafka.address, topic))).topic_id not in (None, before):
                return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{topic} is never another one")


# -------------------------------------------------------------------------------------------- killed


def is_any_staged(out: Path) -> bool:
    """Whether a batch is being written; not, where its folder goes while this looks at it."""
    with contextlib.suppress(FileNotFoundError):
        return any((out / "_staging").glob("*/*"))
    return False


class Landing:
    """`remora pipeline land` as a process of its own, with Spark's JVM in its group."""

    def __init__(self, kafka: Kafka, topic: str, out: Path, said: Path) -> None:
        self._said = said
        command = [sys.executable, "-m", "remora", "pipeline", "land", "--bootstrap", kafka.address, "--topic", topic]
        command += ["--out", str(out), "--trigger", "10ms", "--batch", "16", "--master", "local[2]"]
        with said.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=of_a_small_job(), start_new_session=True
            )

    def is_running(self) -> bool:
        assert self._process.poll() is None, self._said.read_text()[-3000:]
        return True

    def java(self) -> int:
        """The process of Spark's Java."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        (found,) = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
        return int(found)

    def wait(self) -> int:
        return self._process.wait(timeout=120)

    def signal(self, number: signal.Signals, *, whole_group: bool) -> int:
        (os.killpg if whole_group else os.kill)(self._process.pid, number)
        return self._process.wait(timeout=120)

    def __enter__(self) -> Landing:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=60)


@pytest.mark.full("a message; losing nothing is at the gate")
async def test_a_java_that_is_killed_is_one_line(kafka: Kafka, spark: SparkSession, tmp_path: Path) -> None:
    """A landing whose Java is killed ends with one line that says so."""
    topic, out, said = await create_topic(kafka.address, partitions=2), tmp_path / "landed", tmp_path / "said"
    directory = LandedDirectory(out)
    await fill(kafka, topic, range(40))
    with Landing(kafka, topic, out, said) as landing:
        await until(lambda: landing.is_running() and directory.commit().events == 40, "all lands", within_s=600)
        os.kill(landing.java(), signal.SIGKILL)
        assert await asyncio.to_thread(landing.wait) == 1

    *progress, line = [line for line in said.read_text().splitlines() if not line.startswith("batch ")]
    assert line.startswith("remora: Spark's Java has gone")
    assert [each for each in progress if not re.match(r"remora: \d\d:\d\d landing ", each)] == []


@pytest.mark.full("minutes; one kill within a batch is at the gate")
async def test_killed_again_and_again(kafka: Kafka, spark: SparkSession, tmp_path: Path) -> None:
    """Killed in the middle, alone or with its JVM, and started again while records come, each of them lands once."""
    draw, out = random.Random(11), tmp_path / "landed"
    topic = await create_topic(kafka.address, partitions=2)
    directory, sent = LandedDirectory(out), 0
    for attempt, whole_group in enumerate((True, False)):
        await fill(kafka, topic, range(sent, sent + 300))
        sent += 300
        before = directory.commit().batch
        wanted, in_staging = before + draw.randrange(1, 6), draw.random() < 0.5
        with Landing(kafka, topic, out, tmp_path / f"said-{attempt}") as landing:

            def is_time(
                landing: Landing = landing, wanted: int = wanted, in_staging: bool = in_staging, target: int = sent
            ) -> bool:
                commit = directory.commit()
                is_in_it = commit.batch >= wanted and (not in_staging or is_any_staged(out))
                # Where this process was held up for long, there may be nothing left to be in the middle of.
                return landing.is_running() and (is_in_it or commit.events == target)

            await until(is_time, "batches land", within_s=600)
            await asyncio.to_thread(landing.signal, signal.SIGKILL, whole_group=whole_group)
            assert directory.commit().batch > before

    commit = await asyncio.to_thread(land, plan(kafka, topic, out))

    expected = sorted((record.partition, record.offset) for record in await read_topic(kafka.address, topic))
    assert len(expected) == sent
    assert places(rows(out / "events")) == expected
    assert (commit.events, commit.bad) == (sent, 0)
