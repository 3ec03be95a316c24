"""Prepare, run, verify and report on a standalone Spark cluster: a master, and two workers of one core each."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from devkit.clusters.kafka import Kafka
from devkit.clusters.spark_cluster import SparkCluster
from devkit.processes.daemon import Daemon, running_daemon
from devkit.waits import PATIENT_S
from remora.cli import group
from remora.model.exits import Exit
from remora_pipeline.replay import layout
from remora_pipeline.replay.layout import PreparedDirectory, RunDirectory
from remora_pipeline.replay.results import PASS, TopicVerdict
from remora_pipeline.replay.run.progress import Reading
from replay.on_cluster import on_the_cluster
from replay.prepared import prepare
from replay.sample import EVENTS, SAMPLE
from replay.test_end_to_end import drained, make_topic, remora, sections
from replay.test_run_ingest import trace

pytestmark = [
    pytest.mark.spark,
    pytest.mark.full("Spark in local mode guards the jobs at the gate"),
    pytest.mark.timeout(3600),
]

PAUSE_US = 40_000_000
COUNT, BEFORE = 200, 80


def events(prepared: PreparedDirectory) -> list[Mapping[str, Any]]:
    """What was prepared, in its order."""
    return sorted(ds.dataset(prepared.events).to_table().to_pylist(), key=lambda row: row["seq"])


def test_logs_become_the_same_events(
    spark_cluster: SparkCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A cluster whose executors are killed makes the trace of logs that one host makes of them."""
    command = ["replay", "prepare", str(SAMPLE), "--max-gap", "1", "--out"]
    there, here = PreparedDirectory(tmp_path / "there/trace"), PreparedDirectory(tmp_path / "here/trace")
    for each in (there, here):
        each.path.parent.mkdir()

    on_the_cluster(spark_cluster, [*command, there.path])
    request.getfixturevalue("spark")  # only now: one session at a time is enough for a host
    done = CliRunner().invoke(group, [*command, str(here.path)])

    assert done.exit_code == 0, done.output
    assert len(events(there)) == EVENTS
    assert events(there) == events(here)
    assert there.trace.read_bytes() == here.trace.read_bytes()


async def killed_in_the_middle(daemon: Daemon, cluster: SparkCluster, run: RunDirectory, command: list[Any]) -> str:
    """Send a trace until its executors are killed, which have sent a part of it; what is said."""
    sign = run.path.with_name("sign")
    sending = asyncio.create_task(
        asyncio.to_thread(on_the_cluster, cluster, command, kills_at=str(sign), code=Exit.FAILURE)
    )

    async def has_sent() -> bool:
        assert not sending.done(), sending.result()
        return Reading(run, 0).look().outcomes["acked"] > BEFORE // 2

    await daemon.until(has_sent, "the first events", PATIENT_S)
    sign.touch()
    return await sending


@pytest.mark.kafka
async def test_a_trace_is_sent_and_verified_as_by_one_host(
    kafka: Kafka, spark_cluster: SparkCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A replay whose executors are killed ends, is never sent again behind its back, and goes on; two workers, whose
    executors are killed as well, verify it with the bytes of a verdict that one host gives, and so is the report."""
    # A pause of the trace in which its tasks are busy, however late they are killed.
    wanted = [each._replace(ts_us=each.ts_us + PAUSE_US * (n >= BEFORE)) for n, each in enumerate(trace(COUNT))]
    prepared, run = prepare(tmp_path / "trace", wanted), RunDirectory(tmp_path / "there/run")
    run.path.parent.mkdir()
    async with running_daemon(tmp_path, sections(tmp_path)) as daemon:
        topic = await make_topic(daemon, kafka)
        replay: list[Any] = [
            "replay",
            "run",
            prepared.path,
            "--out",
            run.path,
            "--topic",
            topic,
            "--ingest",
            daemon.ingest,
        ]
        replay += ["--parts", "2", "--batch", "3"]
        said = await killed_in_the_middle(daemon, spark_cluster, run, replay)
        await asyncio.to_thread(on_the_cluster, spark_cluster, [*replay, "--resume"], kills_at=None)
        await drained(daemon)
    verify = ["replay", "verify", str(run.path), "--bootstrap", kafka.address, "--topic", topic, "--settle", "0s"]
    verify += ["--max-lateness", "1h", "--max-lateness-share", "1e9"]
    await asyncio.to_thread(on_the_cluster, spark_cluster, verify)
    here = RunDirectory(tmp_path / "here/run")
    shutil.copytree(run.path, here.path)

    request.getfixturevalue("spark")
    again = await remora(*verify, "--offsets", run.verdict, "--out", here.path)
    reports = [await remora("replay", "report", each.path, "--json") for each in (run, here)]

    assert "Traceback" not in said
    found = layout.read(run.verdict, TopicVerdict)
    assert found.verdict == PASS, found
    counts = found.counts
    assert (counts["acked"] + counts["unknown"], counts["lost"], counts["duplicates"]) == (COUNT, 0, 0)
    assert len(list(run.journal.glob("part=*"))) == 2
    assert again.exit_code == 0, again.output
    assert here.verdict.read_bytes() == run.verdict.read_bytes()
    assert [each.exit_code for each in reports] == [0, 0]
    assert reports[0].output == reports[1].output
