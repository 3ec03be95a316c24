"""`remora pipeline land`: notifications from Kafka as Parquet."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import click

from remora.cli.options import NEW_FOLDER, gathered_into, json_option, kafka_config_option, master_option
from remora.cli.output import print_json
from remora.config import parse_duration
from remora.model.exits import Exit
from remora.replay import properties
from remora.replay.errors import ReplayError
from remora.replay.job_telemetry import JobTelemetry, LandingState
from remora.replay.pipeline.directory import Commit, LandedDirectory
from remora.replay.pipeline.land import Plan
from remora.replay.pipeline.land import land as run
from remora.replay.pipeline.landing_state import landing_state
from remora.replay.spark_stages import running_stage
from remora.replay.steps import told


def _interval(_context: click.Context, _option: click.Parameter, value: str) -> str | None:
    if value == "once":
        return None
    try:
        seconds = float(parse_duration(value))
    except ValueError as exc:
        raise click.BadParameter(f"{value}: expected once, or a duration such as 30s or 5m") from exc
    return f"{round(seconds * 1000)} milliseconds"


def _local(_context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and ":/" in str(value):
        raise click.BadParameter(f"{value}: a folder that all hosts of the job share is needed, not an address")
    return value


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of `remora pipeline land`."""

    bootstrap: str
    topic: str
    out: Path
    checkpoint: Path | None
    interval: str | None
    batch: int
    isolation: str
    skip_lost: bool
    metrics: str | None
    is_dry: bool
    kafka_config: Path | None
    master: str | None
    as_json: bool


@click.command("land")
@click.option("--bootstrap", required=True, metavar="HOST:PORT,...", help="Kafka brokers.")
@click.option("--topic", required=True, help="Kafka topic.")
@click.option("--out", required=True, type=NEW_FOLDER, callback=_local, help="Folder of the tables.")
@click.option(
    "--checkpoint",
    type=NEW_FOLDER,
    callback=_local,
    help="Folder of its progress.  [default: _checkpoint within --out]",
)
@click.option(
    "--trigger",
    "interval",
    default="once",
    metavar="once|DURATION",
    show_default=True,
    callback=_interval,
    help="Land the present records and end; or go on until stopped, with at most one batch in this time.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=500_000,
    show_default=True,
    metavar="RECORDS",
    help="Most records in a batch; each bucket and day in it becomes a file.",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Whether records of open and aborted transactions are left out.",
)
@click.option("--skip-lost", is_flag=True, help="Go on where Kafka has removed records before they landed.")
@click.option(
    "--metrics",
    metavar="FILE|URL",
    help="Write metrics to this file (*.prom) after each batch and at the end, or push them to this Pushgateway.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would land, and land nothing.")
@kafka_config_option
@master_option
@json_option
@gathered_into(_Options)
def land(asked: _Options) -> None:
    """Land the notifications of a Kafka topic as Parquet, each once, by day and bucket.

    OUT/events has a row for each event, OUT/bad each value that is no notification, with the cause. Run it again, by
    hand or a timer, and it goes on where it ended, also after it was killed: nothing is lost or doubled. Any reader of
    Parquet can read both tables at any time.

    \b
    Examples:
      remora pipeline land --bootstrap broker:9092 --topic photos --out landed
      remora pipeline land --bootstrap broker:9092 --topic photos --out landed --trigger 1m
    """
    plan = Plan(
        bootstrap=asked.bootstrap,
        topic=asked.topic,
        out=asked.out,
        checkpoint=asked.checkpoint or asked.out / "_checkpoint",
        interval=asked.interval,
        batch=asked.batch,
        isolation=asked.isolation,
        skip_lost=asked.skip_lost,
        security=properties.read(asked.kafka_config) if asked.kafka_config else {},
    )
    if asked.is_dry:
        _say_what_would_land(landing_state(plan.source, plan.out, plan.checkpoint), as_json=asked.as_json)
        return
    directory = LandedDirectory(asked.out)
    before = directory.commit()
    stop, began = Event(), time.monotonic()

    def landed(commit: Commit) -> None:
        if asked.interval:
            _told(commit)
        _export(plan, asked.metrics, began)

    with told(far=running_stage) as tell:
        tell(f"landing {asked.topic}")
        run(plan, master=asked.master, told=landed, noted=_note, stop=stop)
    _export(plan, asked.metrics, began)
    if stop.is_set() and not asked.interval:
        click.echo("remora: interrupted; what is missing lands next time", err=True)
        sys.exit(Exit.FAILURE)
    _report(asked.out, before, directory.commit(), as_json=asked.as_json)


def _told(commit: Commit) -> None:
    click.echo(f"batch {commit.batch}: {commit.events:,} events and {commit.bad:,} bad records in all", err=True)


def _export(plan: Plan, target: str | None, began: float) -> None:
    """Export what has landed; a receiver that is away is remarked on, and keeps nothing from landing."""
    if target is None:
        return
    try:
        telemetry = JobTelemetry()
        telemetry.landing(landing_state(plan.source, plan.out, plan.checkpoint), began)
        telemetry.export(target, plan.topic)
    except ReplayError as exc:
        _note(str(exc))


def _say_what_would_land(state: LandingState, *, as_json: bool) -> None:
    spans = {
        str(number): (state.landed.get(number, 0), end)
        for number, end in sorted(state.ends.items())
        if state.landed.get(number, 0) < end
    }
    if as_json:
        print_json({"topic": state.topic, "records": state.lag, "offsets": spans})
        return
    click.echo(f"{state.topic}: {state.lag:,} records would land")
    for number, (first, end) in spans.items():
        click.echo(f"  partition {number}: offsets {first} to {end - 1}")


def _note(text: str) -> None:
    click.echo(f"remora: {text}", err=True)


def _report(out: Path, before: Commit, after: Commit, *, as_json: bool) -> None:
    new = {
        "batches": after.batch - before.batch,
        "events": after.events - before.events,
        "bad": after.bad - before.bad,
    }
    if as_json:
        print_json(new | {"events_in_all": after.events, "bad_in_all": after.bad, "last_batch": after.batch})
        return
    click.echo(
        f"{out}: landed {new['events']:,} events and {new['bad']:,} bad records in {new['batches']:,} batches;"
        f" {after.events:,} and {after.bad:,} in all"
    )
