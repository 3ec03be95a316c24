"""Replay and verify on a real standalone Spark cluster: a master, and two workers of one core each."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from devkit.clusters.kafka import Kafka
from devkit.clusters.spark_cluster import SparkCluster
from remora.cli import group
from remora_pipeline.replay import layout
from remora_pipeline.replay.layout import RunDirectory
from remora_pipeline.replay.results import PASS, TopicVerdict
from support.replayed import RUN_ID, Rec, events, fill, good, new_topic, prepare

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.full("Spark in local mode guards the jobs at the gate"),
    pytest.mark.timeout(1800),
]

_BOTH = """
import sys
import time
from dataclasses import replace
from remora.cli import group
from remora_pipeline.replay.session import ONCE, session

master, *commands = sys.argv[1:]
with session("test", master=master, kafka=True, settings=ONCE | {"spark.sql.shuffle.partitions": "2"}):
    for command in commands:
        try:
            group(command.split("\\t"), standalone_mode=False)
        except SystemExit as exc:
            if exc.code:
                raise
"""
"""Both commands in one process, so that one JVM is started; the session is as `--master` makes it."""


async def filled(address: str, records: list[Rec]) -> str:
    """A topic with these records."""
    topic = await new_topic(address)
    await fill(address, topic, records)
    return topic


def test_a_cluster_gives_the_same_verdict(
    kafka: Kafka, spark: SparkSession, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    """A trace that is sent by two workers is sent once and in order, and they verify it with the bytes of a verdict
    that one host gives."""
    trace, run = events(40), RunDirectory(tmp_path / "run")
    prepared = prepare(tmp_path / "prepared", trace)
    # Verify judges records from the beginning of the run on.
    soon_us = time.time_ns() // 1000 + 600_000_000
    topic = asyncio.run(filled(kafka.address, [replace(each, at_us=soon_us) for each in good(trace)]))
    replay = ["replay", "run", prepared.path, "--out", run.path, "--null", "--speed", "0", "--parts", "2"]
    replay += ["--run-id", RUN_ID, "--topic", topic]
    verify = ["replay", "verify", run.path, "--bootstrap", kafka.address, "--settle", "0s", "--no-series"]

    command = [sys.executable, "-c", _BOTH, spark_cluster.master]
    command += ["\t".join(map(str, each)) for each in (replay, verify)]
    done = subprocess.run(command, env=spark_cluster.env, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    there = layout.read(run.verdict, TopicVerdict)
    assert there.verdict == PASS
    assert (there.counts["acked"], there.counts["in_kafka"]) == (40, 40)
    assert len(list(run.journal.glob("part=*"))) == 2

    again = [*map(str, verify), "--offsets", str(run.verdict), "--out", str(tmp_path / "here")]
    assert CliRunner().invoke(group, again).exit_code == 0
    assert RunDirectory(tmp_path / "here").verdict.read_bytes() == run.verdict.read_bytes()
