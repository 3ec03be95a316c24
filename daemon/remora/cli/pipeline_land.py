"""`remora pipeline land`: notifications from Kafka as Parquet, or as tables of a catalog."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Protocol

import click

from remora.cli.lake import lake_options
from remora.cli.options import NEW_FOLDER, gathered_into, json_option, kafka_config_option, master_option
from remora.cli.output import print_json
from remora.config import parse_duration
from remora.model.exits import Exit
from remora.replay import properties
from remora.replay.pipeline.directory import LandedDirectory
from remora.replay.pipeline.land import Plan
from remora.replay.pipeline.land import land as run
from remora.replay.steps import told

if TYPE_CHECKING:
    from remora.replay.pipeline.iceberg.catalog import LakeAddress


def _interval(_context: click.Context, _option: click.Parameter, value: str) -> float | None:
    if value == "once":
        return None
    try:
        return float(parse_duration(value))
    except ValueError as exc:
        raise click.BadParameter(f"{value}: expected once, or a duration such as 30s or 5m") from exc


def _local(_context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and ":/" in str(value):
        raise click.BadParameter(f"{value}: a folder that all hosts of the job share is needed, not an address")
    return value


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of `remora pipeline land`."""

    bootstrap: str
    topic: str
    out: Path | None
    checkpoint: Path | None
    interval_s: float | None
    batch: int
    isolation: str
    skip_lost: bool
    kafka_config: Path | None
    master: str | None
    as_json: bool


@click.command("land")
@click.option("--bootstrap", required=True, metavar="HOST:PORT,...", help="Kafka brokers.")
@click.option("--topic", required=True, help="Kafka topic.")
@click.option("--out", type=NEW_FOLDER, callback=_local, help="Folder of the tables, without a catalog.")
@click.option(
    "--checkpoint",
    type=NEW_FOLDER,
    callback=_local,
    help="Folder of its progress.  [default: _checkpoint within --out]",
)
@click.option(
    "--trigger",
    "interval_s",
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
@lake_options
@kafka_config_option
@master_option
@json_option
@gathered_into(_Options)
def land(asked: _Options, lake: LakeAddress | None) -> None:
    """Land the notifications of a Kafka topic, each once, by day and bucket.

    OUT/events has a row for each event, OUT/bad each value that is no notification, with the cause. Run it again, by
    hand or a timer, and it goes on where it ended, also after it was killed: nothing is lost or doubled. Any reader of
    Parquet can read both tables at any time.

    With --table iceberg they are the tables NAMESPACE.events and NAMESPACE.bad of a catalog, in any store that this
    has, and no folder is needed.

    \b
    Examples:
      remora pipeline land --bootstrap broker:9092 --topic photos --out landed
      remora pipeline land --bootstrap broker:9092 --topic photos --out landed --trigger 1m
      remora pipeline land --bootstrap broker:9092 --topic photos --table iceberg --catalog https://catalog/
    """
    if lake is not None:
        _land_in_lake(asked, lake)
        return
    if asked.out is None:
        raise click.UsageError("Missing option '--out'.")
    plan = Plan(
        bootstrap=asked.bootstrap,
        topic=asked.topic,
        out=asked.out,
        checkpoint=asked.checkpoint or asked.out / "_checkpoint",
        interval=None if asked.interval_s is None else f"{round(asked.interval_s * 1000)} milliseconds",
        batch=asked.batch,
        isolation=asked.isolation,
        skip_lost=asked.skip_lost,
        security=properties.read(asked.kafka_config) if asked.kafka_config else {},
    )
    directory = LandedDirectory(asked.out)
    before = directory.commit()
    stop = Event()
    if asked.interval_s is not None:
        _note("starting Spark")
        run(plan, master=asked.master, told=_told, noted=_note, stop=stop)
    else:
        with told() as tell:
            tell("starting Spark, then landing what is there")
            run(plan, master=asked.master, noted=_note, stop=stop)
    _end_where_interrupted(asked, stop)
    _report(str(asked.out), before, directory.commit(), as_json=asked.as_json)


def _land_in_lake(asked: _Options, lake: LakeAddress) -> None:
    from remora.replay.pipeline.iceberg.land import LakePlan, land_in_lake  # its libraries take a second to load

    if asked.out is not None or asked.checkpoint is not None:
        raise click.UsageError("--out and --checkpoint are for folders; with --catalog both are the catalog's")
    plan = LakePlan(
        bootstrap=asked.bootstrap,
        topic=asked.topic,
        lake=lake,
        interval_s=asked.interval_s,
        batch=asked.batch,
        isolation=asked.isolation,
        skip_lost=asked.skip_lost,
        security=properties.read(asked.kafka_config) if asked.kafka_config else {},
    )
    stop = Event()
    if asked.interval_s is not None:
        _note("starting Spark")
        before, after = land_in_lake(plan, master=asked.master, told=_told, stop=stop)
    else:
        with told() as tell:
            tell("starting Spark, then landing what is there")
            before, after = land_in_lake(plan, master=asked.master, told=lambda _: None, stop=stop)
    _end_where_interrupted(asked, stop)
    _report(lake.named("events"), before, after, as_json=asked.as_json)


def _end_where_interrupted(asked: _Options, stop: Event) -> None:
    if stop.is_set() and asked.interval_s is None:
        click.echo("remora: interrupted; what is missing lands next time", err=True)
        sys.exit(Exit.FAILURE)


class _Totals(Protocol):
    """What has landed in all."""

    @property
    def batch(self) -> int:
        """The last batch."""

    @property
    def events(self) -> int:
        """All events."""

    @property
    def bad(self) -> int:
        """All values that are kept aside."""


def _told(commit: _Totals) -> None:
    click.echo(f"batch {commit.batch}: {commit.events:,} events and {commit.bad:,} bad records in all", err=True)


def _note(text: str) -> None:
    click.echo(f"remora: {text}", err=True)


def _report(out: str, before: _Totals, after: _Totals, *, as_json: bool) -> None:
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
