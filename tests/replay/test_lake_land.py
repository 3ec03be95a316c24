"""Kafka to Iceberg, through a real broker and a real catalog: what lands, how others read it, and landings that are
killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from devkit.clusters.kafka import Kafka, create_topic, read_topic, settled
from devkit.clusters.spark import of_a_small_job
from devkit.waits import until
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.kafka_source import KafkaSource
from remora_pipeline.replay.pipeline.iceberg import land as landing
from remora_pipeline.replay.pipeline.iceberg.commits import LandedOffsets, append, landed_in
from remora_pipeline.replay.pipeline.iceberg.lag import lake_state
from remora_pipeline.replay.pipeline.iceberg.land import LakePlan, land_in_lake
from replay.lakes import lake, rows, table
from replay.test_pipeline_land import fill, headers, notification, producer

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1800)]


def by_duckdb(of: Table, *columns: str) -> list[tuple[Any, ...]]:
    """A table as DuckDB's own reader of Iceberg sees it."""
    connection = duckdb.connect()
    for package in ("avro", "iceberg"):
        folder = Path(str(files(f"duckdb_extension_{package}")))
        (extension,) = folder.glob("extensions/*/*.duckdb_extension")
        connection.execute(f"load '{extension}'")
    found = connection.execute(f"select {', '.join(columns)} from iceberg_scan('{of.metadata_location}')").fetchall()
    return sorted(found)


def by_spark(spark: SparkSession, of: Table, *columns: str) -> list[tuple[Any, ...]]:
    """The files of the table's snapshot as Spark's own reader of Parquet sees them."""
    paths = [task.file.file_path for task in of.scan().plan_files()]
    return sorted(tuple(row) for row in spark.read.parquet(*paths).select(*columns).collect())


