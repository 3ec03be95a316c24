"""The jobs behind Kafka on a standalone Spark cluster whose executors are killed while they work."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from devkit.clusters.kafka import Kafka, create_topic
from devkit.clusters.spark_cluster import SparkCluster
from remora.cli import group
from remora.model.exits import Exit
from remora_pipeline.replay.pipeline.iceberg.tables import FORMS
from replay import lakes
from replay.on_cluster import on_the_cluster
from replay.test_pipeline_land import headers, notification, producer
from replay.test_reconcile import listing

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.full("Spark in local mode guards the jobs at the gate"),
    pytest.mark.timeout(3600),
]


async def send(kafka: Kafka, topic: str, events: int) -> None:
    """Events of two buckets and forty keys, and values that are none."""
    async with producer(kafka) as sender:
        for number in range(events):
            value = notification(number, ("photos", "other")[number % 3 == 0], f"k{number % 40}", 20 + number % 2)
            await sender.send(topic, value if number % 50 else b"{", headers=headers(number), partition=number % 2)
        await sender.flush()


def jobs(kafka: Kafka, topic: str, folder: Path, listed: Path) -> list[list[str]]:
    """The commands, each behind those whose tables it reads."""
    address = lakes.lake(folder)
    tables = ["--table", "iceberg", "--catalog", address.uri, "--warehouse", str(address.warehouse)]
    source = ["land", "--bootstrap", kafka.address, "--topic", topic]
    inventory = folder / "inventory"
    return [
        [*source, "--out", str(folder / "landed")],
        [*source, *tables],
        ["inventory", str(folder / "landed"), "--out", str(inventory)],
        ["inventory", *tables],
        [
            "reconcile",
            "photos",
            "--inventory",
            str(inventory),
            "--listing",
            str(listed),
            "--out",
            str(folder / "found"),
        ],
    ]


def code_of(command: list[str]) -> int:
    """The exit code of a job that has done its work."""
    return Exit.DIFFERS if command[0] == "reconcile" else 0


def folder_rows(folder: Path) -> list[str]:
    """All rows of Parquet below a folder, in an order of their own."""
    return sorted(repr(row) for file in folder.rglob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist())


def made(folder: Path) -> Mapping[str, Any]:
    """The rows of every table that the jobs make."""
    names = ("events", "bad", "inventory")
    of_lake = {
        f"lake {name}": lakes.rows(lakes.table(folder, name), *(each.name for each in FORMS[name][0].fields))
        for name in names
    }
    folders = ("landed/events", "landed/bad", "inventory/current", "found")
    return {name: folder_rows(folder / name) for name in folders} | {
        name: sorted(map(repr, rows)) for name, rows in of_lake.items()
    }


def test_killed_executors_change_no_row(
    kafka: Kafka, spark_cluster: SparkCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each job has the rows of local mode, though all of its executors are killed within a stage."""
    topic = asyncio.run(create_topic(kafka.address, partitions=2))
    asyncio.run(send(kafka, topic, 600))
    at = datetime(2026, 11, 21, tzinfo=UTC)
    listed = listing(tmp_path / "listing.json", ("k1", 1, "e", "null", at), ("never", 7, "e", "null", at))
    os.utime(listed, ((at + timedelta(days=2)).timestamp(),) * 2)
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()

    for command in jobs(kafka, topic, there, listed):
        on_the_cluster(spark_cluster, ["pipeline", *command], code=code_of(command))
    request.getfixturevalue("spark")  # only now: one session at a time is enough for a host
    for command in jobs(kafka, topic, here, listed):
        done = CliRunner().invoke(group, ["pipeline", *command])
        assert done.exit_code == code_of(command), f"{command}\n{done.output}"

    expected, found = made(here), made(there)
    assert all(expected.values()), {name: len(rows) for name, rows in expected.items()}
    assert {name: len(rows) for name, rows in found.items()} == {name: len(rows) for name, rows in expected.items()}
    assert found == expected
