"""`remora replay`: real traffic again, and what Kafka then has of it."""

from __future__ import annotations

import click

from remora_pipeline.cli.spark import SparkCommands

MODULES: dict[str, str] = {
    "prepare": "replay_prepare:prepare_command",
    "run": "replay_run:run_command",
    "verify": "replay_verify:verify",
    "report": "replay_report:report",
}


@click.group(cls=SparkCommands, modules=MODULES)
def replay() -> None:
    """Replay real traffic against a server, and prove from Kafka what arrived.

    Logs that object stores write become events; the events are sent again on their own timeline, to remora's ingest
    API or to an S3 gateway; then Kafka is read back and compared with what was sent. Needs Java 17 and
    pip install remorad-pipeline; runs on this host, or on a Spark cluster (--master, or spark-submit).

    \b
    Start with:
      remora replay prepare access.log.gz --out trace
      remora replay run trace --out run-1 --topic photos --speed 60
      remora replay verify run-1 --bootstrap broker:9092
      remora replay report run-1
    """
