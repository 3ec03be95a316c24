"""From a log to a verdict: prepare, run, verify and report, against a real daemon with two workers and a real Kafka."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from devkit.clusters.kafka import Kafka, create_topic
from devkit.processes.daemon import Daemon, running_daemon
from devkit.waits import PATIENT_S
from remora.cli import group
from remora_pipeline.replay import layout, results

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]

SAMPLE = Path(__file__).parents[1] / "data/replay/sample.csv.gz"
EVENTS = 2000
WRONG = ("lost", "ghosts", "foreign", "altered", "malformed", "inversions", "keys_in_several_partitions",
         "final_state_wrong", "chain_gaps")  # fmt: skip


async def remora(*arguments: str | Path) -> Result:
    """A command, within this process and its Spark session; the test goes on meanwhile."""
    return await asyncio.to_thread(CliRunner().invoke, group, list(map(str, arguments)))


async def succeed(*arguments: str | Path) -> None:
    """Run a command that has to end with 0."""
    done = await remora(*arguments)
    assert done.exit_code == 0, f"{arguments[:2]}: {done.output}{done.exception!r}"


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample as events."""
    out = tmp_path_factory.mktemp("prepared") / "sam[p]le {1,2}"
    asyncio.run(succeed("replay", "prepare", SAMPLE, "--out", out, "--max-gap", "1"))
    return out


def sections(folder: Path) -> dict[str, dict[str, object]]:
    """A daemon on the embedded store, with two workers, that soon looks for a broker again."""
    return {
        "sqlite": {"directory": str(folder / "queues")},
        "supervisor": {"workers": 2},
        "delivery": {"retry_cap": "1s"},
        "kafka": {"delivery_timeout": "5s", "connect_timeout": "3s"},
    }


async def make_topic(daemon: Daemon, kafka: Kafka, *options: str) -> str:
    """A topic of remora's own and one of Kafka, of the same name."""
    name = await create_topic(kafka.address)
    made = await daemon.command("topic", "create", name, "--endpoint", f"kafka://{kafka.address}", *options)
    assert made.code == 0, made.err
    return name


async def drained(daemon: Daemon) -> None:
    """Return when nothing waits any more."""

    async def is_empty() -> bool:
        return not any(each["entries"] for each in (await daemon.command("topic", "stats", "--json")).json)

    await daemon.until(is_empty, "empty queues", PATIENT_S)


def verdict_of(run: Path) -> results.TopicVerdict:
    return layout.read(layout.RunDirectory(run).verdict, results.TopicVerdict)


def wrong(verdict: results.TopicVerdict) -> dict[str, int]:
    """The counts that may not be above 0, and are."""
    return {name: verdict.counts[name] for name in WRONG if verdict.counts[name]}


@pytest.mark.guarantee("what-a-verdict-says")
async def test_all_of_a_trace_arrives_once(kafka: Kafka, prepared: Path, tmp_path: Path) -> None:
    """A trace that is sent as fast as allowed is verified as whole, and its report gives the verdict's numbers."""
    run = tmp_path / "run [1]*, ü"
    async with running_daemon(tmp_path, sections(tmp_path)) as daemon:
        topic = await make_topic(daemon, kafka)

        await succeed(
            "replay", "run", prepared, "--out", run, "--topic", topic, "--ingest", daemon.ingest, "--speed", "0"
        )
        await drained(daemon)

        await succeed("replay", "verify", run, "--bootstrap", kafka.address)
        await succeed("replay", "report", run)

    verdict = verdict_of(run)
    assert (verdict.verdict, verdict.reasons, wrong(verdict)) == (results.PASS, (), {})
    assert {name: verdict.counts[name] for name in ("in_trace", "acked", "distinct")} == dict.fromkeys(
        ("in_trace", "acked", "distinct"), EVENTS
    )
    summary = json.loads((layout.RunDirectory(run).report / "summary.json").read_text())
    assert summary["counts"] == verdict.counts
    assert "PASS" in (layout.RunDirectory(run).report / "index.html").read_text()
