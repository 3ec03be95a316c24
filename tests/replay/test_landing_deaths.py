"""Landings that are killed at each of their steps, through a real broker: each record is there once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.clusters.kafka import Kafka, create_topic, read_topic
from devkit.clusters.spark import QUICK_JVM, connector_jars
from remora.replay.kafka_source import KafkaSource
from remora.replay.pipeline.iceberg.land import LakePlan, land_in_lake
from remora.replay.pipeline.land import land
from replay import lakes, landing_deaths
from replay.landing_deaths import CATALOG_STEPS, COMMITS, FOLDER_STEPS, LAKE_STEPS, doom
from replay.test_lake_commits import Killed
from replay.test_pipeline_land import headers, notification, places, plan, producer, rows

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(3600)]


async def send(kafka: Kafka, topic: str, first: int) -> None:
    """Two events and a value that is none."""
    async with producer(kafka) as sender:
        for number in (first, first + 1):
            await sender.send(topic, notification(number), headers=headers(number), partition=number % 2)
        await sender.send(topic, b"{", headers=headers(first), partition=0)
        await sender.flush()


async def expected(kafka: Kafka, topic: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where the events are in Kafka, and where the other values are."""
    records = await read_topic(kafka.address, topic)
    return (
        sorted((record.partition, record.offset) for record in records if record.value != b"{"),
        sorted((record.partition, record.offset) for record in records if record.value == b"{"),
    )


def in_lake(folder: Path) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The same of what is in the tables of a catalog."""
    events, bad = (lakes.rows(lakes.table(folder, name), "partition", "offset") for name in ("events", "bad"))
    return events, bad


async def test_each_event_lands_once_wherever_a_landing_dies(kafka: Kafka, spark: SparkSession, tmp_path: Path) -> None:
    """Dead before and behind the commit of each of a batch's two tables, each record lands once in a later run."""
    topic, died = await create_topic(kafka.address, partitions=2), list[str]()
    landing = partial(land_in_lake, LakePlan(KafkaSource(kafka.address, topic), lakes.lake(tmp_path)))

    def die(told: str) -> None:
        died.append(told)
        raise Killed

    for point in range(9):
        await send(kafka, topic, 2 * point)
        with pytest.MonkeyPatch.context() as patch:
            doom(COMMITS, point, die, patch.setattr)
            try:
                await asyncio.to_thread(landing)
                break
            except Killed:
                pass
    await asyncio.to_thread(landing)

    assert set(died) == {f"{when} {name}" for when in ("before", "behind") for _, name in COMMITS}
    assert in_lake(tmp_path) == await expected(kafka, topic)


@pytest.mark.full("fifty starts of Spark; deaths at the steps within one process are at the gate")
@pytest.mark.parametrize("form", ["iceberg", "parquet"])
async def test_a_driver_killed_at_each_step(kafka: Kafka, spark: SparkSession, tmp_path: Path, form: str) -> None:
    """Killed at one step after the other, 25 times, alone or with its Java, a landing has each record once."""
    topic, out, died = await create_topic(kafka.address, partitions=2), tmp_path / "landed", list[str]()
    arguments = ["land", "--bootstrap", kafka.address, "--topic", topic, "--master", "local[2]"]
    address = lakes.lake(tmp_path)
    if form == "iceberg":
        arguments += ["--table", "iceberg", "--catalog", address.uri, "--warehouse", str(address.warehouse)]
    else:
        arguments += ["--out", str(out)]
    point, sent = 0, 0
    while len(died) < 25:
        await send(kafka, topic, sent)
        sent += 2
        at = tmp_path / f"died-{len(died)}"
        kill = "group" if len(died) % 2 else "alone"
        await asyncio.to_thread(run_to_death, [str(point), str(at), kill, *arguments], tmp_path / "said")
        if at.exists():
            died.append(at.read_text())
            point += 1
        else:  # a run has fewer steps
            assert point
            point = 0

    if form == "iceberg":
        await asyncio.to_thread(land_in_lake, LakePlan(KafkaSource(kafka.address, topic), address))
        assert in_lake(tmp_path) == await expected(kafka, topic)
    else:
        await asyncio.to_thread(land, plan(kafka, topic, out))
        assert (places(rows(out / "events")), places(rows(out / "bad"))) == await expected(kafka, topic)
    steps = LAKE_STEPS + CATALOG_STEPS if form == "iceberg" else FOLDER_STEPS
    assert set(died) == {f"{when} {name}" for when in ("before", "behind") for _, name in steps}, died


def run_to_death(arguments: list[str], said: Path) -> None:
    """Run a landing until it kills itself, or to its end; nothing of it is left."""
    env = os.environ | {
        "REMORA_SPARK_JARS": str(Path(connector_jars()[0]).parent),
        "SPARK_SUBMIT_OPTS": QUICK_JVM,
        "PYSPARK_PYTHON": sys.executable,
    }
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, landing_deaths.__file__, *arguments],
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,
        )
    try:
        assert process.wait(timeout=900) in (0, -signal.SIGKILL), said.read_text()[-3000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
