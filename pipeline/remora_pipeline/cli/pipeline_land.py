"""`remora pipeline land`: notifications from Kafka as Parquet, or as tables of a catalog."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Protocol

import click

from remora.cli.options import NEW_FOLDER, gathered_into, json_option, kafka_config_option, master_option
from remora.cli.output import print_json, print_line
from remora.cli.steps import told
from remora.config import parse_duration
from remora.model.exits import Exit
from remora.model.words import several
from remora_pipeline.cli.lake import lake_options
from remora_pipeline.replay import properties
from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.job_telemetry import JobTelemetry, LandingState
from remora_pipeline.replay.kafka_source import KafkaSource
from remora_pipeline.replay.pipeline.directory import LandedDirectory
from remora_pipeline.replay.pipeline.land import LandingPlan
from remora_pipeline.replay.pipeline.land import land as run
from remora_pipeline.replay.pipeline.landing_state import landing_state
from remora_pipeline.replay.spark_stages import running_stage

if TYPE_CHECKING:
    from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress


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
class _LandOptions:
    """The options of `remora pipeline land`."""

    bootstrap: str
    topic: str
    out: Path | None
    checkpoint: Path | None
    interval_s: float | None
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
@click.option(
    "--metrics",
    metavar="FILE|URL",
    help="Write metrics to this file (*.prom) after each batch and at the end, or push them to this Pushgateway.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would land, and land nothing.")
@kafka_config_option
@master_option
@json_option
@gathered_into(_LandOptions)
def land(asked: _LandOptions, lake: LakeAddress | None) -> None:
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
      remora pipeline land --bootstrap b:9092 --topic photos --table iceberg --catalog https://lake/
    """
    security = properties.read(asked.kafka_config) if asked.kafka_config else {}
    source = KafkaSource(asked.bootstrap, asked.topic, asked.isolation, security)
    if lake is not None:
        _land_in_lake(asked, source, lake)
        return
    if asked.out is None:
        raise click.UsageError("Missing option '--out'.")
    plan = LandingPlan(
        source=source,
        out=asked.out,
        checkpoint=asked.checkpoint or asked.out / "_checkpoint",
        interval=None if asked.interval_s is None else f"{round(asked.interval_s * 1000)} milliseconds",
        batch=asked.batch,
        skip_lost=asked.skip_lost,
    )
    if asked.is_dry:
        _say_what_would_land(landing_state(source, plan.out, plan.checkpoint), as_json=asked.as_json)
        return
    directory = LandedDirectory(asked.out)
    before = directory.commit()
    telling = _Telling(asked, lambda: landing_state(source, plan.out, plan.checkpoint))
    with told(far=running_stage) as tell:
        tell(f"landing {asked.topic}")
        run(plan, master=asked.master, told=telling.landed, noted=_note, stop=telling.stop)
    telling.end()
    _report(str(asked.out), before, directory.commit(), as_json=asked.as_json)


def _land_in_lake(asked: _LandOptions, source: KafkaSource, lake: LakeAddress) -> None:
    # The libraries of these take a second to load.
    from remora_pipeline.replay.pipeline.iceberg.lag import lake_state
    from remora_pipeline.replay.pipeline.iceberg.land import LakePlan, land_in_lake

    if asked.out is not None or asked.checkpoint is not None:
        raise click.UsageError("--out and --checkpoint are for folders; with --catalog both are the catalog's")
    plan = LakePlan(
        source=source,
        lake=lake,
        interval_s=asked.interval_s,
        batch=asked.batch,
        skip_lost=asked.skip_lost,
    )
    if asked.is_dry:
        _say_what_would_land(lake_state(source, lake), as_json=asked.as_json)
        return
    telling = _Telling(asked, lambda: lake_state(source, lake))
    with told(far=running_stage) as tell:
        tell(f"landing {asked.topic}")
        before, after = land_in_lake(plan, master=asked.master, told=telling.landed, stop=telling.stop)
    telling.end()
    _report(lake.named("events"), before, after, as_json=asked.as_json)


class _Telling:
    """What is said of each batch and exported, and of the end; `look` finds how far the landing is."""

    def __init__(self, asked: _LandOptions, look: Callable[[], LandingState]) -> None:
        self.stop = Event()
        self._asked, self._look, self._began = asked, look, time.monotonic()

    def landed(self, commit: _Totals) -> None:
        """A batch has landed."""
        if self._asked.interval_s is not None:
            print_line(
                f"batch {commit.batch}: {several(commit.events, 'event')} and {_bad(commit.bad)} in all",
                err=True,
            )
        self._export()

    def end(self) -> None:
        """Nothing more lands. Ends the command with a failure where a landing of what is there was interrupted."""
        self._export()
        if self.stop.is_set() and self._asked.interval_s is None:
            print_line("remora: interrupted; what is missing lands next time", err=True)
            sys.exit(Exit.FAILURE)

    def _export(self) -> None:
        """Export what has landed; a receiver that is away is remarked on, and keeps nothing from landing."""
        if self._asked.metrics is None:
            return
        try:
            telemetry = JobTelemetry()
            telemetry.landing(self._look(), self._began)
            telemetry.export(self._asked.metrics, self._asked.topic)
        except ReplayError as exc:
            _note(str(exc))


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


def _say_what_would_land(state: LandingState, *, as_json: bool) -> None:
    spans = {
        str(number): (state.landed.get(number, 0), end)
        for number, end in sorted(state.ends.items())
        if state.landed.get(number, 0) < end
    }
    if as_json:
        print_json({"topic": state.topic, "records": state.lag, "offsets": spans})
        return
    print_line(f"{state.topic}: {several(state.lag, 'record')} would land")
    for number, (first, end) in spans.items():
        print_line(f"  partition {number}: offsets {first} to {end - 1}")


def _bad(count: int) -> str:
    return several(count, "bad record")


def _note(text: str) -> None:
    print_line(f"remora: {text}", err=True)


def _report(out: str, before: _Totals, after: _Totals, *, as_json: bool) -> None:
    new = {
        "batches": after.batch - before.batch,
        "events": after.events - before.events,
        "bad": after.bad - before.bad,
    }
    if as_json:
        print_json(new | {"events_in_all": after.events, "bad_in_all": after.bad, "last_batch": after.batch})
        return
    print_line(
        f"{out}: landed {several(new['events'], 'event')} and {_bad(new['bad'])} in"
        f" {several(new['batches'], 'batch', 'batches')};"
        f" {after.events:,} and {after.bad:,} in all"
    )
