"""A landing in a lake that dies at each of its commits, through a real broker: each record is there once."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from devkit.clusters.kafka import Kafka, create_topic, read_topic
from remora_pipeline.replay.kafka_source import KafkaSource
from remora_pipeline.replay.pipeline.iceberg import land as landings
from remora_pipeline.replay.pipeline.iceberg.commits import append
from remora_pipeline.replay.pipeline.iceberg.land import LakePlan, land_in_lake
from replay import lakes
from replay.test_lake_commits import Killed
from replay.test_pipeline_land import headers, notification, producer

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]


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
    topic = await create_topic(kafka.address, partitions=2)
    landing = partial(land_in_lake, LakePlan(KafkaSource(kafka.address, topic), lakes.lake(tmp_path)))

    def doomed(name: str, is_behind: bool, to: Table, *rest: Any) -> None:
        is_it = to.name()[-1] == name
        if is_it and not is_behind:
            raise Killed
        append(to, *rest)
        if is_it:
            raise Killed

    for number, (name, is_behind) in enumerate(product(("bad", "events"), (False, True))):
        await send(kafka, topic, 2 * number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(landings, "append", partial(doomed, name, is_behind))
            with pytest.raises(Killed):
                await asyncio.to_thread(landing)
    await asyncio.to_thread(landing)

    assert in_lake(tmp_path) == await expected(kafka, topic)