async def test_everything_lands_once_for_every_reader(
    kafka: Kafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed records land once, by day and bucket, or are kept aside; a run that dies between its two commits goes
    on with the same records; pyiceberg, DuckDB and Spark read equal rows."""
    topic, odd = await create_topic(kafka.address, partitions=2), "a/b=c ü+%*[x]"
    async with producer(kafka) as sender:
        await sender.send(topic, notification(0, odd, "k ü+%\n\x01"), partition=0, headers=headers(0))
        await sender.send(topic, b"{", partition=1, headers=headers(1))
        await sender.send(topic, described(notification(2, day=20)), partition=1)
        await sender.flush()
    async with producer(kafka, transactional_id=f"{topic}-t") as sender:
        for is_kept in (False, True):
            await sender.begin_transaction()
            await sender.send(topic, notification(3 + is_kept), partition=0)
            await (sender.commit_transaction() if is_kept else sender.abort_transaction())
    assert await settled(kafka.address, topic)
    plan = LakePlan(KafkaSource(kafka.address, topic), lake(tmp_path))
    state = partial(asyncio.to_thread, lake_state, KafkaSource(kafka.address, topic), lake(tmp_path))
    nothing = await state()

    def dying(to: Table, *rest: Any) -> None:
        if to.name()[-1] == "events":
            raise ReplayRefused("killed between the two commits")
        append(to, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(landing, "append", dying)
        with pytest.raises(ReplayRefused, match="killed"):
            await asyncio.to_thread(land_in_lake, plan)
    await fill(kafka, topic, range(10, 12))
    before, after = await asyncio.to_thread(land_in_lake, plan)

    events, bad = table(tmp_path, "events"), table(tmp_path, "bad")
    assert before == LandedOffsets()
    assert (after.batch, after.events, after.bad) == (1, 5, 1)
    assert await asyncio.to_thread(land_in_lake, plan) == (after, after)
    landed = await state()
    assert (nothing.landed, nothing.newest_us, nothing.events, nothing.bad) == ({0: 0, 1: 0}, 0, 0, 0)
    assert (landed.topic, landed.lag, landed.events, landed.bad) == (topic, 0, 5, 1)
    newest = max(time for (time,) in rows(events, "record_timestamp"))
    assert landed.newest_us == (newest - EPOCH) // timedelta(microseconds=1)
    await fill(kafka, topic, range(20, 22))
    assert (await state()).lag == 2
    assert rows(bad, "value", "partition", "offset") == [(b"{", 1, 0)]
    expected = {(odd, "k ü+%\n\x01", "id-0"), *(("photos", "k", f"id-{number}") for number in (2, 4, 10, 11))}
    assert set(rows(events, "bucket", "key", "event_id")) == expected
    assert {each.file.partition[1] for each in events.scan().plan_files()} == {odd, "photos"}
    columns = tuple(field.name for field in events.schema().fields)
    (found,) = (row for row in rows(events, "event_id", "user_metadata", "object_tags") if row[0] == "id-2")
    assert [*map(as_plain, found[1:])] == [[("x-amz-meta-none", ""), ("x-amz-meta-ü", "a=b")], [("year", "2026")]]
    ordered = ("partition", "offset", *(name for name in columns if name not in ("partition", "offset")))
    as_read = [tuple(map(as_plain, row)) for row in rows(events, *ordered)]
    assert [tuple(map(as_plain, row)) for row in by_duckdb(events, *(f'"{name}"' for name in ordered))] == as_read
    assert [tuple(map(as_plain, row)) for row in by_spark(spark, events, *ordered)] == as_read

    other = LakePlan(KafkaSource(kafka.address, await create_topic(kafka.address, partitions=1)), lake(tmp_path))
    with pytest.raises(ReplayRefused, match=f"holds the events of topic {topic}"):
        await asyncio.to_thread(land_in_lake, other)


def described(value: bytes) -> bytes:
    """The same notification of an object with metadata and tags, an empty one among them."""
    document = json.loads(value)
    pairs = [{"key": "x-amz-meta-ü", "val": "a=b"}, {"key": "x-amz-meta-none", "val": ""}]
    document["Records"][0]["s3"]["object"] |= {"metadata": pairs, "tags": [{"key": "year", "val": "2026"}]}
    return json.dumps(document).encode()


def as_plain(value: Any) -> Any:
    """Bytes, times and maps, which readers have as several types; Spark's times are those of this host's zone."""
    match value:
        case bytearray() | memoryview():
            return bytes(value)
        case datetime():
            return value.astimezone(UTC)
        case dict() | list():
            return sorted(dict(value).items())
        case _:
            return value


@pytest.mark.full("starts Spark ten times; a death at each step of the commits is at the gate")
@pytest.mark.timeout(7200)
async def test_killed_again_and_again(kafka: Kafka, spark: SparkSession, tmp_path: Path) -> None:
    """Killed at any moment, alone or with its Java, ten times while records come, each of them lands once."""
    topic, draw, sent = await create_topic(kafka.address, partitions=2), random.Random(5), 0
    address = lake(tmp_path)
    plan = LakePlan(KafkaSource(kafka.address, topic), address)
    await asyncio.to_thread(land_in_lake, plan)  # makes the tables
    command = [sys.executable, "-m", "remora", "pipeline", "land", "--bootstrap", kafka.address, "--topic", topic]
    command += ["--table", "iceberg", "--catalog", address.uri, "--warehouse", str(address.warehouse)]
    command += ["--trigger", "10ms", "--batch", "16", "--master", "local[2]"]
    for attempt in range(int(os.environ.get("LANDING_TEST_KILLS", "10"))):
        await fill(kafka, topic, range(sent, sent + 200))
        sent += 200
        said = tmp_path / f"said-{attempt}"
        process = started(command, of_a_small_job(), said)
        wanted = landed_in(table(tmp_path, "events")).batch + draw.randrange(1, 4)
        try:
            await until(partial(is_time, process, said, tmp_path, wanted, sent), said.read_text, within_s=3600)
            await asyncio.sleep(draw.random() * 0.5)  # anywhere within a batch
        finally:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if draw.random() < 0.5 else os.kill)(process.pid, signal.SIGKILL)
                process.wait(timeout=60)
                os.killpg(process.pid, signal.SIGKILL)

    await asyncio.to_thread(land_in_lake, plan)

    expected = sorted((record.partition, record.offset) for record in await read_topic(kafka.address, topic))
    assert len(expected) == sent
    assert rows(table(tmp_path, "events"), "partition", "offset") == expected


def started(command: list[str], env: dict[str, str], said: Path) -> subprocess.Popen[bytes]:
    """A process with a group of its own; what it says goes into a file."""
    with said.open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)


def is_time(process: subprocess.Popen[bytes], said: Path, folder: Path, batch: int, events: int) -> bool:
    """Whether this batch has landed, or there is nothing left to be in the middle of."""
    assert process.poll() is None, said.read_text()
    landed = landed_in(table(folder, "events"))
    return landed.batch >= batch or landed.events >= events
